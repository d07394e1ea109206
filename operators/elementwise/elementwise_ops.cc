// elementwise_add, _sub, _mul, _div, _max, _min, _pow, _mod, _floordiv: Y is broadcast into X.
#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/elementwise/elementwise.h"
#include "operators/elementwise/elementwise_functions.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

void InferElementwise(InferShapeContext& ctx) {
  EnforceSameType(ctx, "Y", "X");
  const DDim x = ctx.InputDim("X");
  const DDim y = ctx.InputDim("Y");
  const bool of_rows = ctx.InputIsSelectedRows("X");
  HR_ENFORCE(of_rows || !ctx.InputIsSelectedRows("Y"), TypeMismatch,
             "input Y: expected a LoDTensor, since X is one, got SelectedRows; get_tensor_from_selected_rows makes one "
             "of them");
  AlignY(x, y, ctx.Attr<int32_t>("axis"));
  ctx.ShareAll("X", "Out");
  if (of_rows && ctx.InputIsSelectedRows("Y")) {
    EnforceDims(ctx, "Y", x);
  } else if (of_rows) {
    HR_ENFORCE(Fits(Numel(y), 1), InvalidArgument,
               "input Y: expected SelectedRows or a single element, since X holds SelectedRows, got dims ",
               ToString(y));
  }
  if (of_rows) {
    ctx.SetOutputSelectedRows("Out");
  }
}

void InferElementwiseGrad(InferShapeContext& ctx) {
  AlignY(ctx.InputDim("X"), ctx.InputDim("Y"), ctx.Attr<int32_t>("axis"));
  EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
  EnforceSameType(ctx, "Out@GRAD", "X");
  InferGradients(ctx, {"X", "Y"});
}

// Selected rows times a single element, as a clipped gradient is, or times others of the same rows.
template <typename T>
void MultiplyRows(const ExecutionContext& ctx) {
  const SelectedRows& x = ctx.InputRows("X");
  SelectedRows* out = ctx.OutputRows("Out");
  const T* from = x.value().data<T>();
  const T* by = nullptr;
  if (ctx.IsSelectedRows("Y")) {
    const SelectedRows& y = ctx.InputRows("Y");
    HR_ENFORCE(x.rows() == y.rows(), InvalidArgument,
               "input Y: expected the rows of X in the same order, got other ones; merge_selected_rows sorts them");
    by = y.value().data<T>();
  }
  const T factor = by == nullptr ? *ctx.Input("Y").data<T>() : T(1);
  out->set_height(x.height());
  *out->mutable_rows() = x.rows();
  T* to = out->mutable_value()->Resize(x.value().dims()).template mutable_data<T>();
  for (int64_t i = 0; i < x.value().numel(); ++i) {
    to[i] = elementwise::Mul::Value(from[i], by == nullptr ? factor : by[i]);
  }
}

template <typename T, typename Operation>
void ElementwiseKernel(const ExecutionContext& ctx) {
  if constexpr (std::is_same_v<Operation, elementwise::Mul>) {
    if (ctx.IsSelectedRows("X")) {
      MultiplyRows<T>(ctx);
      return;
    }
  }
  ForEachPair<T, T>(ctx, [](T x, T y) { return Operation::Value(x, y); });
}

// Of these, gradients depend on that of the result alone.
template <typename Operation>
constexpr bool kIsLinear = std::is_same_v<Operation, elementwise::Add> || std::is_same_v<Operation, elementwise::Sub>;

