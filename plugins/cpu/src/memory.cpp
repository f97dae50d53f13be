#include "memory.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include <sys/mman.h>

#undef HUGE  // a number in math.h of some systems

namespace jackfield {

constexpr size_t ALIGNMENT = 64, OWN_MAPPING = size_t(1) << 20, HUGE = size_t(2) << 20, SMALL_PAGE = 4096;
constexpr size_t SHARE = size_t(2) << 20;       // of a long write, for one worker
constexpr size_t LONG_WRITE = size_t(1) << 16;  // shorter ones come alone or at the end of many
constexpr size_t AHEAD = 8;                     // huge pages made together with the one that is needed

Memory::Memory(size_t nbytes, std::shared_ptr<Pool> makers) : nbytes_(nbytes) {
    if (nbytes > (size_t(1) << 62)) throw std::bad_alloc();
    if (nbytes < OWN_MAPPING) {
        if (posix_memalign(&block_, ALIGNMENT, nbytes ? nbytes : ALIGNMENT)) throw std::bad_alloc();
        std::memset(block_, 0, nbytes);
        data_ = static_cast<char*>(block_);
        return;
    }
    const size_t slack = makers ? HUGE : 0;
    mapped_ = nbytes + slack;
    block_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block_ == MAP_FAILED) {
        block_ = nullptr;
        throw std::bad_alloc();
    }
    data_ = static_cast<char*>(block_);
    if (makers) {
        data_ += (HUGE - reinterpret_cast<uintptr_t>(block_) % HUGE) % HUGE;
#if defined(MADV_HUGEPAGE)
        madvise(data_, nbytes / HUGE * HUGE, MADV_HUGEPAGE);  // a wish: without it the pages are small, and right
#endif
        made_.resize((nbytes + HUGE - 1) / HUGE);
        makers_ = std::move(makers);
    }
}

void Memory::write(size_t offset, const void* from, size_t nbytes) {
    char* to = data_ + offset;
    const char* source = static_cast<const char*>(from);
    if (makers_ && nbytes) make_pages(offset, nbytes);
    if (!makers_ || nbytes < 2 * SHARE || makers_->forked()) {
        std::memcpy(to, source, nbytes);
        return;
    }
    std::atomic<size_t> next{0};
    makers_->run(makers_->size(), [&](int) {
        for (size_t at = next.fetch_add(SHARE); at < nbytes; at = next.fetch_add(SHARE))
            std::memcpy(to + at, source + at, std::min(SHARE, nbytes - at));
    });
}

// The system clears a page where it is first touched: half the time of filling fresh memory. All workers do that, each
// its own huge pages, since two that touch one would both clear it; and some pages ahead, so that they are seldom
// woken. The lock is held until the pages are there: a zero must not meet what another thread writes.
void Memory::make_pages(size_t offset, size_t nbytes) {
    const std::lock_guard<std::mutex> lock(making_);
    std::vector<size_t> missing;
    const size_t first = offset / HUGE, last = (offset + nbytes - 1) / HUGE;
    for (size_t page = first; page <= last; ++page)
        if (!made_[page]) missing.push_back(page);
    if (missing.empty()) return;
    if (nbytes >= LONG_WRITE)
        for (size_t page = last + 1; page < made_.size() && page <= last + AHEAD; ++page)
            if (!made_[page]) missing.push_back(page);
    const auto make = [&](size_t page) {
        const size_t end = page + 1 < made_.size() ? (page + 1) * HUGE : nbytes_;
        for (size_t at = page * HUGE; at < end; at += SMALL_PAGE) *static_cast<volatile char*>(data_ + at) = 0;
    };
    std::atomic<size_t> next{0};
    const auto work = [&](int) {
        for (size_t i = next++; i < missing.size(); i = next++) make(missing[i]);
    };
    if (missing.size() > 1 && !makers_->forked())
        makers_->run(int(missing.size()), work);
    else
        work(0);
    for (const size_t page : missing) made_[page] = true;
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
    makers_.reset();
}

}  // namespace jackfield
