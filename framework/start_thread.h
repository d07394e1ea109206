// Starting threads of our own. Internal.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "framework/errors.h"

namespace headrace {

// Starts a thread that blocks all signals: they are for the threads of the program, such as Python's, whose handlers
// run between two instructions of the main thread. `what` is the thread in the message of the error.
//
// Throws ResourceExhausted if the system starts no more threads. Thread-safe.
template <typename Run>
std::thread StartThread(std::string_view what, Run&& run) {
  class SignalsBlocked {  // a thread inherits the mask of the one that starts it
   public:
    SignalsBlocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

   private:
    sigset_t before_{};
  };
  const SignalsBlocked blocked;
  try {
    return std::thread(std::forward<Run>(run));
  } catch (const std::system_error& error) {
    Throw<ResourceExhausted>("cannot start ", what, ": ", error.code().message(),
                             ". A limit on threads and processes (ulimit -u, the pids cgroup) is reached");
  }
}

}  // namespace headrace
