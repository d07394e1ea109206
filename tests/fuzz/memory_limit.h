// Little memory for a fuzz target, so that an input which asks for much is refused at once (as any allocation may be)
// instead of filling the machine, and so that no input takes long.
#pragma once

#include <cstddef>

namespace headrace {

// While it lives, operator new throws std::bad_alloc where a single allocation, or all of them since it was made, would
// be larger than the limits. One at a time; for all threads of the process.
class MemoryLimit {
 public:
  explicit MemoryLimit(size_t of_one = size_t{256} << 10, size_t of_all = size_t{8} << 20);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
};

}  // namespace headrace
