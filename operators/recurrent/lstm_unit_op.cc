// lstm_unit: one step of an LSTM, from its sums.
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/sigmoid.h"

namespace headrace::ops {
namespace {

// The activated gates of element `i` of a row of X, in Fluid's order.
template <typename T>
struct Gates {
  Gates(const T* x, int64_t width, int64_t i, T forget_bias)
      : input(Sigmoid(x[i])),
        forget(Sigmoid(x[width + i] + forget_bias)),
        output(Sigmoid(x[2 * width + i])),
        candidate(std::tanh(x[3 * width + i])) {}
  T input;
  T forget;
  T output;
  T candidate;
};

template <typename T>
void LstmUnitKernel(const ExecutionContext& ctx) {
  const LoDTensor& before_tensor = ctx.Input("C_prev");
  const int64_t rows = before_tensor.dims()[0];
  const int64_t width = before_tensor.dims()[1];
  const auto forget_bias = static_cast<T>(ctx.Attr<double>("forget_bias"));
  T* c = ctx.Output("C")->mutable_data<T>();
  T* h = ctx.Output("H")->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* before = before_tensor.data<T>();
  for (int64_t r = 0; r < rows; ++r, x += 4 * width) {
    for (int64_t i = 0; i < width; ++i) {
      const Gates<T> g(x, width, i, forget_bias);
      const int64_t at = r * width + i;
      c[at] = g.forget * before[at] + g.input * g.candidate;
      h[at] = g.output * std::tanh(c[at]);
    }
  }
}

template <typename T>
void LstmUnitGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& before_tensor = ctx.Input("C_prev");
  const int64_t rows = before_tensor.dims()[0];
  const int64_t width = before_tensor.dims()[1];
  const auto forget_bias = static_cast<T>(ctx.Attr<double>("forget_bias"));
  T* dx = MutableOrNull<T>(ctx, "X@GRAD");
  T* d_before = MutableOrNull<T>(ctx, "C_prev@GRAD");
  const T* x = ctx.Input("X").data<T>();
  const T* before = before_tensor.data<T>();
  const T* c = ctx.Input("C").data<T>();
  const T* dc = ElementsOrNull<T>(ctx, "C@GRAD");
  const T* dh = ElementsOrNull<T>(ctx, "H@GRAD");
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const Gates<T> g(x + r * 4 * width, width, i, forget_bias);
      const int64_t at = r * width + i;
      const T tanh_c = std::tanh(c[at]);
      const T d_hidden = dh == nullptr ? T(0) : dh[at];
      const T d_state = (dc == nullptr ? T(0) : dc[at]) + d_hidden * g.output * (1 - tanh_c * tanh_c);
      if (dx != nullptr) {
        T* to = dx + r * 4 * width + i;
        to[0] = d_state * g.candidate * g.input * (1 - g.input);
        to[width] = d_state * before[at] * g.forget * (1 - g.forget);
        to[2 * width] = d_hidden * tanh_c * g.output * (1 - g.output);
        to[3 * width] = d_state * g.input * (1 - g.candidate * g.candidate);
      }
      if (d_before != nullptr) {
        d_before[at] = d_state * g.forget;
      }
    }
  }
}

// Checks the inputs that operator and gradient share; returns the dims of the state.
DDim CheckLstmUnit(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 2);
  EnforceRank(ctx, "C_prev", 2);
  const DDim state = ctx.InputDim("C_prev");
  EnforceDims(ctx, "X", {state[0], state[1] < 0 ? -1 : MultiplyExtents(state[1], 4)});
  EnforceSameType(ctx, "C_prev", "X");
  return state;
}

OpRegistrar&& LstmUnitAttr(OpRegistrar&& op) {
  return std::move(op).Attr<double>("forget_bias", "added to the sum of the forget gate", 0.0);
}

}  // namespace

HEADRACE_REGISTER_OP(lstm_unit)
    .Comment("C = sigmoid(f + forget_bias) C_prev + sigmoid(i) tanh(g), H = sigmoid(o) tanh(C).")
    .Input("X", "[rows, 4 D]: the sums of input gate i, forget gate f, output gate o and candidate g")
    .Input("C_prev", "[rows, D]: the state before")
    .Output("C", "[rows, D]")
    .Output("H", "[rows, D]")
    .With(LstmUnitAttr)
    .InferShape([](InferShapeContext& ctx) {
      const DDim state = CheckLstmUnit(ctx);
      for (const HashedName slot : HashedNames{"C", "H"}) {
        SetOutput(ctx, slot, state, ctx.InputType("X"));
      }
    })
    .Kernel<float>(LstmUnitKernel<float>)
    .Kernel<double>(LstmUnitKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "C_prev"}, .outputs = {"C"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(lstm_unit_grad)
    .Comment("Gradient of lstm_unit.")
    .Input("X", "as in the operator")
    .Input("C_prev", "as in the operator")
    .Input("C", "as in the operator")
    .Input("C@GRAD", "gradient of C", kDispensable)
    .Input("H@GRAD", "gradient of H", kDispensable)
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("C_prev@GRAD", "dims of C_prev", kDispensable)
    .With(LstmUnitAttr)
    .InferShape([](InferShapeContext& ctx) {
      const DDim state = CheckLstmUnit(ctx);
      for (const HashedName slot : HashedNames{"C", "C@GRAD", "H@GRAD"}) {
        if (ctx.HasInput(slot)) {
          EnforceDims(ctx, slot, state);
          EnforceSameType(ctx, slot, "X");
        }
      }
      InferGradients(ctx, {"X", "C_prev"});
    })
    .Kernel<float>(LstmUnitGradKernel<float>)
    .Kernel<double>(LstmUnitGradKernel<double>);

}  // namespace headrace::ops
