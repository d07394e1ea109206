// Stands for the CUDA driver in tests: keeps account of what is locked and refuses what the driver would refuse.
#include "cuda_stub.h"

#include <cstddef>
#include <cstdint>
#include <map>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kNotInitialized = 3;
constexpr int kInvalidContext = 201;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;

CudaStub stub;
std::map<uintptr_t, size_t>& Ranges() {
  static std::map<uintptr_t, size_t> ranges;
  return ranges;
}
int primary = 0;  // its address is the context

}  // namespace

#define STUB_API extern "C" __attribute__((visibility("default")))

STUB_API CudaStub* cuda_stub() { return &stub; }

STUB_API int cuInit(unsigned) {
  ++stub.inits;
  return stub.init_result;
}

STUB_API int cuGetErrorString(int, const char** text) {
  *text = "as the test wants it";
  return 0;
}

STUB_API int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return stub.inits == 0 ? kNotInitialized : 0;
}

STUB_API int cuDevicePrimaryCtxRetain(void** context, int) {
  ++stub.retained;
  *context = &primary;
  return 0;
}

STUB_API int cuDevicePrimaryCtxRelease_v2(int) {
  --stub.retained;
  return 0;
}

STUB_API int cuCtxGetCurrent(void** context) {
  *context = stub.current;
  return 0;
}

STUB_API int cuCtxPushCurrent_v2(void* context) {
  stub.pushed = context;
  ++stub.depth;
  return 0;
}

STUB_API int cuCtxPopCurrent_v2(void** context) {
  *context = stub.pushed;
  --stub.depth;
  return 0;
}

STUB_API int cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  if (stub.depth == 0) {
    return kInvalidContext;
  }
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  if (begin % 4096 != 0 || bytes == 0 || flags != 1) {
    return kInvalidValue;
  }
  if (stub.register_result != 0) {
    return stub.register_result;
  }
  for (const auto& [other, length] : Ranges()) {
    if (begin < other + length && other < begin + bytes) {
      return kAlreadyRegistered;
    }
  }
  Ranges()[begin] = bytes;
  ++stub.registrations;
  stub.registered_bytes += bytes;
  return 0;
}

STUB_API int cuMemHostUnregister(void* pointer) {
  const auto found = Ranges().find(reinterpret_cast<uintptr_t>(pointer));
  if (stub.depth == 0 || found == Ranges().end()) {
    return kNotRegistered;
  }
  stub.registered_bytes -= found->second;
  Ranges().erase(found);
  return 0;
}
