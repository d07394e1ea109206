#include "framework/start_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <new>
#include <string>
#include <system_error>
#include <thread>

#include "framework/errors.h"

namespace headrace {
namespace {

bool IsBlocked(int signal) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

// A function whose copy for the thread cannot be made.
template <typename Exception>
struct Uncopied {
  Uncopied() = default;
  Uncopied(const Uncopied&) { throw Exception(std::make_error_code(std::errc::resource_unavailable_try_again)); }
  void operator()() const {}
};
struct NoMemory : std::bad_alloc {
  explicit NoMemory(std::error_code) {}
};

TEST(StartThread, OnlyTheThreadBlocksSignals) {
  bool in_thread = false;
  StartThread("a thread", [&] { in_thread = IsBlocked(SIGINT) && IsBlocked(SIGCHLD); }).join();
  EXPECT_TRUE(in_thread);
  EXPECT_FALSE(IsBlocked(SIGINT));
}

TEST(StartThread, SignalsAreNotBlockedAfterAnError) {
  const Uncopied<std::system_error> none;
  try {
    StartThread("the thread that waits", none).join();
    FAIL() << "it has started";
  } catch (const ResourceExhausted& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("cannot start the thread that waits: "));
    EXPECT_THAT(error.what(), testing::HasSubstr("ulimit -u"));
  }
  EXPECT_FALSE(IsBlocked(SIGINT));
  const Uncopied<NoMemory> no_memory;
  EXPECT_THROW(StartThread("a thread", no_memory).join(), std::bad_alloc);
  EXPECT_FALSE(IsBlocked(SIGINT));
}

}  // namespace
}  // namespace headrace
