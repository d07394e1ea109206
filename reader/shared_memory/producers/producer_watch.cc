#include "reader/shared_memory/producers/producer_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <numeric>
#include <utility>

#include "framework/errors.h"
#include "reader/shared_memory/arena/system_error.h"

namespace headrace::shared_memory {

ProducerWatch::ProducerWatch() : epoll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
  HR_ENFORCE(epoll_fd_ >= 0, IoError, "epoll_create1 failed: ", SystemError(errno));
}

ProducerWatch::~ProducerWatch() {
  for (const Process& process : processes_) {
    close(process.pidfd);
  }
  close(epoll_fd_);
}

void ProducerWatch::Add(uint32_t first, uint32_t count, int pidfd) {
  Process process{fcntl(pidfd, F_DUPFD_CLOEXEC, 0), std::vector<uint32_t>(count)};
  HR_ENFORCE(process.pidfd >= 0, IoError, "cannot duplicate file descriptor ", pidfd, ": ", SystemError(errno));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = process.pidfd;
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, process.pidfd, &event) != 0) {
    const int error = errno;
    close(process.pidfd);
    Throw<IoError>("file descriptor ", pidfd, " cannot be watched: ", SystemError(error));
  }
  std::iota(process.producers.begin(), process.producers.end(), first);
  processes_.push_back(std::move(process));
}

void ProducerWatch::Remove(uint32_t producer) {
  for (auto process = processes_.begin(); process != processes_.end(); ++process) {
    if (std::erase(process->producers, producer) != 0 && process->producers.empty()) {
      Close(*process);
      processes_.erase(process);
      return;
    }
  }
}

const ProducerWatch::Process* ProducerWatch::Find(uint32_t producer) const {
  for (const Process& process : processes_) {
    if (std::find(process.producers.begin(), process.producers.end(), producer) != process.producers.end()) {
      return &process;
    }
  }
  return nullptr;
}

void ProducerWatch::Close(const Process& process) const {
  // Closing alone is not enough: a duplicate held elsewhere would keep the descriptor in the set.
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, process.pidfd, nullptr);
  close(process.pidfd);
}

bool ProducerWatch::HasEnded(uint32_t producer) const {
  const Process* process = Find(producer);
  pollfd descriptor{process == nullptr ? -1 : process->pidfd, POLLIN, 0};
  return poll(&descriptor, 1, 0) > 0;
}

void ProducerWatch::Kill(uint32_t producer) const {
  if (const Process* process = Find(producer)) {
    syscall(SYS_pidfd_send_signal, process->pidfd, SIGKILL, nullptr, 0);
  }
}

std::vector<std::vector<uint32_t>> ProducerWatch::Processes() const {
  std::vector<std::vector<uint32_t>> all;
  std::transform(processes_.begin(), processes_.end(), std::back_inserter(all),
                 [](const Process& process) { return process.producers; });
  return all;
}

std::vector<uint32_t> ProducerWatch::TakeEnded() {
  std::vector<uint32_t> ended;
  std::array<epoll_event, 64> events{};
  const int count = epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const auto process = std::find_if(processes_.begin(), processes_.end(),
                                      [&](const Process& each) { return each.pidfd == events[i].data.fd; });
    if (process != processes_.end()) {
      ended.insert(ended.end(), process->producers.begin(), process->producers.end());
      Close(*process);
      processes_.erase(process);
    }
  }
  return ended;
}

}  // namespace headrace::shared_memory
