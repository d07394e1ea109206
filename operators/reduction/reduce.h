// What operators share that reduce a tensor along some of its dimensions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/broadcast.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {

// Which dimensions of `x` stay.
inline PoolVector<bool> KeptDims(const AttributeIndex& op, const DDim& x) {
  PoolVector<bool> kept(x.size(), !op.Attr<bool>("reduce_all"));
  if (op.Attr<bool>("reduce_all")) {
    return kept;
  }
  const auto& dims = op.Attr<std::vector<int32_t>>("dim");
  HR_ENFORCE(!dims.empty(), InvalidArgument, "attribute dim: expected at least one dimension, or reduce_all");
  for (const int32_t dim : dims) {
    const size_t d = FrontAxis(dim, x.size(), "dim");
    HR_ENFORCE(kept[d], InvalidArgument, "attribute dim: dimension ", d, " is given twice");
    kept[d] = false;
  }
  return kept;
}

inline DDim ReducedDims(const AttributeIndex& op, const DDim& x) {
  const PoolVector<bool> kept = KeptDims(op, x);
  DDim out;
  for (size_t d = 0; d < x.size(); ++d) {
    if (kept[d]) {
      out.push_back(x[d]);
    } else if (op.Attr<bool>("keep_dim")) {
      out.push_back(1);
    }
  }
  if (out.empty()) {
    out.push_back(1);
  }
  return out;
}

// How many elements of `x` make one of the result.
inline int64_t ElementsPerResult(const AttributeIndex& op, const DDim& x) {
  const PoolVector<bool> kept = KeptDims(op, x);
  DDim reduced;
  for (size_t d = 0; d < x.size(); ++d) {
    if (!kept[d]) {
      reduced.push_back(x[d]);
    }
  }
  return Numel(reduced);
}

// x_grad[i] = value(index of the element, index of its result), called from several threads.
template <typename T, typename Value>
void SpreadGradient(const ExecutionContext& ctx, Value&& value) {
  LoDTensor* x_grad = ctx.Output("X@GRAD");
  T* dx = x_grad->mutable_data<T>();
  BroadcastPlan(x_grad->dims(), KeptDims(ctx.attrs(), x_grad->dims()))
      .ForEachRunInParallel([&](int64_t at, int64_t out_at, int64_t n, bool kept) {
        for (int64_t i = 0; i < n; ++i) {
          dx[at + i] = value(at + i, out_at + (kept ? i : 0));
        }
      });
}

// combine(…combine(first, at(0))…, at(n - 1)), in an order that n alone decides on: of kLanes elements side by side,
// which the compiler keeps in vector registers. `combine` is associative and commutative, but for rounding.
template <int64_t kLanes = 64, typename T, typename At, typename Combine>
T Fold(int64_t n, T first, const At& at, const Combine& combine) {
  if constexpr (kLanes > 16) {
    if (n < 4 * kLanes) {
      return Fold<16>(n, first, at, combine);
    }
  }
  int64_t i = 0;
  if (n >= 2 * kLanes) {
    T lanes[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = at(lane);
    }
    for (i = kLanes; i + kLanes <= n; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = combine(lanes[lane], at(i + lane));
      }
    }
    first = combine(first, FoldLanes(lanes, combine));
  }
  for (; i < n; ++i) {
    first = combine(first, at(i));
  }
  return first;
}

// The elements of each result combined, starting with `first`, which combined with anything is that (see Fold).
template <typename T, typename Combine>
void ReduceWith(const ExecutionContext& ctx, T first, const Combine& combine) {
  const LoDTensor& x_tensor = ctx.Input("X");
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  ParallelFill(out, out_tensor->numel(), first);
  BroadcastPlan(x_tensor.dims(), KeptDims(ctx.attrs(), x_tensor.dims()))
      .ReduceInParallel(out, first, combine, [=](T* to, int64_t at, int64_t out_at, int64_t n, bool kept) {
        if (!kept) {
          to[out_at] = Fold(n, to[out_at], [from = x + at](int64_t i) { return from[i]; }, combine);
          return;
        }
        HEADRACE_INDEPENDENT_ITERATIONS
        for (int64_t i = 0; i < n; ++i) {
          to[out_at + i] = combine(to[out_at + i], x[at + i]);
        }
      });
}

inline void InferReduce(InferShapeContext& ctx) {
  SetOutput(ctx, "Out", ReducedDims(ctx.attrs(), ctx.InputDim("X")), ctx.InputType("X"));
  if (const DDim x = ctx.InputDim("X"); !x.empty() && KeptDims(ctx.attrs(), x)[0]) {
    ctx.ShareLoD("X", "Out");
  }
}

inline void InferReduceOfSome(InferShapeContext& ctx) {
  HR_ENFORCE(ElementsPerResult(ctx.attrs(), ctx.InputDim("X")) != 0, InvalidArgument,
             "input X: expected at least one element for each result, got dims ", ToString(ctx.InputDim("X")));
  InferReduce(ctx);
}

inline void InferReduceGrad(InferShapeContext& ctx) {
  const DDim out = ReducedDims(ctx.attrs(), ctx.InputDim("X"));
  for (const HashedName slot : HashedNames{"Out", "Out@GRAD"}) {
    if (ctx.HasInput(slot)) {
      EnforceDims(ctx, slot, out);
      EnforceSameType(ctx, slot, "X");
    }
  }
  InferGradients(ctx, {"X"});
}

inline OpRegistrar&& ReduceAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<std::vector<int32_t>>("dim", "the dimensions to reduce; negative ones count from the back", {0})
      .Attr<bool>("keep_dim", "whether they stay as dimensions of 1", false)
      .Attr<bool>("reduce_all", "whether all dimensions are reduced, whatever dim says", false);
}

inline OpRegistrar&& ReduceSlots(OpRegistrar&& op) {
  return ReduceAttrs(std::move(op))
      .Input("X", "any shape")
      .Output("Out", "dims of X without the reduced ones; [1] if none is left");
}

// `x`: the flags of X, of which some gradients need the shape only.
inline OpRegistrar&& ReduceGradSlots(OpRegistrar&& op, SlotFlags x) {
  return ReduceAttrs(std::move(op))
      .Input("X", "as in the operator", x)
      .Input("Out@GRAD", "gradient of Out")
      .Output("X@GRAD", "dims of X")
      .InferShape(InferReduceGrad);
}

}  // namespace headrace::ops
