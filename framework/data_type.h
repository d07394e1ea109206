// Element types of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "framework/export.h"

namespace headrace {

// Storage types without arithmetic of their own: 16 bits, converted by the kernels that support them.
struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

// The values are those of VarType.Type in framework.proto.
enum class DataType : int32_t {
  kBool = 0,
  kInt16 = 1,
  kInt32 = 2,
  kInt64 = 3,
  kFloat16 = 4,
  kFloat32 = 5,
  kFloat64 = 6,
  kUInt8 = 20,
  kInt8 = 21,
  kBFloat16 = 22,
  kUInt16 = 101,
  kUInt32 = 102,
  kUInt64 = 103,
};

// Bytes of one element.
HEADRACE_API size_t SizeOf(DataType type);

// NumPy's name of the type: "float32", "int64", …
HEADRACE_API std::string_view DataTypeName(DataType type);

// Inverse of DataTypeName. Throws InvalidArgument for an unknown name.
HEADRACE_API DataType DataTypeFromName(std::string_view name);

// Whether a variable declared as `declared` may be given as `given`: if they are the same, or it is given as integers
// or bools, which operators take or refuse as they are. Programs that mean float32 declare NumPy's "float", which is
// float64: so that may be given as float32. Other floating-point numbers of another width are a mistake.
HEADRACE_API bool MayBeGivenAs(DataType declared, DataType given);

// Whether `value` is one of the enumerators.
HEADRACE_API bool IsDataType(int32_t value);

// DataTypeOf<T>::value is the DataType of the C++ type T.
template <typename T>
struct DataTypeOf;
#define HEADRACE_DATA_TYPE_OF(T, V)                \
  template <>                                      \
  struct DataTypeOf<T> {                           \
    static constexpr DataType value = DataType::V; \
  }
HEADRACE_DATA_TYPE_OF(bool, kBool);
HEADRACE_DATA_TYPE_OF(int8_t, kInt8);
HEADRACE_DATA_TYPE_OF(int16_t, kInt16);
HEADRACE_DATA_TYPE_OF(int32_t, kInt32);
HEADRACE_DATA_TYPE_OF(int64_t, kInt64);
HEADRACE_DATA_TYPE_OF(uint8_t, kUInt8);
HEADRACE_DATA_TYPE_OF(uint16_t, kUInt16);
HEADRACE_DATA_TYPE_OF(uint32_t, kUInt32);
HEADRACE_DATA_TYPE_OF(uint64_t, kUInt64);
HEADRACE_DATA_TYPE_OF(float16, kFloat16);
HEADRACE_DATA_TYPE_OF(bfloat16, kBFloat16);
HEADRACE_DATA_TYPE_OF(float, kFloat32);
HEADRACE_DATA_TYPE_OF(double, kFloat64);
#undef HEADRACE_DATA_TYPE_OF

}  // namespace headrace
