#include "framework/data_type.h"

#include <algorithm>
#include <array>

#include "framework/errors.h"

namespace headrace {
namespace {

struct TypeInfo {
  DataType type;
  size_t size;
  std::string_view name;
};

constexpr std::array<TypeInfo, 13> kTypes = {{
    {DataType::kBool, 1, "bool"},
    {DataType::kInt8, 1, "int8"},
    {DataType::kInt16, 2, "int16"},
    {DataType::kInt32, 4, "int32"},
    {DataType::kInt64, 8, "int64"},
    {DataType::kUInt8, 1, "uint8"},
    {DataType::kUInt16, 2, "uint16"},
    {DataType::kUInt32, 4, "uint32"},
    {DataType::kUInt64, 8, "uint64"},
    {DataType::kFloat16, 2, "float16"},
    {DataType::kBFloat16, 2, "bfloat16"},
    {DataType::kFloat32, 4, "float32"},
    {DataType::kFloat64, 8, "float64"},
}};
static_assert(sizeof(bool) == 1 && sizeof(float) == 4 && sizeof(double) == 8);

const TypeInfo& InfoOf(DataType type) {
  const auto* it = std::find_if(kTypes.begin(), kTypes.end(), [type](const TypeInfo& t) { return t.type == type; });
  HR_ENFORCE(it != kTypes.end(), InvalidArgument, static_cast<int32_t>(type), " is not a data type");
  return *it;
}

}  // namespace

size_t SizeOf(DataType type) {
  // Called for every access to a tensor; the table is for the rest.
  switch (type) {
    case DataType::kFloat32:
    case DataType::kInt32:
      return 4;
    case DataType::kFloat64:
    case DataType::kInt64:
      return 8;
    default:
      return InfoOf(type).size;
  }
}

std::string_view DataTypeName(DataType type) { return InfoOf(type).name; }

DataType DataTypeFromName(std::string_view name) {
  const auto* it = std::find_if(kTypes.begin(), kTypes.end(), [name](const TypeInfo& t) { return t.name == name; });
  HR_ENFORCE(it != kTypes.end(), InvalidArgument, "unknown data type '", name, "'");
  return it->type;
}

bool MayBeGivenAs(DataType declared, DataType given) {
  if (declared == given) {
    return true;
  }
  switch (given) {
    case DataType::kInt8:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kUInt8:
    case DataType::kUInt16:
    case DataType::kUInt32:
    case DataType::kUInt64:
    case DataType::kBool:
      return declared != DataType::kBool;
    case DataType::kFloat32:
      return declared == DataType::kFloat64;
    default:
      return false;
  }
}

bool IsDataType(int32_t value) {
  return std::any_of(kTypes.begin(), kTypes.end(),
                     [value](const TypeInfo& t) { return static_cast<int32_t>(t.type) == value; });
}

}  // namespace headrace
