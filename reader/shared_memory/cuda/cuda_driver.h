// The part of the CUDA driver API that the transport uses, loaded at run time: the build needs nothing of CUDA, and
// `problem` says if there is no driver.
//
// The signatures are those of the driver's documentation: a result of 0 is success; contexts and events are opaque.
// Thread-safety: immutable after construction; the driver's functions may be called from any thread. A process that has
// called cuInit cannot fork children that use CUDA, so nothing is called on construction.
#pragma once

#include <cstddef>
#include <string>

namespace headrace::shared_memory {

struct CudaDriver {
  using Context = void*;
  using Event = void*;

  static constexpr const char* kLibrary = "libcuda.so.1";
  static constexpr int kNotReady = 600;           // CUDA_ERROR_NOT_READY
  static constexpr unsigned kDisableTiming = 2;   // CU_EVENT_DISABLE_TIMING
  static constexpr unsigned kPortableMemory = 1;  // CU_MEMHOSTREGISTER_PORTABLE

  explicit CudaDriver(const char* library = kLibrary);
  // The library stays loaded: CUDA cannot be loaded again once it has been unloaded.

  // Describes a result in error messages.
  std::string Explain(const char* function, int result) const;

  std::string problem;  // why the driver cannot be used; empty if it can

  int (*init)(unsigned) = nullptr;
  int (*get_error_string)(int, const char**) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*primary_state)(int, unsigned*, int*) = nullptr;
  int (*primary_retain)(Context*, int) = nullptr;
  int (*primary_release)(int) = nullptr;
  int (*get_current)(Context*) = nullptr;
  int (*push_current)(Context) = nullptr;
  int (*pop_current)(Context*) = nullptr;
  int (*synchronize)() = nullptr;  // the current context
  int (*host_register)(void*, size_t, unsigned) = nullptr;
  int (*host_unregister)(void*) = nullptr;
  int (*event_create)(Event*, unsigned) = nullptr;
  int (*event_destroy)(Event) = nullptr;
  int (*event_query)(Event) = nullptr;
  int (*event_synchronize)(Event) = nullptr;
  // Records all work of a context, whatever its stream. Null before CUDA 12.5.
  int (*record_context)(Context, Event) = nullptr;

 private:
  template <typename Function>
  bool Find(void* library, const char* symbol, Function* function);
};

}  // namespace headrace::shared_memory
