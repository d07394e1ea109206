// What operators with two inputs share, of which Y is broadcast into X.
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

namespace headrace::ops {

// The dims of Y as they lie under those of X: Y's, with ones on both sides. Throws InvalidArgument if they do not fit.
// Where both have dims that only the run knows, both hang on what is fed, whose extents may differ from those declared:
// then only the run compares them. Where they are the same, `axis` makes no difference, as in Fluid. `x_name` and
// `y_name` are the slots in the messages.
inline DDim AlignY(const DDim& x, const DDim& y, int32_t axis, const char* x_name = "X", const char* y_name = "Y") {
  HR_ENFORCE(y.size() <= x.size(), InvalidArgument, "input ", y_name, ": expected no more dimensions than ", x_name,
             " of dims ", ToString(x), " has, got dims ", ToString(y));
  HR_ENFORCE(axis >= -1, InvalidArgument, "attribute axis: expected -1 or a dimension of ", x_name, ", got ", axis);
  const size_t begin = axis == -1 || x == y ? x.size() - y.size() : static_cast<size_t>(axis);
  size_t rank = y.size();
  while (rank > 0 && y[rank - 1] == 1) {
    --rank;
  }
  HR_ENFORCE(begin + rank <= x.size(), InvalidArgument, "attribute axis: ", y_name, " of dims ", ToString(y),
             " does not fit into ", x_name, " of dims ", ToString(x), " at axis ", axis);
  const auto hangs_on_feeds = [](const DDim& dims) { return std::find(dims.begin(), dims.end(), -1) != dims.end(); };
  const bool compared = !(hangs_on_feeds(x) && hangs_on_feeds(y));
  DDim aligned(x.size(), 1);
  for (size_t d = 0; d < rank; ++d) {
    HR_ENFORCE(!compared || y[d] == 1 || Fits(y[d], x[begin + d]), InvalidArgument, "input ", y_name, ": expected ",
               x[begin + d], " or 1 for dimension ", d, " of dims ", ToString(y), ", as ", x_name, " has dims ",
               ToString(x), " and axis is ", axis);
    aligned[begin + d] = y[d];
  }
  return aligned;
}

// How the elements of a tensor of dims `y` meet those of one of dims `x`.
inline BroadcastPlan PlanOf(const DDim& x, const DDim& y, int32_t axis) {
  const DDim aligned = AlignY(x, y, axis);
  PoolVector<bool> kept(x.size());
  for (size_t d = 0; d < x.size(); ++d) {
    kept[d] = aligned[d] != 1;
  }
  return BroadcastPlan(x, kept);
}

// How the elements of Y meet those of X.
inline BroadcastPlan PlanOf(const ExecutionContext& ctx) {
  return PlanOf(ctx.Input("X").dims(), ctx.Input("Y").dims(), ctx.Attr<int32_t>("axis"));
}

inline OpRegistrar&& AxisAttr(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("axis",
                                     "the dimension of X at which the dims of Y begin; -1: they are the last ones", -1);
}

// Writes function(x, y) for each element of X and the element of Y that it meets.
template <typename T, typename Out, typename Function>
void ForEachPair(const ExecutionContext& ctx, Function&& function) {
  const BroadcastPlan plan = PlanOf(ctx);
  Out* out = ctx.Output("Out")->mutable_data<Out>();
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  plan.ForEachRunInParallel([=](int64_t at, int64_t y_at, int64_t n, bool kept) {
    if (kept) {
      for (int64_t i = 0; i < n; ++i) {
        out[at + i] = function(x[at + i], y[y_at + i]);
      }
    } else {
      const T y_value = y[y_at];
      for (int64_t i = 0; i < n; ++i) {
        out[at + i] = function(x[at + i], y_value);
      }
    }
  });
}

}  // namespace headrace::ops
