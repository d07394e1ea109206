// The output of an operator that makes all its elements from nothing. It may be SelectedRows, of which all rows of a
// table are made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "operators/common/op_args.h"

namespace headrace::ops {

// In shape inference, after its shape is set: Out stays SelectedRows if it is declared so.
inline void KeepSelectedRows(InferShapeContext& ctx) {
  if (ctx.OutputIsSelectedRows("Out")) {
    ctx.SetOutputSelectedRows("Out");
  }
}

// The value of the SelectedRows in Out, of the shape that the operator is given. There have to be as many rows as that
// says; if there are none yet, they are 0, 1, …. Throws InvalidArgument.
inline LoDTensor* RowsToFill(const ExecutionContext& ctx) {
  const DDim dims = OpArgs(ctx).Shape();
  SelectedRows* out = ctx.OutputRows("Out");
  PoolVector<int64_t>& rows = *out->mutable_rows();
  HR_ENFORCE(!dims.empty(), InvalidArgument, "attribute shape: expected at least one dimension, for SelectedRows");
  if (rows.empty()) {
    rows.resize(static_cast<size_t>(dims[0]));
    std::iota(rows.begin(), rows.end(), int64_t{0});
  }
  HR_ENFORCE(static_cast<int64_t>(rows.size()) == dims[0], InvalidArgument,
             "attribute shape: expected a first dimension of ", rows.size(), ", as many as output Out has rows, got ",
             ToString(dims));
  LoDTensor* value = out->mutable_value();
  value->Resize(dims);
  return value;
}

}  // namespace headrace::ops
