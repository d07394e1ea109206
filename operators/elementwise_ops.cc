// elementwise_add, _sub, _mul, _div, _max, _min: Y is broadcast into X.
#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "framework/op_registry.h"
#include "operators/broadcast.h"
#include "operators/kernel_util.h"
#include "operators/reduction.h"

namespace headrace::ops {
namespace {

// The dims of Y as they lie under those of X: Y's, with ones on both sides.
DDim AlignY(const DDim& x, const DDim& y, int32_t axis) {
  HR_ENFORCE(y.size() <= x.size(), InvalidArgument, "input Y: expected no more dimensions than X of dims ", ToString(x),
             " has, got dims ", ToString(y));
  HR_ENFORCE(axis >= -1, InvalidArgument, "attribute axis: expected -1 or a dimension of X, got ", axis);
  const size_t begin = axis == -1 ? x.size() - y.size() : static_cast<size_t>(axis);
  size_t rank = y.size();
  while (rank > 0 && y[rank - 1] == 1) {
    --rank;
  }
  HR_ENFORCE(begin + rank <= x.size(), InvalidArgument, "attribute axis: Y of dims ", ToString(y),
             " does not fit into X of dims ", ToString(x), " at axis ", axis);
  DDim aligned(x.size(), 1);
  for (size_t d = 0; d < rank; ++d) {
    HR_ENFORCE(y[d] == 1 || Fits(y[d], x[begin + d]), InvalidArgument, "input Y: expected ", x[begin + d],
               " or 1 for dimension ", d, " of dims ", ToString(y), ", as X has dims ", ToString(x), " and axis is ",
               axis);
    aligned[begin + d] = y[d];
  }
  return aligned;
}

BroadcastPlan PlanOf(const ExecutionContext& ctx) {
  const DDim& x = ctx.Input("X").dims();
  const DDim y = AlignY(x, ctx.Input("Y").dims(), ctx.Attr<int32_t>("axis"));
  std::vector<bool> kept(x.size());
  for (size_t d = 0; d < x.size(); ++d) {
    kept[d] = y[d] != 1;
  }
  return BroadcastPlan(x, kept);
}

void InferElementwise(InferShapeContext& ctx) {
  EnforceSameType(ctx, "Y", "X");
  const DDim x = ctx.InputDim("X");
  AlignY(x, ctx.InputDim("Y"), ctx.Attr<int32_t>("axis"));
  ctx.ShareAll("X", "Out");
}

void InferElementwiseGrad(InferShapeContext& ctx) {
  AlignY(ctx.InputDim("X"), ctx.InputDim("Y"), ctx.Attr<int32_t>("axis"));
  EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
  EnforceSameType(ctx, "Out@GRAD", "X");
  InferGradients(ctx, {"X", "Y"});
}

template <typename T, typename Operation>
T Wrapped(T x, T y, Operation operation) {
  return static_cast<T>(operation(static_cast<Wrapping<T>>(x), static_cast<Wrapping<T>>(y)));
}

// Each operation: the value, and the derivatives by x and by y times the gradient `d` of the result. NaN comes through.
struct Add {
  template <typename T>
  static T Value(T x, T y) {
    return Wrapped(x, y, [](auto a, auto b) { return a + b; });
  }
  template <typename T>
  static T ByX(T, T, T d) {
    return d;
  }
  template <typename T>
  static T ByY(T, T, T d) {
    return d;
  }
};
struct Sub {
  template <typename T>
  static T Value(T x, T y) {
    return Wrapped(x, y, [](auto a, auto b) { return a - b; });
  }
  template <typename T>
  static T ByX(T, T, T d) {
    return d;
  }
  template <typename T>
  static T ByY(T, T, T d) {
    return -d;
  }
};
struct Mul {
  template <typename T>
  static T Value(T x, T y) {
    return Wrapped(x, y, [](auto a, auto b) { return a * b; });
  }
  template <typename T>
  static T ByX(T, T y, T d) {
    return d * y;
  }
  template <typename T>
  static T ByY(T x, T, T d) {
    return d * x;
  }
};
struct Div {
  template <typename T>
  static T Value(T x, T y) {
    if constexpr (std::is_integral_v<T>) {
      HR_ENFORCE(y != 0, InvalidArgument, "input Y: division of ", x, " by zero");
      if (y == T(-1)) {
        return Sub::Value(T(0), x);  // the smallest integer has no positive counterpart
      }
    }
    return x / y;
  }
  template <typename T>
  static T ByX(T, T y, T d) {
    return d / y;
  }
  template <typename T>
  static T ByY(T x, T y, T d) {
    return -d * (x / y) / y;
  }
};
struct Max {
  template <typename T>
  static T Value(T x, T y) {
    return x > y || IsNaN(x) ? x : y;
  }
  template <typename T>
  static T ByX(T x, T y, T d) {
    return x > y ? d : T(0);
  }
  template <typename T>
  static T ByY(T x, T y, T d) {
    return x > y ? T(0) : d;
  }
};
struct Min {
  template <typename T>
  static T Value(T x, T y) {
    return x < y || IsNaN(x) ? x : y;
  }
  template <typename T>
  static T ByX(T x, T y, T d) {
    return x < y ? d : T(0);
  }
  template <typename T>
  static T ByY(T x, T y, T d) {
    return x < y ? T(0) : d;
  }
};

template <typename T, typename Operation>
void ElementwiseKernel(const ExecutionContext& ctx) {
  const BroadcastPlan plan = PlanOf(ctx);
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  plan.ForEachRun([=](int64_t at, int64_t y_at, int64_t n, bool kept) {
    if (kept) {
      for (int64_t i = 0; i < n; ++i) {
        out[at + i] = Operation::Value(x[at + i], y[y_at + i]);
      }
    } else {
      const T y_value = y[y_at];
      for (int64_t i = 0; i < n; ++i) {
        out[at + i] = Operation::Value(x[at + i], y_value);
      }
    }
  });
}

template <typename T, typename Operation>
void ElementwiseGradKernel(const ExecutionContext& ctx) {
  const BroadcastPlan plan = PlanOf(ctx);
  const T* x = ctx.Input("X").data<T>();
  const T* y = ctx.Input("Y").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  if (LoDTensor* x_grad = ctx.OutputOrNull("X@GRAD")) {
    T* dx = x_grad->mutable_data<T>();
    plan.ForEachRun([=](int64_t at, int64_t y_at, int64_t n, bool kept) {
      for (int64_t i = 0; i < n; ++i) {
        dx[at + i] = Operation::ByX(x[at + i], y[y_at + (kept ? i : 0)], d[at + i]);
      }
    });
  }
  if (LoDTensor* y_grad = ctx.OutputOrNull("Y@GRAD")) {
    T* dy = y_grad->mutable_data<T>();
    std::fill_n(dy, y_grad->numel(), T(0));
    plan.ForEachRun([=](int64_t at, int64_t y_at, int64_t n, bool kept) {
      if (kept) {
        for (int64_t i = 0; i < n; ++i) {
          dy[y_at + i] += Operation::ByY(x[at + i], y[y_at + i], d[at + i]);
        }
      } else {
        dy[y_at] +=
            SumOf<T>(n, [=, y_value = y[y_at]](int64_t i) { return Operation::ByY(x[at + i], y_value, d[at + i]); });
      }
    });
  }
}

OpRegistrar&& AxisAttr(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("axis",
                                     "the dimension of X at which the dims of Y begin; -1: they are the last ones", -1);
}

template <typename Operation>
bool Register(const std::string& name, const std::string& formula) {
  OpRegistrar("elementwise_" + name)
      .Comment(formula + ", element by element. Out may be X.")
      .Input("X", "any shape")
      .Input("Y", "dims that X has from axis on, or 1 in their place; trailing ones may be left out")
      .Output("Out", "dims, dtype and LoD of X")
      .InPlace("Out", "X")
      .With(AxisAttr)
      .InferShape(InferElementwise)
      .template Kernel<float>(ElementwiseKernel<float, Operation>)
      .template Kernel<double>(ElementwiseKernel<double, Operation>)
      .template Kernel<int32_t>(ElementwiseKernel<int32_t, Operation>)
      .template Kernel<int64_t>(ElementwiseKernel<int64_t, Operation>)
      .Gradient(DefaultGradient({.inputs = {"X", "Y"}, .outputs = {}, .no_gradient = {}}))
      .Register();
  OpRegistrar("elementwise_" + name + "_grad")
      .Comment("Gradient of elementwise_" + name + ".")
      .Input("X", "as in the operator")
      .Input("Y", "as in the operator")
      .Input("Out@GRAD", "gradient of Out")
      .Output("X@GRAD", "dims of X", kDispensable)
      .Output("Y@GRAD", "dims of Y, summed over what Y was broadcast to", kDispensable)
      .With(AxisAttr)
      .InferShape(InferElementwiseGrad)
      .template Kernel<float>(ElementwiseGradKernel<float, Operation>)
      .template Kernel<double>(ElementwiseGradKernel<double, Operation>)
      .Register();
  return true;
}

[[maybe_unused]] const bool kRegistered =
    Register<Add>("add", "X + Y") && Register<Sub>("sub", "X - Y") && Register<Mul>("mul", "X * Y") &&
    Register<Div>("div", "X / Y; integers are divided towards zero") &&
    Register<Max>("max", "The greater of X and Y") && Register<Min>("min", "The smaller of X and Y");

}  // namespace
}  // namespace headrace::ops
