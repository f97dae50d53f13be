#include "memory.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include <sys/mman.h>

#undef HUGE  // a number in math.h of some systems

namespace jackfield {

constexpr size_t ALIGNMENT = 64, OWN_MAPPING = size_t(1) << 20, HUGE = size_t(2) << 20;

Memory::Memory(size_t nbytes, bool huge) : nbytes_(nbytes) {
    if (nbytes > (size_t(1) << 62)) throw std::bad_alloc();
    if (nbytes < OWN_MAPPING) {
        if (posix_memalign(&block_, ALIGNMENT, nbytes ? nbytes : ALIGNMENT)) throw std::bad_alloc();
        std::memset(block_, 0, nbytes);
        data_ = static_cast<char*>(block_);
        return;
    }
    const size_t slack = huge ? HUGE : 0;
    mapped_ = nbytes + slack;
    block_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block_ == MAP_FAILED) {
        block_ = nullptr;
        throw std::bad_alloc();
    }
    data_ = static_cast<char*>(block_);
    if (huge) {
        data_ += (HUGE - reinterpret_cast<uintptr_t>(block_) % HUGE) % HUGE;
#if defined(MADV_HUGEPAGE)
        madvise(data_, nbytes / HUGE * HUGE, MADV_HUGEPAGE);  // a wish: without it the pages are small, and right
#endif
        huge_ = true;
    }
}

void Memory::free() {
    if (mapped_)
        munmap(block_, mapped_);
    else
        std::free(block_);
    block_ = nullptr;
    mapped_ = 0;
    data_ = nullptr;
    nbytes_ = 0;
}

}  // namespace jackfield
