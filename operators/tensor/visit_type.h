// From a DataType that is only known at run time to a C++ type.
#pragma once

#include <cstdint>
#include <string_view>

#include "framework/data_type.h"
#include "framework/errors.h"

namespace headrace::ops {

// Calls visit(T{}) with the C++ type T of `type`: float, double, int32_t, int64_t, uint8_t or bool. Throws
// Unimplemented naming the attribute `attr`, which holds `type`, for others.
template <typename Visit>
void VisitType(DataType type, HashedName attr, Visit&& visit) {
  switch (type) {
    case DataType::kFloat32:
      return visit(float{});
    case DataType::kFloat64:
      return visit(double{});
    case DataType::kInt32:
      return visit(int32_t{});
    case DataType::kInt64:
      return visit(int64_t{});
    case DataType::kUInt8:
      return visit(uint8_t{});
    case DataType::kBool:
      return visit(bool{});
    default:
      Throw<Unimplemented>("attribute ", attr, ": expected float32, float64, int32, int64, uint8 or bool, got ",
                           DataTypeName(type));
  }
}

// The same of all types. Throws InvalidArgument for what is none.
template <typename Visit>
void VisitEveryType(DataType type, Visit&& visit) {
  switch (type) {
    case DataType::kBool:
      return visit(bool{});
    case DataType::kInt16:
      return visit(int16_t{});
    case DataType::kInt32:
      return visit(int32_t{});
    case DataType::kInt64:
      return visit(int64_t{});
    case DataType::kFloat16:
      return visit(float16{});
    case DataType::kFloat32:
      return visit(float{});
    case DataType::kFloat64:
      return visit(double{});
    case DataType::kUInt8:
      return visit(uint8_t{});
    case DataType::kInt8:
      return visit(int8_t{});
    case DataType::kBFloat16:
      return visit(bfloat16{});
    case DataType::kUInt16:
      return visit(uint16_t{});
    case DataType::kUInt32:
      return visit(uint32_t{});
    case DataType::kUInt64:
      return visit(uint64_t{});
  }
  Throw<InvalidArgument>("there is no dtype ", static_cast<int32_t>(type));
}

}  // namespace headrace::ops
