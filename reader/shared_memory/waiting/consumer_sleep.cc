#include "reader/shared_memory/waiting/consumer_sleep.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "framework/errors.h"
#include "reader/shared_memory/arena/system_error.h"

namespace headrace::shared_memory {

ConsumerSleep::ConsumerSleep(std::atomic<uint32_t>& sleeps)
    : sleeps_(sleeps), fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  HR_ENFORCE(fd_ >= 0, IoError, "eventfd failed: ", SystemError(errno));
}

ConsumerSleep::~ConsumerSleep() { close(fd_); }

ConsumerSleep::Result ConsumerSleep::Sleep(int also, int64_t timeout_ns) {
  pollfd descriptors[] = {{fd_, POLLIN, 0}, {also, POLLIN, 0}};
  const timespec limit{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  if (ppoll(descriptors, 2, &limit, nullptr) < 0) {
    HR_ENFORCE(errno == EINTR, IoError, "poll failed: ", SystemError(errno));
    return Result::kSignal;
  }
  if (descriptors[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t bytes = read(fd_, &count, sizeof(count));
  }
  return descriptors[1].revents != 0 ? Result::kReadable : Result::kWoken;
}

void ConsumerSleep::Wake() {
  if (sleeps_.exchange(0) != 0) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));
  }
}

}  // namespace headrace::shared_memory