// X@GRAD comes last: it may be Out@GRAD.
template <typename T, typename Operation>
void ElementwiseGradKernel(const ExecutionContext& ctx) {
  const BroadcastPlan plan = PlanOf(ctx);
  const T* x = kIsLinear<Operation> ? nullptr : ctx.Input("X").data<T>();
  const T* y = kIsLinear<Operation> ? nullptr : ctx.Input("Y").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  if (LoDTensor* y_grad = ctx.OutputOrNull("Y@GRAD")) {
    T* dy = y_grad->mutable_data<T>();
    ParallelFill(dy, y_grad->numel(), T(0));
    const auto by_y = [=](int64_t at, int64_t y_at) {
      return kIsLinear<Operation> ? Operation::ByY(T(), T(), d[at]) : Operation::ByY(x[at], y[y_at], d[at]);
    };
    plan.SumInParallel(dy, [=](T* sums, int64_t at, int64_t y_at, int64_t n, bool kept) {
      if (kept) {
        for (int64_t i = 0; i < n; ++i) {
          sums[y_at + i] += by_y(at + i, y_at + i);
        }
      } else {
        sums[y_at] += ParallelSumOf<T>(n, [=](int64_t i) { return by_y(at + i, y_at); });
      }
    });
  }
  LoDTensor* x_grad = ctx.OutputOrNull("X@GRAD");
  if (x_grad == nullptr) {
    return;
  }
  T* dx = x_grad->mutable_data<T>();
  if constexpr (kIsLinear<Operation>) {
    if (dx != d) {
      ParallelFor(x_grad->numel(), kElementsPerBlock,
                  [=](int64_t begin, int64_t end) { std::copy(d + begin, d + end, dx + begin); });
    }
  } else {
    plan.ForEachRunInParallel([=](int64_t at, int64_t y_at, int64_t n, bool kept) {
      for (int64_t i = 0; i < n; ++i) {
        dx[at + i] = Operation::ByX(x[at + i], y[y_at + (kept ? i : 0)], d[at + i]);
      }
    });
  }
}

template <typename Operation>
constexpr bool kDifferentiable = requires(float v) { Operation::ByX(v, v, v); };

// The gradients U of X@GRAD and V of Y@GRAD give that of Out@GRAD: U + V or U - V.
std::vector<OpDesc> SumGradGradient(const std::string& type, const OpDesc& op) {
  GradientTerms terms(op);
  const std::string to = terms.Wanted("Out@GRAD");
  terms.Add("assign", {{"X", terms.Given("X@GRAD")}}, {{"Out", to}});
  const std::string zeros = terms.Make("fill_zeros_like", {{"X", terms.Value("Out@GRAD")}}, "Out");
  terms.Add(type, {{"X", zeros}, {"Y", terms.Given("Y@GRAD")}}, {{"Out", to}}, terms.Attrs());
  return terms.Take();
}

// With d = Out@GRAD, X@GRAD = d / Y and Y@GRAD = -Σ d · X / Y². So the gradient U of X@GRAD gives U / Y by d and
// -Σ U · d / Y² by Y; V of Y@GRAD gives -X · V / Y² by d, -d · V / Y² by X and Σ 2 d · X · V / Y³ by Y.
std::vector<OpDesc> QuotientGradGradient(const OpDesc& op) {
  GradientTerms terms(op);
  const AttributeMap axis = terms.Attrs();
  const std::string y = terms.Value("Y");
  const std::string d = terms.Value("Out@GRAD");
  const std::string u = terms.Given("X@GRAD");
  const std::string v = terms.Given("Y@GRAD");
  const std::string to = terms.Wanted("Out@GRAD");
  const auto times = [&](const std::string& x, const std::string& by) {
    return terms.Make("elementwise_mul", {{"X", x}, {"Y", by}}, "Out", axis);
  };
  const auto over_y = [&](const std::string& x) {
    return terms.Make("elementwise_div", {{"X", x}, {"Y", y}}, "Out", axis);
  };
  const auto scaled = [&](const std::string& x, double factor) {
    return terms.Make("scale", {{"X", x}}, "Out", {{"scale", factor}});
  };
  const auto add_by_y = [&](const std::string& x) {  // -Σ d · x / Y²
    terms.Add("elementwise_div_grad", {{"X", x}, {"Y", y}, {"Out@GRAD", d}}, {{"Y@GRAD", terms.Wanted("Y")}}, axis);
  };
  terms.Add("elementwise_div", {{"X", u}, {"Y", y}}, {{"Out", to}}, axis);
  add_by_y(u);
  const std::string product = over_y(times(terms.Value("X"), v));
  terms.AddScaled(over_y(product), -1, to);
  add_by_y(scaled(product, -2));
  terms.AddScaled(over_y(over_y(times(d, v))), -1, terms.Wanted("X"));
  return terms.Take();
}

