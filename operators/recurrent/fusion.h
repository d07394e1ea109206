// What the operators share that join a recurrent operator and what makes its input.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/math/gemm.h"
#include "operators/math/scratch.h"
#include "operators/recurrent/recurrent.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {

// X WeightX and the first elements of Bias, if there is one, in the order of the sequences.
template <typename T>
const T* ProductAndBias(const ExecutionContext& ctx, Tensor* memory) {
  const int64_t rows = ctx.Input("X").dims()[0];
  const DDim& weight = ctx.Input("WeightX").dims();
  T* product = Scratch<T>(memory, MultiplyExtents(rows, weight[1]));
  Gemm<T>(false, false, rows, weight[1], weight[0], T(1), ctx.Input("X").data<T>(), ctx.Input("WeightX").data<T>(),
          false, product);
  AddBias(ElementsOrNull<T>(ctx, "Bias"), rows, weight[1], product);
  return product;
}

inline void CheckProduct(const InferShapeContext& ctx, int64_t width) {
  EnforceRank(ctx, "X", 2);
  EnforceSequences(ctx, "X", 2);
  EnforceDims(ctx, "WeightX", {ctx.InputDim("X")[1], width});
  EnforceSameType(ctx, "WeightX", "X");
}

// Memory that Fluid's kernels write intermediate results to. Its programs name it; here it stays as it is.
inline OpRegistrar&& UnusedOutputs(OpRegistrar&& op, const std::vector<std::string>& slots) {
  for (const std::string& slot : slots) {
    (void)More(op).Output(slot, "not written: memory for intermediate results in Fluid", kDispensable);
  }
  return std::move(op);
}

inline OpRegistrar&& UseSeqAttr(OpRegistrar&& op) {
  return std::move(op).Attr<bool>("use_seq", "not used: whether Fluid computes one sequence after the other", true);
}

}  // namespace headrace::ops
