// The account that the stand-in for the CUDA driver keeps (cuda_stub.cc), and what it is told to do.
#pragma once

#include <cstddef>

struct CudaStub {
  int init_result = 0;
  int register_result = 0;
  void* current = nullptr;  // the calling thread's context, as far as the driver knows

  int inits = 0;
  int retained = 0;  // primary contexts
  int depth = 0;     // of the stack of contexts
  void* pushed = nullptr;
  int registrations = 0;        // so far
  size_t registered_bytes = 0;  // now
};

extern "C" CudaStub* cuda_stub();
