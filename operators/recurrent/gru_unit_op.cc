// gru_unit: one step of gated recurrent units.
#include <algorithm>
#include <cstdint>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/recurrent/gru_cell.h"
#include "operators/recurrent/recurrent.h"

namespace headrace::ops {
namespace {

// Fluid numbers the activations.
OpRegistrar&& GruUnitAttrs(OpRegistrar&& op) {
  const auto check = [](const int32_t& value) {
    HR_ENFORCE(0 <= value && value <= 3, InvalidArgument,
               "attributes activation and gate_activation: expected a number in [0, 3], got ", value);
  };
  return OriginMode(std::move(op))
      .Attr<int32_t>("activation", "of the candidate: 0 identity, 1 sigmoid, 2 tanh, 3 relu", 2, check)
      .Attr<int32_t>("gate_activation", "of the gates, likewise", 1, check);
}

template <typename T>
GruCell<T> GruUnitCellOf(const ExecutionContext& ctx) {
  return {ctx.Input("Weight").dims()[0], static_cast<Activation>(ctx.Attr<int32_t>("gate_activation")),
          static_cast<Activation>(ctx.Attr<int32_t>("activation")), ctx.Attr<bool>("origin_mode"),
          ctx.Input("Weight").data<T>()};
}

template <typename T>
void GruUnitKernel(const ExecutionContext& ctx) {
  GruCell<T> cell = GruUnitCellOf<T>(ctx);
  const LoDTensor& input = ctx.Input("Input");
  const int64_t rows = input.dims()[0];
  T* gates = ctx.Output("Gate")->mutable_data<T>();
  T* reset = ctx.Output("ResetHiddenPrev")->mutable_data<T>();
  T* hidden = ctx.Output("Hidden")->mutable_data<T>();
  std::copy_n(input.data<T>(), input.numel(), gates);
  AddBias(ElementsOrNull<T>(ctx, "Bias"), rows, 3 * cell.width, gates);
  cell.Step(rows, gates, ctx.Input("HiddenPrev").data<T>(), reset, hidden);
}

template <typename T>
void GruUnitGradKernel(const ExecutionContext& ctx) {
  GruCell<T> cell = GruUnitCellOf<T>(ctx);
  const LoDTensor& gate = ctx.Input("Gate");
  const int64_t rows = gate.dims()[0];
  T* input_grad = MutableOrNull<T>(ctx, "Input@GRAD");
  T* before_grad = ZerosOrNull<T>(ctx, "HiddenPrev@GRAD");
  T* weight_grad = ZerosOrNull<T>(ctx, "Weight@GRAD");
  T* bias_grad = ZerosOrNull<T>(ctx, "Bias@GRAD");
  PoolVector<T> d_gates(static_cast<size_t>(gate.numel()));
  cell.StepBack(rows, gate.data<T>(), ctx.Input("HiddenPrev").data<T>(), ctx.Input("ResetHiddenPrev").data<T>(),
                ctx.Input("Hidden@GRAD").data<T>(), d_gates.data(), before_grad, weight_grad);
  if (bias_grad != nullptr) {
    AddRows(d_gates.data(), rows, 3 * cell.width, bias_grad);
  }
  if (input_grad != nullptr) {
    std::copy_n(d_gates.data(), gate.numel(), input_grad);
  }
}

DDim CheckGruUnit(const InferShapeContext& ctx) {
  EnforceRank(ctx, "Input", 2);
  return CheckGru(ctx, "HiddenPrev", ctx.InputDim("Input")[0]);
}

}  // namespace

HEADRACE_REGISTER_OP(gru_unit)
    .Comment("One step of gru.")
    .Input("Input", "[rows, 3 D]: x of update gate, reset gate and candidate")
    .Input("HiddenPrev", "[rows, D]: h'")
    .Input("Weight", "[D, 3 D], as for gru")
    .Input("Bias", "[1, 3 D]", kDispensable)
    .Output("Gate", "[rows, 3 D]: gates and candidate")
    .Output("ResetHiddenPrev", "[rows, D]: r h'")
    .Output("Hidden", "[rows, D]: h")
    .With(GruUnitAttrs)
    .KernelTypeFrom("Input")
    .InferShape([](InferShapeContext& ctx) {
      const DDim hidden = CheckGruUnit(ctx);
      SetOutput(ctx, "Gate", ctx.InputDim("Input"), ctx.InputType("Input"));
      SetOutput(ctx, "ResetHiddenPrev", hidden, ctx.InputType("Input"));
      SetOutput(ctx, "Hidden", hidden, ctx.InputType("Input"));
    })
    .Kernel<float>(GruUnitKernel<float>)
    .Kernel<double>(GruUnitKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"Input", "HiddenPrev", "Weight", "Bias"},
                               .outputs = {"Gate", "ResetHiddenPrev"},
                               .no_gradient = {}}));

HEADRACE_REGISTER_OP(gru_unit_grad)
    .Comment("Gradient of gru_unit, by way of Hidden.")
    .Input("Input", "as in the operator; only its dims are used", kShapeOnly)
    .Input("HiddenPrev", "as in the operator")
    .Input("Weight", "as in the operator")
    .Input("Bias", "as in the operator; only its dims are used", kDispensable | kShapeOnly)
    .Input("Gate", "as in the operator")
    .Input("ResetHiddenPrev", "as in the operator")
    .Input("Hidden@GRAD", "gradient of Hidden")
    .Input("Gate@GRAD", "not used", kDispensable)
    .Input("ResetHiddenPrev@GRAD", "not used", kDispensable)
    .Output("Input@GRAD", "dims of Input", kDispensable)
    .Output("HiddenPrev@GRAD", "dims of HiddenPrev", kDispensable)
    .Output("Weight@GRAD", "dims of Weight", kDispensable)
    .Output("Bias@GRAD", "dims of Bias", kDispensable)
    .With(GruUnitAttrs)
    .KernelTypeFrom("Input")
    .InferShape([](InferShapeContext& ctx) {
      EnforceLikeInput(ctx, {"ResetHiddenPrev", "Hidden@GRAD"}, CheckGruUnit(ctx));
      EnforceLikeInput(ctx, {"Gate"}, ctx.InputDim("Input"));
      InferGradients(ctx, {"Input", "HiddenPrev", "Weight", "Bias"});
    })
    .Kernel<float>(GruUnitGradKernel<float>)
    .Kernel<double>(GruUnitGradKernel<double>);

}  // namespace headrace::ops
