// lstm_unit: one step of an LSTM, from its sums.
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/vector_math.h"

namespace headrace::ops {
namespace {

// The activated gates of some elements of a row of X, in Fluid's order.
template <typename T>
struct Gates {
  static constexpr int64_t kMost = 64;  // elements

  Gates(const T* x, int64_t width, int64_t n, T forget_bias) {
    VectorSigmoid(n, x, input);
    for (int64_t i = 0; i < n; ++i) {
      forget[i] = x[width + i] + forget_bias;
    }
    VectorSigmoid(n, forget, forget);
    VectorSigmoid(n, x + 2 * width, output);
    VectorTanh(n, x + 3 * width, candidate);
  }

  T input[kMost];
  T forget[kMost];
  T output[kMost];
  T candidate[kMost];
};

// Calls visit(row, first element, number of elements) for parts of rows, from several threads.
template <typename T, typename Visit>
void ForEachPartOfRows(int64_t rows, int64_t width, const Visit& visit) {
  ParallelFor(rows, RowsPerBlock(64 * width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < width; i += Gates<T>::kMost) {
        visit(r, i, std::min(Gates<T>::kMost, width - i));
      }
    }
  });
}

template <typename T>
void LstmUnitKernel(const ExecutionContext& ctx) {
  const LoDTensor& before_tensor = ctx.Input("C_prev");
  const int64_t width = before_tensor.dims()[1];
  const auto forget_bias = static_cast<T>(ctx.Attr<double>("forget_bias"));
  T* c = ctx.Output("C")->mutable_data<T>();
  T* h = ctx.Output("H")->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* before = before_tensor.data<T>();
  ForEachPartOfRows<T>(before_tensor.dims()[0], width, [=](int64_t r, int64_t first, int64_t n) {
    const Gates<T> g(x + r * 4 * width + first, width, n, forget_bias);
    const int64_t at = r * width + first;
    T tanh_c[Gates<T>::kMost];
    for (int64_t i = 0; i < n; ++i) {
      c[at + i] = g.forget[i] * before[at + i] + g.input[i] * g.candidate[i];
    }
    VectorTanh(n, c + at, tanh_c);
    for (int64_t i = 0; i < n; ++i) {
      h[at + i] = g.output[i] * tanh_c[i];
    }
  });
}

template <typename T>
void LstmUnitGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& before_tensor = ctx.Input("C_prev");
  const int64_t width = before_tensor.dims()[1];
  const auto forget_bias = static_cast<T>(ctx.Attr<double>("forget_bias"));
  T* dx = MutableOrNull<T>(ctx, "X@GRAD");
  T* d_before = MutableOrNull<T>(ctx, "C_prev@GRAD");
  const T* x = ctx.Input("X").data<T>();
  const T* before = before_tensor.data<T>();
  const T* c = ctx.Input("C").data<T>();
  const T* dc = ElementsOrNull<T>(ctx, "C@GRAD");
  const T* dh = ElementsOrNull<T>(ctx, "H@GRAD");
  ForEachPartOfRows<T>(before_tensor.dims()[0], width, [=](int64_t r, int64_t first, int64_t n) {
    const Gates<T> g(x + r * 4 * width + first, width, n, forget_bias);
    T tanh_c[Gates<T>::kMost];
    VectorTanh(n, c + r * width + first, tanh_c);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = r * width + first + i;
      const T d_hidden = dh == nullptr ? T(0) : dh[at];
      const T d_state = (dc == nullptr ? T(0) : dc[at]) + d_hidden * g.output[i] * (1 - tanh_c[i] * tanh_c[i]);
      if (dx != nullptr) {
        T* to = dx + r * 4 * width + first + i;
        to[0] = d_state * g.candidate[i] * g.input[i] * (1 - g.input[i]);
        to[width] = d_state * before[at] * g.forget[i] * (1 - g.forget[i]);
        to[2 * width] = d_hidden * tanh_c[i] * g.output[i] * (1 - g.output[i]);
        to[3 * width] = d_state * g.input[i] * (1 - g.candidate[i] * g.candidate[i]);
      }
      if (d_before != nullptr) {
        d_before[at] = d_state * g.forget[i];
      }
    }
  });
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
