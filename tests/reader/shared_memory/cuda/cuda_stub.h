// The account that the stand-in for the CUDA driver keeps (cuda_stub.cc), and what it is told to do.
#pragma once

#include <cstddef>
#include <cstdint>

struct CudaStub {
  static constexpr uint32_t kSecondDevice = 100;

  int init_result = 0;
  int register_result = 0;
  int record_result = 0;       // of cuCtxRecordEvent
  int synchronize_result = 0;  // of cuCtxSynchronize
  void* current = nullptr;     // the calling thread's context, as far as the driver knows
  int devices = 1;             // or 2, of which the program then uses the second one's primary context, too
  bool busy = false;           // the first device does not come round to the work that was submitted
  bool second_busy = false;    // nor does the second one

  int inits = 0;
  int retained = 0;  // primary contexts
  int depth = 0;     // of the stack of contexts
  void* pushed = nullptr;
  int registrations = 0;        // so far
  size_t registered_bytes = 0;  // now
  int events = 0;               // that exist
  int synchronizations = 0;     // of a context, so far
  int torn_away = 0;            // memory that was unlocked while a copy from it was still to be made

  // Submits a copy to a stream: cuMemcpyAsync. It is made as late as can be: when an event that captured it, or its
  // context, is found to have ended. Streams from kSecondDevice on are those of the second device.
  void (*copy_async)(void* to, const void* from, size_t bytes, uint32_t stream) = nullptr;
  // Makes all of them now.
  void (*finish)() = nullptr;
};

// As new.
extern "C" CudaStub* cuda_stub();
