#include "tests/operators/count_text.h"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace headrace::test {
namespace {

std::atomic<bool> counting_text{false};
std::atomic<size_t> texts{0};
std::atomic<size_t> expected_texts{0};

// Numbers have bytes that are zero, those of names do not.
bool IsText(const unsigned char* bytes, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (bytes[i] == 0) {
      return false;
    }
  }
  return n > 0;
}

void CountText(const void* bytes, size_t n) {
  if (!counting_text.load(std::memory_order_relaxed) || !IsText(static_cast<const unsigned char*>(bytes), n)) {
    return;
  }
  constexpr size_t kShown = 5;
  const size_t before = texts.fetch_add(1);
  if (before >= expected_texts && before < expected_texts + kShown) {
    counting_text.store(false);
    std::array<void*, 12> frames{};
    (void)!write(STDERR_FILENO, bytes, n);
    (void)!write(STDERR_FILENO, "\n", 1);
    backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())), STDERR_FILENO);
    (void)!write(STDERR_FILENO, "\n", 1);
    counting_text.store(true);
  }
}

}  // namespace

TextCount::TextCount(size_t expected) {
  void* frame = nullptr;
  (void)backtrace(&frame, 1);  // the first call loads a library
  texts.store(0);
  expected_texts.store(expected);
  counting_text.store(true);
}
TextCount::~TextCount() { counting_text.store(false); }
size_t TextCount::count() const { return texts.load(); }

}  // namespace headrace::test

extern "C" int memcmp(const void* a, const void* b, size_t n) {
  headrace::test::CountText(a, n);
  const auto* left = static_cast<const unsigned char*>(a);
  const auto* right = static_cast<const unsigned char*>(b);
  for (size_t i = 0; i < n; ++i) {
    if (left[i] != right[i]) {
      return left[i] < right[i] ? -1 : 1;
    }
  }
  return 0;
}

namespace std {

size_t _Hash_bytes(const void* bytes, size_t n, size_t seed);  // NOLINT(bugprone-reserved-identifier)

size_t _Hash_bytes(const void* bytes, size_t n, size_t seed) {
  headrace::test::CountText(bytes, n);
  uint64_t hash = seed;
  for (size_t i = 0; i < n; ++i) {
    hash = (hash ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001b3;
  }
  return hash;
}

}  // namespace std
