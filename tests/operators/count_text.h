// Counts how often a test program compares or hashes text: it defines memcmp and std::_Hash_bytes, which the
// comparisons and the hashes of strings come down to. Linked into a test program of its own.
#pragma once

#include <cstddef>

namespace headrace::test {

// Counts while it lives; one at a time. The stacks of the first that go beyond `expected` are written to stderr.
class TextCount {
 public:
  explicit TextCount(size_t expected = 0);
  ~TextCount();
  TextCount(const TextCount&) = delete;
  TextCount& operator=(const TextCount&) = delete;

  // By all threads.
  size_t count() const;
};

}  // namespace headrace::test
