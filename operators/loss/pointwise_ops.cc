// Functions of several elements at the same place: minus, and the losses log_loss, hinge_loss, huber_loss,
// modified_huber_loss, rank_loss, margin_rank_loss.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/sigmoid.h"

namespace headrace::ops {
namespace {

constexpr size_t kMaxInputs = 3;

struct Pointwise {
  std::string type;
  std::string comment;
  std::vector<HashedName> inputs;  // all of the same dims and dtype
  std::vector<HashedName> by;      // those that the result is differentiable by
  HashedName out;                  // of the same dims
  HashedName intermediate;         // another result of the same dims, Fluid's; empty: there is none
  HashedName attr;                 // the only attribute; empty: there is none
  std::string attr_comment;
  double default_value = 0;
  bool mixes_columns = false;  // whether inputs may be [N, 1] or [N] each
  bool keeps_lod = true;       // whether results have the LoD of the first input, as in Fluid
};

// Calls visit(place, its element of each input), on several threads, in a loop that the compiler vectorises where it
// can. Elements that an operator has no input for are those of its first one.
template <typename T, typename Visit>
void ForEachPlace(const ExecutionContext& ctx, const Pointwise& op, const Visit& visit) {
  static_assert(kMaxInputs == 3);
  const auto data = [&](size_t k) { return ctx.Input(op.inputs[k < op.inputs.size() ? k : 0]).template data<T>(); };
  const T* first = data(0);
  const T* second = data(1);
  const T* third = data(2);
  ParallelFor(ctx.Input(op.inputs[0]).numel(), kElementsPerBlock / 4, [=](int64_t begin, int64_t end) {
    HEADRACE_INDEPENDENT_ITERATIONS
    for (int64_t i = begin; i < end; ++i) {
      visit(i, std::array<T, kMaxInputs>{first[i], second[i], third[i]});
    }
  });
}

template <typename T>
T AttrOf(const ExecutionContext& ctx, const Pointwise& op) {
  return op.attr.empty() ? T(0) : static_cast<T>(ctx.Attr<double>(op.attr));
}

template <typename T, typename Value, typename Intermediate>
void PointwiseKernel(const ExecutionContext& ctx, const Pointwise& op, Value value, Intermediate intermediate) {
  T* out = ctx.Output(op.out)->mutable_data<T>();
  LoDTensor* between = op.intermediate.empty() ? nullptr : ctx.OutputOrNull(op.intermediate);
  T* to = between == nullptr ? nullptr : between->mutable_data<T>();
  const T attr = AttrOf<T>(ctx, op);
  ForEachPlace<T>(ctx, op, [=](int64_t i, const auto& v) { out[i] = value(v, attr); });
  if (to != nullptr) {
    ForEachPlace<T>(ctx, op, [=](int64_t i, const auto& v) { to[i] = intermediate(v, attr); });
  }
}

template <typename T, typename Derivative>
void PointwiseGradKernel(const ExecutionContext& ctx, const Pointwise& op, Derivative derivative) {
  const T* d = ctx.Input(Grad(op.out)).data<T>();
  const T attr = AttrOf<T>(ctx, op);
  for (size_t k = 0; k < op.inputs.size(); ++k) {
    if (LoDTensor* grad = ctx.OutputOrNull(Grad(op.inputs[k]))) {
      T* to = grad->mutable_data<T>();
      ForEachPlace<T>(ctx, op, [=](int64_t i, const auto& v) { to[i] = d[i] * derivative(v, attr, k); });
    }
  }
}

void EnforceLikeFirst(const InferShapeContext& ctx, const Pointwise& op, HashedName slot) {
  DDim dims = ctx.InputDim(op.inputs[0]);
  const size_t rank = ctx.InputDim(slot).size();
  if (op.mixes_columns && dims.size() == 2 && rank == 1 && Fits(dims[1], 1)) {
    dims.pop_back();
  } else if (op.mixes_columns && dims.size() == 1 && rank == 2) {
    dims.push_back(1);
  }
  EnforceDims(ctx, slot, dims);
  EnforceSameType(ctx, slot, op.inputs[0]);
}

// `value`(v, attr) and `intermediate`(v, attr) of v, an element of each input; `derivative`(v, attr, k) by input k.
template <typename Value, typename Derivative, typename Intermediate>
void Register(const Pointwise& op, Value value, Derivative derivative, Intermediate intermediate) {
  OpRegistrar forward(op.type);
  OpRegistrar backward(op.type + "_grad");
  (void)More(forward).Comment(op.comment + ", element by element.");
  (void)More(backward).Comment("Gradient of " + op.type + ".");
  GradientUses uses;
  const std::string first = op.inputs[0].ToString();
  for (const HashedName slot : op.inputs) {
    const std::string input = slot.ToString();
    uses.inputs.push_back(input);
    (void)More(forward).Input(input, (input == first ? "any shape" : "dims and dtype of " + first) +
                                         (op.mixes_columns ? "; [N] counts as [N, 1]" : ""));
    (void)More(backward).Input(input, "as in the operator");
    if (std::find(op.by.begin(), op.by.end(), slot) != op.by.end()) {
      (void)More(backward).Output(GradVarName(input), "dims of " + input, kDispensable);
    } else {
      uses.no_gradient.push_back(input);
    }
  }
  const std::string out = op.out.ToString();
  (void)More(forward).Output(out, (op.keeps_lod ? "dims, dtype and LoD of " : "dims and dtype of ") + first);
  (void)More(backward).Input(GradVarName(out), "gradient of " + out);
  if (!op.intermediate.empty()) {
    const std::string intermediate_slot = op.intermediate.ToString();
    (void)More(forward).Output(intermediate_slot, "dims of " + first + "; Fluid's", kDispensable);
    (void)More(backward).Input(GradVarName(intermediate_slot), "not used", kDispensable);
  }
  if (!op.attr.empty()) {
    const std::string attr = op.attr.ToString();
    (void)More(forward).Attr<double>(attr, op.attr_comment, op.default_value);
    (void)More(backward).Attr<double>(attr, op.attr_comment, op.default_value);
  }
  More(forward)
      .InferShape([op](InferShapeContext& ctx) {
        for (const HashedName input : op.inputs) {
          EnforceLikeFirst(ctx, op, input);
        }
        for (const HashedName result : {op.out, op.intermediate}) {
          if (result.empty()) {
            continue;
          }
          if (op.keeps_lod) {
            ctx.ShareAll(op.inputs[0], result);
          } else {
            SetOutput(ctx, result, ctx.InputDim(op.inputs[0]), ctx.InputType(op.inputs[0]));
          }
        }
      })
      .template Kernel<float>(
          [=](const ExecutionContext& ctx) { PointwiseKernel<float>(ctx, op, value, intermediate); })
      .template Kernel<double>(
          [=](const ExecutionContext& ctx) { PointwiseKernel<double>(ctx, op, value, intermediate); })
      .Gradient(DefaultGradient(uses))
      .Register();
  More(backward)
      .InferShape([op](InferShapeContext& ctx) {
        for (const HashedName input : op.inputs) {
          EnforceLikeFirst(ctx, op, input);
        }
        EnforceLikeFirst(ctx, op, Grad(op.out));
        for (const HashedName input : op.by) {
          InferGradients(ctx, {input});
        }
      })
      .template Kernel<float>([=](const ExecutionContext& ctx) { PointwiseGradKernel<float>(ctx, op, derivative); })
      .template Kernel<double>([=](const ExecutionContext& ctx) { PointwiseGradKernel<double>(ctx, op, derivative); })
      .Register();
}

constexpr auto kNone = [](const auto& v, auto) { return v[0]; };

// Huber's loss of a residual, and its derivative.
template <typename T>
T Huber(T r, T delta) {
  return std::abs(r) <= delta ? r * r / 2 : delta * (std::abs(r) - delta / 2);
}
template <typename T>
T HuberDerivative(T r, T delta) {
  return std::abs(r) <= delta ? r : r > 0 ? delta : -delta;
}

HEADRACE_REGISTER_OPS(pointwise_ops) {
  Register(
      {"minus", "X - Y", {"X", "Y"}, {"X", "Y"}, "Out", "", "", ""}, [](const auto& v, auto) { return v[0] - v[1]; },
      [](const auto& v, auto, size_t k) { return decltype(v[0] + 0)(k == 0 ? 1 : -1); }, kNone);
  Register(
      {"log_loss",
       "-Labels * log(Predicted + epsilon) - (1 - Labels) * log(1 - Predicted + epsilon)",
       {"Predicted", "Labels"},
       {"Predicted"},
       "Loss",
       "",
       "epsilon",
       "keeps the logarithms finite",
       1e-4},
      [](const auto& v, auto e) { return -v[1] * Log(v[0] + e) - (1 - v[1]) * Log(1 - v[0] + e); },
      [](const auto& v, auto e, size_t) { return -v[1] / (v[0] + e) + (1 - v[1]) / (1 - v[0] + e); }, kNone);
  Register(
      {"hinge_loss", "max(0, 1 - (2 Labels - 1) Logits)", {"Logits", "Labels"}, {"Logits"}, "Loss", "", "", ""},
      [](const auto& v, auto zero) { return std::max(zero, 1 - (2 * v[1] - 1) * v[0]); },
      [](const auto& v, auto zero, size_t) { return (2 * v[1] - 1) * v[0] < 1 ? 1 - 2 * v[1] : zero; }, kNone);
  Register(
      {"huber_loss",
       "With r = Y - X: r^2 / 2 where |r| <= delta, else delta (|r| - delta / 2)",
       {"X", "Y"},
       {"X", "Y"},
       "Out",
       "Residual",
       "delta",
       "where the loss becomes linear",
       1.0},
      [](const auto& v, auto delta) { return Huber(v[1] - v[0], delta); },
      [](const auto& v, auto delta, size_t k) {
        const auto derivative = HuberDerivative(v[1] - v[0], delta);
        return k == 0 ? -derivative : derivative;
      },
      [](const auto& v, auto) { return v[1] - v[0]; });
  Register(
      {"modified_huber_loss",
       "With m = (2 Y - 1) X: -4 m where m < -1, (1 - m)^2 where m < 1, else 0",
       {"X", "Y"},
       {"X"},
       "Out",
       "IntermediateVal",
       "",
       "",
       0.0,
       false,
       false},
      [](const auto& v, auto zero) {
        const auto m = (2 * v[1] - 1) * v[0];
        return m < -1 ? -4 * m : m < 1 ? (1 - m) * (1 - m) : zero;
      },
      [](const auto& v, auto zero, size_t) {
        const auto y = 2 * v[1] - 1;
        const auto m = y * v[0];
        return m < -1 ? -4 * y : m < 1 ? -2 * (1 - m) * y : zero;
      },
      [](const auto& v, auto) { return (2 * v[1] - 1) * v[0]; });
  Register(
      {"rank_loss",
       "log(1 + exp(o)) - Label * o, with o = Left - Right (C. Burges et al., RankNet, 2005)",
       {"Label", "Left", "Right"},
       {"Left", "Right"},
       "Out",
       "",
       "",
       "",
       0.0,
       true,
       false},
      [](const auto& v, auto) { return Softplus(v[1] - v[2]) - v[0] * (v[1] - v[2]); },
      [](const auto& v, auto, size_t k) {
        const auto derivative = Sigmoid(v[1] - v[2]) - v[0];
        return k == 1 ? derivative : -derivative;
      },
      kNone);
  Register(
      {"margin_rank_loss",
       "max(0, margin - Label (X1 - X2))",
       {"X1", "X2", "Label"},
       {"X1", "X2"},
       "Out",
       "Activated",
       "margin",
       "by how much they should differ",
       0.0,
       false,
       false},
      [](const auto& v, auto margin) { return std::max(decltype(margin)(0), margin - v[2] * (v[0] - v[1])); },
      [](const auto& v, auto margin, size_t k) {
        const auto derivative = margin - v[2] * (v[0] - v[1]) > 0 ? v[2] : decltype(margin)(0);
        return k == 0 ? -derivative : derivative;
      },
      [](const auto& v, auto margin) { return decltype(margin)(margin - v[2] * (v[0] - v[1]) > 0); });
}

}  // namespace
}  // namespace headrace::ops
