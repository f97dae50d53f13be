// Host memory of the CPU device.
#pragma once
#include <cstddef>
#include <cstdint>

namespace jackfield {

// Zeroed memory, 64-byte aligned; blocks of 1 MiB and more are mappings of their own, so that freeing them gives the
// memory back, and may ask for huge pages. Throws std::bad_alloc.
class Memory {
public:
    Memory(size_t nbytes, bool huge_pages);
    Memory(char* borrowed, size_t nbytes) : data_(borrowed), nbytes_(nbytes) {}
    ~Memory() { free(); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    char* data() const { return data_; }
    size_t nbytes() const { return nbytes_; }
    void free();

private:
    char* data_ = nullptr;
    size_t nbytes_ = 0;
    void* block_ = nullptr;  // what was allocated; null when borrowed
    size_t mapped_ = 0;      // bytes of the mapping, 0 when it came from the heap
};

}  // namespace jackfield
