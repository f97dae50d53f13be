// Host memory of the CPU device.
#pragma once
#include <cstddef>

namespace jackfield {

// Zeroed memory, 64-byte aligned; blocks of 1 MiB and more are mappings of their own, so that freeing them gives the
// memory back. Throws std::bad_alloc.
class Memory {
public:
    // huge: of huge pages where the system gives them; for memory that is written once and read for ever.
    explicit Memory(size_t nbytes, bool huge = false);
    Memory(char* borrowed, size_t nbytes) : data_(borrowed), nbytes_(nbytes) {}
    ~Memory() { free(); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    char* data() const { return data_; }
    size_t nbytes() const { return nbytes_; }
    bool is_huge() const { return huge_; }
    void free();

private:
    char* data_ = nullptr;
    size_t nbytes_ = 0;
    void* block_ = nullptr;  // what was allocated; null when borrowed
    size_t mapped_ = 0;      // bytes of the mapping, 0 when it came from the heap
    bool huge_ = false;
};

}  // namespace jackfield
