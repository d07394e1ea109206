// Counts what a test program takes from the heap, by whatever way: it defines malloc and its relatives, which operator
// new calls, too. Linked into a test program of its own.
#pragma once

#include <cstddef>

namespace headrace::test {

// Counts while it lives; one at a time. The first allocations' stacks are written to stderr.
class AllocationCount {
 public:
  AllocationCount();
  ~AllocationCount();
  AllocationCount(const AllocationCount&) = delete;
  AllocationCount& operator=(const AllocationCount&) = delete;

  // By all threads.
  size_t count() const;
};

}  // namespace headrace::test