template <typename Operation>
GradientMaker GradientOfElementwiseGrad(const std::string& type) {
  if constexpr (kIsLinear<Operation>) {
    return [type](const OpDesc& op) { return SumGradGradient(type, op); };
  } else if constexpr (std::is_same_v<Operation, elementwise::Mul>) {
    return GradientOfBilinear(type);
  } else if constexpr (std::is_same_v<Operation, elementwise::Div>) {
    return QuotientGradGradient;
  } else {
    return nullptr;
  }
}

template <typename Operation>
void Register(const std::string& name, const std::string& formula) {
  constexpr bool kTakesRows = std::is_same_v<Operation, elementwise::Mul>;
  constexpr unsigned rows = kTakesRows ? kSelectedRows : kPlain;
  OpRegistrar op("elementwise_" + name);
  (void)More(op)
      .Comment(formula + ", element by element. Out may be X.")
      .Input("X",
             kTakesRows ? "any shape; may be SelectedRows if Y is a single element or has the same rows" : "any shape",
             rows)
      .Input("Y", "dims that X has from axis on, or 1 in their place; trailing ones may be left out", rows)
      .Output("Out", "dims, dtype and LoD of X", rows)
      .InPlace("Out", "X")
      .With(AxisAttr)
      .InferShape(InferElementwise)
      .template Kernel<float>(ElementwiseKernel<float, Operation>)
      .template Kernel<double>(ElementwiseKernel<double, Operation>)
      .template Kernel<int32_t>(ElementwiseKernel<int32_t, Operation>)
      .template Kernel<int64_t>(ElementwiseKernel<int64_t, Operation>);
  if constexpr (kDifferentiable<Operation>) {
    (void)More(op).Gradient(DefaultGradient({.inputs = {"X", "Y"}, .outputs = {}, .no_gradient = {}}));
    OpRegistrar("elementwise_" + name + "_grad")
        .Comment("Gradient of elementwise_" + name + ".")
        .Input("X", "as in the operator", kIsLinear<Operation> ? kShapeOnly : kPlain)
        .Input("Y", "as in the operator", kIsLinear<Operation> ? kShapeOnly : kPlain)
        .Input("Out@GRAD", "gradient of Out")
        .Output("X@GRAD", "dims of X; may be Out@GRAD", kDispensable)
        .Output("Y@GRAD", "dims of Y, summed over what Y was broadcast to", kDispensable)
        .InPlace("X@GRAD", "Out@GRAD")
        .With(AxisAttr)
        .InferShape(InferElementwiseGrad)
        .template Kernel<float>(ElementwiseGradKernel<float, Operation>)
        .template Kernel<double>(ElementwiseGradKernel<double, Operation>)
        .Gradient(GradientOfElementwiseGrad<Operation>("elementwise_" + name))
        .Register();
  }
  More(op).Register();
}

HEADRACE_REGISTER_OPS(elementwise_ops) {
  Register<elementwise::Add>("add", "X + Y");
  Register<elementwise::Sub>("sub", "X - Y");
  Register<elementwise::Mul>("mul", "X * Y");
  Register<elementwise::Div>("div", "X / Y; integers are divided towards zero");
  Register<elementwise::Max>("max", "The greater of X and Y");
  Register<elementwise::Min>("min", "The smaller of X and Y");
  Register<elementwise::Pow>("pow", "X to the power of Y; integers without a fraction");
  Register<elementwise::Mod>(
      "mod", "What is left of X / Y, with the sign of Y, or of X if both are integers; not differentiable");
  Register<elementwise::FloorDiv>("floordiv", "X / Y, rounded towards zero; not differentiable");
}

}  // namespace
}  // namespace headrace::ops
