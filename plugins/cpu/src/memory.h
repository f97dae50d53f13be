// Host memory of the CPU device.
#pragma once
#include "pool.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace jackfield {

// Zeroed memory, 64-byte aligned; blocks of 1 MiB and more are mappings of their own, so that freeing them gives the
// memory back. Throws std::bad_alloc.
class Memory {
public:
    // makers: workers that make the pages as data comes, huge pages where the system gives them; for memory that is
    // written once and read for ever. Null: pages are made where they are touched.
    Memory(size_t nbytes, std::shared_ptr<Pool> makers);
    Memory(char* borrowed, size_t nbytes) : data_(borrowed), nbytes_(nbytes) {}
    ~Memory() { free(); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    char* data() const { return data_; }
    size_t nbytes() const { return nbytes_; }
    bool makes_pages() const { return makers_ != nullptr; }
    // May be called by several threads at once, for ranges that do not overlap.
    void write(size_t offset, const void* from, size_t nbytes);
    void free();

private:
    void make_pages(size_t offset, size_t nbytes);

    char* data_ = nullptr;
    size_t nbytes_ = 0;
    void* block_ = nullptr;  // what was allocated; null when borrowed
    size_t mapped_ = 0;      // bytes of the mapping, 0 when it came from the heap
    std::shared_ptr<Pool> makers_;
    std::mutex making_;
    std::vector<bool> made_;  // huge page by huge page
};

}  // namespace jackfield
