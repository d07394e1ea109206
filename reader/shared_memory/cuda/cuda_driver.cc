#include "reader/shared_memory/cuda/cuda_driver.h"

#include <dlfcn.h>

namespace headrace::shared_memory {

template <typename Function>
bool CudaDriver::Find(void* library, const char* symbol, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, symbol));
  return *function != nullptr;
}

CudaDriver::CudaDriver(const char* name) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    problem = std::string("the CUDA driver could not be loaded: ") + (error == nullptr ? name : error);
    return;
  }
  const auto need = [&](const char* symbol, auto* function) {
    if (!Find(library, symbol, function)) {
      problem = std::string("the CUDA driver is too old: it has no ") + symbol;
    }
  };
  need("cuInit", &init);
  need("cuGetErrorString", &get_error_string);
  need("cuDeviceGetCount", &device_count);
  need("cuDeviceGet", &device_get);
  need("cuDevicePrimaryCtxGetState", &primary_state);
  need("cuDevicePrimaryCtxRetain", &primary_retain);
  need("cuDevicePrimaryCtxRelease_v2", &primary_release);
  need("cuCtxGetCurrent", &get_current);
  need("cuCtxPushCurrent_v2", &push_current);
  need("cuCtxPopCurrent_v2", &pop_current);
  need("cuCtxSynchronize", &synchronize);
  need("cuMemHostRegister_v2", &host_register);
  need("cuMemHostUnregister", &host_unregister);
  need("cuEventCreate", &event_create);
  need("cuEventDestroy_v2", &event_destroy);
  need("cuEventQuery", &event_query);
  need("cuEventSynchronize", &event_synchronize);
  Find(library, "cuCtxRecordEvent", &record_context);
}

std::string CudaDriver::Explain(const char* function, int result) const {
  const char* text = nullptr;
  get_error_string(result, &text);
  return std::string("CUDA's ") + function + " failed: " + (text == nullptr ? "unknown error" : text) + " (" +
         std::to_string(result) + ")";
}

}  // namespace headrace::shared_memory
