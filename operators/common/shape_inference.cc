#include "operators/common/shape_inference.h"

#include <algorithm>
#include <cmath>

#include "framework/errors.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {

void CheckEpsilon(const double& value) {
  HR_ENFORCE(value >= 0 && std::isfinite(value), InvalidArgument, "attribute epsilon: expected a number >= 0, got ",
             value);
}

void EnforceRank(const InferShapeContext& ctx, HashedName slot, size_t rank, size_t i) {
  const DDim dims = ctx.InputDim(slot, i);
  HR_ENFORCE(dims.size() == rank, InvalidArgument, "input ", slot, ": expected a tensor of rank ", rank, ", got dims ",
             ToString(dims));
}

void EnforceRankAtLeast(const InferShapeContext& ctx, HashedName slot, size_t rank, size_t i) {
  const DDim dims = ctx.InputDim(slot, i);
  HR_ENFORCE(dims.size() >= rank, InvalidArgument, "input ", slot, ": expected a tensor of rank ", rank,
             " or more, got dims ", ToString(dims));
}

void EnforceDims(const InferShapeContext& ctx, HashedName slot, const DDim& expected, size_t i) {
  const DDim dims = ctx.InputDim(slot, i);
  bool fits = dims.size() == expected.size();
  for (size_t d = 0; fits && d < dims.size(); ++d) {
    fits = Fits(dims[d], expected[d]);
  }
  HR_ENFORCE(fits, InvalidArgument, "input ", slot, ": expected dims ", ToString(expected), ", got ", ToString(dims));
}

void EnforceElements(const InferShapeContext& ctx, HashedName slot, int64_t count) {
  const DDim dims = ctx.InputDim(slot);
  const bool is_line = !dims.empty() && std::count_if(dims.begin(), dims.end(), [](int64_t d) { return d > 1; }) <= 1;
  HR_ENFORCE(is_line && Fits(Numel(dims), count), InvalidArgument, "input ", slot, ": expected dims ",
             ToString(DDim{count, 1}), " or as many elements in a row, got ", ToString(dims));
}

void EnforceType(const InferShapeContext& ctx, HashedName slot, DataType expected, size_t i) {
  const DataType dtype = ctx.InputType(slot, i);
  HR_ENFORCE(dtype == expected, TypeMismatch, "input ", slot, ": expected dtype ", DataTypeName(expected), ", got ",
             DataTypeName(dtype));
}

void EnforceSameType(const InferShapeContext& ctx, HashedName slot, HashedName like, size_t i) {
  const DataType dtype = ctx.InputType(slot, i);
  const DataType expected = ctx.InputType(like);
  HR_ENFORCE(dtype == expected, TypeMismatch, "input ", slot, ": expected dtype ", DataTypeName(expected), " as input ",
             like, " has, got ", DataTypeName(dtype));
}

bool MayBeFedOtherwise(const InferShapeContext& ctx, HashedName slot) {
  const VarDesc* declared = ctx.InputDesc(slot);
  return declared != nullptr && declared->MayBeFedOtherwise();
}

void EnforceIntegers(const InferShapeContext& ctx, HashedName slot) {
  const DataType dtype = ctx.InputType(slot);
  HR_ENFORCE(dtype == DataType::kInt32 || dtype == DataType::kInt64, TypeMismatch, "input ", slot,
             ": expected dtype int32 or int64, got ", DataTypeName(dtype));
}

void EnforceScalar(const InferShapeContext& ctx, HashedName slot) {
  const DDim dims = ctx.InputDim(slot);
  HR_ENFORCE(Fits(Numel(dims), 1), InvalidArgument, "input ", slot, ": expected a single element, got dims ",
             ToString(dims));
  const DataType dtype = ctx.InputType(slot);
  HR_ENFORCE(dtype == DataType::kFloat32 || dtype == DataType::kFloat64, TypeMismatch, "input ", slot,
             ": expected dtype float32 or float64, got ", DataTypeName(dtype));
}

void EnforceLevelsAtMost(const InferShapeContext& ctx, HashedName slot, int32_t max) {
  const int32_t levels = ctx.InputLoDLevel(slot);
  HR_ENFORCE(levels <= max, InvalidArgument, "input ", slot, ": expected a LoD of ",
             max == 1 ? "one level" : StrCat(max, " levels"), " at most, got ", levels);
}

size_t FrontAxis(int64_t axis, size_t rank, HashedName attr) {
  const auto signed_rank = static_cast<int64_t>(rank);
  HR_ENFORCE(-signed_rank <= axis && axis < signed_rank, InvalidArgument, "attribute ", attr,
             ": expected a dimension in [", -signed_rank, ", ", signed_rank, ") of a tensor of rank ", rank, ", got ",
             axis);
  return static_cast<size_t>(axis < 0 ? axis + signed_rank : axis);
}

void SetOutput(InferShapeContext& ctx, HashedName slot, const DDim& dims, DataType dtype, size_t i) {
  ctx.SetOutputDim(slot, dims, i);
  ctx.SetOutputType(slot, dtype, i);
}

void InferGradients(InferShapeContext& ctx, HashedNames slots) {
  for (const HashedName slot : slots) {
    if (ctx.HasInput(slot)) {
      SetOutput(ctx, Grad(slot), ctx.InputDim(slot), ctx.InputType(slot));
    }
  }
}

DataType TypeAttr(const InferShapeContext& ctx, HashedName attr) {
  const int32_t value = ctx.Attr<int32_t>(attr);
  HR_ENFORCE(IsDataType(value), InvalidArgument, "attribute ", attr, ": expected the number of a dtype, got ", value);
  return static_cast<DataType>(value);
}

}  // namespace headrace::ops
