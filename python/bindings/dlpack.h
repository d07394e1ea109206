// What of DLPack 1.3 it takes to see the memory of another library's tensor: the exchange interface that a type offers
// as its attribute __dlpack_c_exchange_api__, a capsule. Names and layouts are those of its header, dlpack.h.
#pragma once

#include <cstdint>

namespace headrace::python::dlpack {

inline constexpr const char* kExchangeAttribute = "__dlpack_c_exchange_api__";
inline constexpr const char* kExchangeCapsule = "dlpack_exchange_api";
inline constexpr uint32_t kMajorVersion = 1;

inline constexpr int32_t kCpu = 1;  // DLDeviceType

// DLDataTypeCode.
inline constexpr uint8_t kInt = 0;
inline constexpr uint8_t kUInt = 1;
inline constexpr uint8_t kFloat = 2;
inline constexpr uint8_t kBool = 6;

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;

  bool operator==(const DataType&) const = default;
};

struct Tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: in C's order without gaps
  uint64_t byte_offset;
};

struct ExchangeApi {
  struct {
    uint32_t major;
    uint32_t minor;
    void* previous;
  } header;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  // Describes a tensor, which keeps its memory; -1 with an exception of Python's set. Null where it is not supported.
  int (*dltensor_from_py_object_no_sync)(void* py_object, Tensor* out);
  void* current_work_stream;
};

}  // namespace headrace::python::dlpack
