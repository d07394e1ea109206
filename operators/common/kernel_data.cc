#include "operators/common/kernel_data.h"

#include <cstddef>

#include "framework/data_type.h"
#include "framework/errors.h"

namespace headrace::ops {

double ScalarInput(const ExecutionContext& ctx, HashedName slot) {
  const LoDTensor& tensor = ctx.Input(slot);
  HR_ENFORCE(tensor.numel() == 1, InvalidArgument, "input ", slot, ": expected a single element, got dims ",
             ToString(tensor.dims()));
  if (tensor.dtype() == DataType::kFloat64) {
    return *tensor.data<double>();
  }
  HR_ENFORCE(tensor.dtype() == DataType::kFloat32, TypeMismatch, "input ", slot,
             ": expected dtype float32 or float64, got ", DataTypeName(tensor.dtype()));
  return static_cast<double>(*tensor.data<float>());
}

PoolVector<int64_t> IntegerInput(const ExecutionContext& ctx, HashedName slot) {
  const LoDTensor& tensor = ctx.Input(slot);
  PoolVector<int64_t> values(static_cast<size_t>(tensor.numel()));
  if (tensor.dtype() == DataType::kInt32) {
    std::copy_n(tensor.data<int32_t>(), tensor.numel(), values.begin());
  } else {
    std::copy_n(tensor.data<int64_t>(), tensor.numel(), values.begin());
  }
  return values;
}

}  // namespace headrace::ops
