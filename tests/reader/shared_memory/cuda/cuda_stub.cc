// Stands for the CUDA driver in tests: keeps account of what is locked, refuses what the driver would refuse, and makes
// asynchronous copies as late as the rules allow, so that memory which is used again too early shows in what was
// copied. Built a second time as a driver from before CUDA 12.5, which has no cuCtxRecordEvent. Thread-safety: one
// lock.
#include "cuda_stub.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kNotInitialized = 3;
constexpr int kInvalidContext = 201;
constexpr int kNotReady = 600;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  uint32_t stream;
  uint64_t number;  // copies of all streams are counted together

  int device() const { return stream >= CudaStub::kSecondDevice ? 1 : 0; }
};
struct Event {
  uint64_t captured = 0;  // copies below this number
  int device = 0;         // made by this one
};

CudaStub stub;
std::recursive_mutex mutex;
std::map<uintptr_t, size_t>& Ranges() {
  static std::map<uintptr_t, size_t> ranges;
  return ranges;
}
std::deque<Copy>& Submitted() {
  static std::deque<Copy> submitted;
  return submitted;
}
uint64_t next_copy = 0;
int primaries[2] = {};  // their addresses are the contexts

int DeviceOf(const void* context) { return context == &primaries[1] ? 1 : 0; }

// The streams of a context run beside each other: of what has to be made, the later streams come first.
void Execute(uint64_t end, int device) {
  std::set<uint32_t> streams;
  for (const Copy& copy : Submitted()) {
    if (copy.device() == device) streams.insert(copy.stream);
  }
  for (auto stream = streams.rbegin(); stream != streams.rend(); ++stream) {
    for (const Copy& copy : Submitted()) {
      if (copy.stream == *stream && copy.number < end) std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }
  std::erase_if(Submitted(), [=](const Copy& copy) { return copy.device() == device && copy.number < end; });
}

void CopyAsync(void* to, const void* from, size_t bytes, uint32_t stream) {
  const std::lock_guard lock(mutex);
  Submitted().push_back({to, from, bytes, stream, next_copy++});
}

void Finish() {
  const std::lock_guard lock(mutex);
  Execute(next_copy, 0);
  Execute(next_copy, 1);
}

}  // namespace

#define STUB_API extern "C" __attribute__((visibility("default")))

STUB_API CudaStub* cuda_stub() {
  const std::lock_guard lock(mutex);
  Submitted().clear();
  stub = {.copy_async = &CopyAsync, .finish = &Finish};
  return &stub;
}

STUB_API int cuInit(unsigned) {
  ++stub.inits;
  return stub.init_result;
}

STUB_API int cuGetErrorString(int, const char** text) {
  *text = "as the test wants it";
  return 0;
}

STUB_API int cuDeviceGetCount(int* count) {
  *count = stub.devices;
  return stub.inits == 0 ? kNotInitialized : 0;
}

STUB_API int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return stub.inits == 0 ? kNotInitialized : 0;
}

STUB_API int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  const std::lock_guard lock(mutex);
  *flags = 0;
  *active = device == 1 || stub.retained > 0 ? 1 : 0;
  return 0;
}

STUB_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::lock_guard lock(mutex);
  ++stub.retained;
  *context = &primaries[device];
  return 0;
}

STUB_API int cuDevicePrimaryCtxRelease_v2(int) {
  const std::lock_guard lock(mutex);
  --stub.retained;
  return 0;
}

STUB_API int cuCtxGetCurrent(void** context) {
  *context = stub.current;
  return 0;
}

STUB_API int cuCtxPushCurrent_v2(void* context) {
  const std::lock_guard lock(mutex);
  stub.pushed = context;
  ++stub.depth;
  return 0;
}

STUB_API int cuCtxPopCurrent_v2(void** context) {
  const std::lock_guard lock(mutex);
  *context = stub.pushed;
  --stub.depth;
  return 0;
}

STUB_API int cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  const std::lock_guard lock(mutex);
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
  const std::lock_guard lock(mutex);
  const auto found = Ranges().find(reinterpret_cast<uintptr_t>(pointer));
  if (stub.depth == 0 || found == Ranges().end()) {
    return kNotRegistered;
  }
  for (const Copy& copy : Submitted()) {
    const auto from = reinterpret_cast<uintptr_t>(copy.from);
    stub.torn_away += found->first <= from && from < found->first + found->second ? 1 : 0;
  }
  stub.registered_bytes -= found->second;
  Ranges().erase(found);
  return 0;
}

STUB_API int cuEventCreate(void** event, unsigned flags) {
  const std::lock_guard lock(mutex);
  if (stub.depth == 0 || flags != 2) {
    return stub.depth == 0 ? kInvalidContext : kInvalidValue;
  }
  ++stub.events;
  *event = new Event;
  return 0;
}

STUB_API int cuEventDestroy_v2(void* event) {
  const std::lock_guard lock(mutex);
  --stub.events;
  delete static_cast<Event*>(event);
  return 0;
}

STUB_API int cuEventQuery(void* event) {
  const std::lock_guard lock(mutex);
  const Event& asked = *static_cast<Event*>(event);
  if (std::atomic_ref(asked.device == 1 ? stub.second_busy : stub.busy).load()) {
    return kNotReady;
  }
  Execute(asked.captured, asked.device);
  return 0;
}

STUB_API int cuEventSynchronize(void* event) {
  const std::lock_guard lock(mutex);
  const Event& asked = *static_cast<Event*>(event);
  Execute(asked.captured, asked.device);
  return 0;
}

STUB_API int cuCtxSynchronize() {
  const std::lock_guard lock(mutex);
  if (stub.depth == 0) {
    return kInvalidContext;
  }
  if (stub.synchronize_result == 0) {
    ++stub.synchronizations;
    Execute(next_copy, DeviceOf(stub.pushed));
  }
  return stub.synchronize_result;
}

#ifndef BEFORE_CUDA_12_5
STUB_API int cuCtxRecordEvent(void* context, void* event) {
  const std::lock_guard lock(mutex);
  if (stub.record_result == 0) {
    *static_cast<Event*>(event) = {next_copy, DeviceOf(context)};
  }
  return stub.record_result;
}
#endif
