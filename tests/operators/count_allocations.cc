#include "tests/operators/count_allocations.h"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>

extern "C" {
// glibc's own.
void* __libc_malloc(size_t);            // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(size_t, size_t);    // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void*, size_t);    // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(size_t, size_t);  // NOLINT(bugprone-reserved-identifier)
}

namespace headrace::test {
namespace {

std::atomic<bool> counting{false};
std::atomic<size_t> counted{0};

void Count() {
  if (!counting.load(std::memory_order_relaxed)) {
    return;
  }
  constexpr size_t kShown = 5;
  if (counted.fetch_add(1) < kShown) {
    counting.store(false);
    std::array<void*, 20> frames{};
    backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())), STDERR_FILENO);
    (void)!write(STDERR_FILENO, "\n", 1);
    counting.store(true);
  }
}

}  // namespace

AllocationCount::AllocationCount() {
  void* frame = nullptr;
  (void)backtrace(&frame, 1);  // the first call allocates
  counted.store(0);
  counting.store(true);
}
AllocationCount::~AllocationCount() { counting.store(false); }
size_t AllocationCount::count() const { return counted.load(); }

}  // namespace headrace::test

extern "C" {

void* malloc(size_t size) {
  headrace::test::Count();
  return __libc_malloc(size);
}

void* calloc(size_t n, size_t size) {
  headrace::test::Count();
  return __libc_calloc(n, size);
}

void* realloc(void* memory, size_t size) {
  headrace::test::Count();
  return __libc_realloc(memory, size);
}

void* memalign(size_t alignment, size_t size) {
  headrace::test::Count();
  return __libc_memalign(alignment, size);
}

void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void** memory, size_t alignment, size_t size) {
  *memory = memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
}
