// lstmp: long short-term memory whose result is projected to fewer dimensions (H. Sak, A. Senior and F. Beaufays, Long
// short-term memory recurrent neural network architectures for large scale acoustic modeling, 2014).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/gemm.h"
#include "operators/math/scratch.h"
#include "operators/recurrent/lstm_cell.h"
#include "operators/recurrent/recurrent.h"

namespace headrace::ops {
namespace {

// The rows of `hidden` [rows, width], projected: what the next step sees of them. 0 for `bound`: none.
template <typename T>
void Project(const T* hidden, int64_t rows, int64_t width, const T* weight, int64_t proj_width, Activation activation,
             T bound, T* to) {
  Gemm<T>(false, false, rows, proj_width, width, T(1), hidden, weight, false, to);
  Activate(activation, rows * proj_width, to, to);
  for (int64_t i = 0; bound > 0 && i < rows * proj_width; ++i) {
    to[i] = std::clamp(to[i], -bound, bound);
  }
}

template <typename T>
void LstmpKernel(const ExecutionContext& ctx) {
  const StepBatches batches(SequencesOf(ctx, "Input"), ctx.Attr<bool>("is_reverse"));
  const LstmCell<T> cell(ctx, ctx.Attr<double>("cell_clip"));
  const Activation activation = ActivationOf(ctx.Text("proj_activation"));
  const auto bound = static_cast<T>(ctx.Attr<double>("proj_clip"));
  const int64_t width = cell.width;
  const int64_t proj_width = ctx.Input("ProjWeight").dims()[1];
  const int64_t rows = ctx.Input("Input").dims()[0];
  T* projection_out = ctx.Output("Projection")->mutable_data<T>();
  T* state_out = ctx.Output("Cell")->mutable_data<T>();
  T* gates = ctx.Output("BatchGate")->mutable_data<T>();
  T* activated = ctx.Output("BatchCellPreAct")->mutable_data<T>();
  T* hidden = ctx.Output("BatchHidden")->mutable_data<T>();
  Tensor projection_memory;
  Tensor state_memory;
  T* projection = Scratch<T>(&projection_memory, rows * proj_width);
  T* state = Scratch<T>(&state_memory, rows * width);
  PoolVector<T> first_projection = InitialStates<T>(ctx, "H0", batches);
  PoolVector<T> first_state = InitialStates<T>(ctx, "C0", batches);
  const T* weight = ctx.Input("Weight").data<T>();
  const T* proj_weight = ctx.Input("ProjWeight").data<T>();
  if (LoDTensor* ordered = ctx.OutputOrNull("OrderedP0")) {
    T* projected = ordered->mutable_data<T>();
    Project(first_projection.data(), ordered->dims()[0], width, proj_weight, proj_width, activation, T(0), projected);
    first_projection.assign(projected, projected + ordered->numel());
  }
  batches.ToBatches(ctx.Input("Input").data<T>(), 4 * width, gates);
  AddBias(ctx.Input("Bias").data<T>(), rows, 4 * width, gates);
  for (size_t t = 0; t < batches.steps(); ++t) {
    const int64_t begin = batches.Begin(t);
    const int64_t n = batches.Size(t);
    const T* before = StepBefore(batches, t, proj_width, projection, DataOrNull(first_projection));
    const T* state_before = StepBefore(batches, t, width, state, DataOrNull(first_state));
    if (before != nullptr) {
      Gemm<T>(false, false, n, 4 * width, proj_width, T(1), before, weight, true, gates + begin * 4 * width);
    }
    ParallelFor(n, cell.RowsPerStep(), [&](int64_t first, int64_t end) {
      for (int64_t r = first; r < end; ++r) {
        const int64_t at = (begin + r) * width;
        cell.Step(gates + 4 * at, state_before == nullptr ? nullptr : state_before + r * width, state + at,
                  activated + at, hidden + at);
      }
    });
    Project(hidden + begin * width, n, width, proj_weight, proj_width, activation, bound,
            projection + begin * proj_width);
  }
  batches.FromBatches(projection, proj_width, projection_out);
  batches.FromBatches(state, width, state_out);
}

template <typename T>
void LstmpGradKernel(const ExecutionContext& ctx) {
  const StepBatches batches(SequencesOf(ctx, "Input"), ctx.Attr<bool>("is_reverse"));
  const LstmCell<T> cell(ctx, ctx.Attr<double>("cell_clip"));
  const Activation activation = ActivationOf(ctx.Text("proj_activation"));
  const auto bound = static_cast<T>(ctx.Attr<double>("proj_clip"));
  const int64_t width = cell.width;
  const int64_t proj_width = ctx.Input("ProjWeight").dims()[1];
  const int64_t rows = ctx.Input("Input").dims()[0];
  T* weight_grad = ZerosOrNull<T>(ctx, "Weight@GRAD");
  T* proj_weight_grad = ZerosOrNull<T>(ctx, "ProjWeight@GRAD");
  T* bias_grad = ZerosOrNull<T>(ctx, "Bias@GRAD");
  T* input_grad = MutableOrNull<T>(ctx, "Input@GRAD");
  T* first_projection_grad = ZerosOrNull<T>(ctx, "H0@GRAD");
  T* first_state_grad = ZerosOrNull<T>(ctx, "C0@GRAD");
  const auto in_batches = [&](HashedName slot, int64_t columns, Tensor* memory) {
    T* values = Scratch<T>(memory, rows * columns);
    if (const T* from = ElementsOrNull<T>(ctx, slot)) {
      batches.ToBatches(from, columns, values);
    } else {
      std::fill_n(values, rows * columns, T(0));
    }
    return values;
  };
  Tensor projection_memory;
  Tensor state_memory;
  Tensor projection_grad_memory;
  Tensor state_grad_memory;
  Tensor hidden_grad_memory;
  Tensor gates_grad_memory;
  T* projection = in_batches("Projection", proj_width, &projection_memory);
  T* state = in_batches("Cell", width, &state_memory);
  T* projection_grad = in_batches("Projection@GRAD", proj_width, &projection_grad_memory);
  T* state_grad = in_batches("Cell@GRAD", width, &state_grad_memory);
  T* hidden_grad = Scratch<T>(&hidden_grad_memory, rows * width);
  T* gates_grad = Scratch<T>(&gates_grad_memory, rows * 4 * width);
  const PoolVector<T> first_hidden = InitialStates<T>(ctx, "H0", batches);
  const LoDTensor* ordered = ctx.InputOrNull("OrderedP0");
  PoolVector<T> first_projection = first_hidden;
  if (ordered != nullptr) {
    first_projection.assign(ordered->data<T>(), ordered->data<T>() + ordered->numel());
  }
  PoolVector<T> first_state = InitialStates<T>(ctx, "C0", batches);
  PoolVector<T> d_first_projection(first_projection.size(), T(0));
  PoolVector<T> d_first_state(first_state.size(), T(0));
  const T* weight = ctx.Input("Weight").data<T>();
  const T* proj_weight = ctx.Input("ProjWeight").data<T>();
  const T* gates = ctx.Input("BatchGate").data<T>();
  const T* activated = ctx.Input("BatchCellPreAct").data<T>();
  const T* hidden = ctx.Input("BatchHidden").data<T>();
  T* peepholes_grad = bias_grad == nullptr || cell.by_input == nullptr ? nullptr : bias_grad + 4 * width;
  for (size_t t = batches.steps(); t-- > 0;) {
    const int64_t begin = batches.Begin(t);
    const int64_t n = batches.Size(t);
    const T* before = StepBefore(batches, t, proj_width, projection, DataOrNull(first_projection));
    T* d_before = StepBefore(batches, t, proj_width, projection_grad, DataOrNull(d_first_projection));
    const T* state_before = StepBefore(batches, t, width, state, DataOrNull(first_state));
    T* d_state_before = StepBefore(batches, t, width, state_grad, DataOrNull(d_first_state));
    const T* now = projection + begin * proj_width;
    T* d_now = projection_grad + begin * proj_width;
    for (int64_t i = 0; i < n * proj_width; ++i) {
      const bool clipped = bound > 0 && std::abs(now[i]) >= bound;
      d_now[i] *= clipped ? T(0) : ActivationDerivative(activation, now[i]);
    }
    T* d_hidden = hidden_grad + begin * width;
    Gemm<T>(false, true, n, width, proj_width, T(1), d_now, proj_weight, false, d_hidden);
    if (proj_weight_grad != nullptr) {
      Gemm<T>(true, false, width, proj_width, n, T(1), hidden + begin * width, d_now, true, proj_weight_grad);
    }
    // The gradients of the peepholes are added up row by row.
    ParallelFor(n, peepholes_grad == nullptr ? cell.RowsPerStep() : n, [&](int64_t first, int64_t end) {
      for (int64_t r = first; r < end; ++r) {
        const int64_t at = (begin + r) * width;
        cell.StepBack(gates + 4 * at, state_before == nullptr ? nullptr : state_before + r * width, state + at,
                      activated + at, hidden_grad + at, state_grad + at, gates_grad + 4 * at,
                      d_state_before == nullptr ? nullptr : d_state_before + r * width, peepholes_grad);
      }
    });
    const T* d = gates_grad + begin * 4 * width;
    if (d_before != nullptr) {
      Gemm<T>(false, true, n, proj_width, 4 * width, T(1), d, weight, true, d_before);
    }
    if (weight_grad != nullptr && before != nullptr) {
      Gemm<T>(true, false, proj_width, 4 * width, n, T(1), before, d, true, weight_grad);
    }
  }
  if (bias_grad != nullptr) {
    AddRows(gates_grad, rows, 4 * width, bias_grad);
  }
  if (input_grad != nullptr) {
    batches.FromBatches(gates_grad, 4 * width, input_grad);
  }
  if (ordered != nullptr) {
    const int64_t n = ordered->dims()[0];
    for (size_t i = 0; i < d_first_projection.size(); ++i) {
      d_first_projection[i] *= ActivationDerivative(activation, first_projection[i]);
    }
    if (proj_weight_grad != nullptr) {
      Gemm<T>(true, false, width, proj_width, n, T(1), first_hidden.data(), d_first_projection.data(), true,
              proj_weight_grad);
    }
    PoolVector<T> d_first_hidden(first_hidden.size());
    Gemm<T>(false, true, n, width, proj_width, T(1), d_first_projection.data(), proj_weight, false,
            d_first_hidden.data());
    d_first_projection = std::move(d_first_hidden);
  }
  if (first_projection_grad != nullptr) {
    batches.UnsortStates(d_first_projection.data(), ctx.Input("H0").dims()[1], first_projection_grad);
  }
  if (first_state_grad != nullptr) {
    batches.UnsortStates(d_first_state.data(), width, first_state_grad);
  }
}

// Checks the inputs that operator and gradient share; returns D and P.
struct Widths {
  int64_t state;
  int64_t projection;
};
Widths CheckLstmp(const InferShapeContext& ctx, bool projects_first) {
  EnforceRank(ctx, "ProjWeight", 2);
  const Widths w{ctx.InputDim("ProjWeight")[0], ctx.InputDim("ProjWeight")[1]};
  HR_ENFORCE(w.state > 0 && w.projection > 0, InvalidArgument, "input ProjWeight: expected dims [D, P], got ",
             ToString(ctx.InputDim("ProjWeight")));
  if (projects_first && ctx.HasInput("H0")) {
    const DDim first = ctx.InputDim("H0");
    HR_ENFORCE(first.size() == 2 && Fits(first[1], w.state), InvalidArgument, "input H0: expected dims [-1, ", w.state,
               "], a hidden state for each sequence, since there is an output OrderedP0, got ", ToString(first));
  }
  CheckLstmInputs(ctx, w.state, w.projection, projects_first ? w.state : w.projection);
  EnforceSameType(ctx, "ProjWeight", "Input");
  return w;
}

OpRegistrar&& LstmpSlots(OpRegistrar&& op) {
  const auto bound = [](const char* name) {
    return [name](const double& value) {
      HR_ENFORCE(value >= 0 && std::isfinite(value), InvalidArgument, "attribute ", name,
                 ": expected a number of 0 or more, got ", value);
    };
  };
  return std::move(op)
      .Input("Input", "[rows, 4 D] with LoD: x of candidate, input, forget and output gate")
      .Input(
          "H0",
          "[number of sequences, P]: the first projection; zeros if absent. With OrderedP0 [number of sequences, D]: "
          "the first h, which is projected",
          kDispensable)
      .Input("C0", "[number of sequences, D]: the first c; zeros if absent", kDispensable)
      .Input("Weight", "[P, 4 D]")
      .Input("ProjWeight", "[D, P]")
      .Input("Bias", "[1, 4 D]; with peepholes [1, 7 D], the last three parts being theirs: input, forget, output")
      .With(LstmAttrs)
      .With(ActivationAttr, "proj_activation", "of the projection", "tanh")
      .Attr<double>("cell_clip", "the state stays in [-cell_clip, cell_clip]; 0: no bound", 0.0, bound("cell_clip"))
      .Attr<double>("proj_clip", "the projection stays in [-proj_clip, proj_clip]; 0: no bound", 0.0,
                    bound("proj_clip"))
      .KernelTypeFrom("Input");
}

}  // namespace

HEADRACE_REGISTER_OP(lstmp)
    .Comment(
        "As lstm, with r = proj_activation(h ProjWeight) in place of h, both as the result and in the sums of the next "
        "step.")
    .With(LstmpSlots)
    .Output("Projection", "[rows, P]: r; LoD of Input")
    .Output("Cell", "[rows, D]: c; LoD of Input")
    .Output("BatchGate", "[rows, 4 D]: the gates, for the gradient")
    .Output("BatchCellPreAct", "[rows, D]: cell_activation(c), for the gradient")
    .Output("BatchHidden", "[rows, D]: h, for the gradient")
    .Output("OrderedP0",
            "of programs of early releases of Fluid, [rows of H0, P]: the first projections, longest sequence first",
            kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      const Widths w = CheckLstmp(ctx, ctx.HasOutput("OrderedP0"));
      const int64_t rows = ctx.InputDim("Input")[0];
      const DataType type = ctx.InputType("Input");
      SetOutput(ctx, "Projection", {rows, w.projection}, type);
      for (const HashedName slot : HashedNames{"Cell", "BatchCellPreAct", "BatchHidden"}) {
        SetOutput(ctx, slot, {rows, w.state}, type);
      }
      SetOutput(ctx, "BatchGate", ctx.InputDim("Input"), type);
      SetOutput(ctx, "OrderedP0", {ctx.HasInput("H0") ? ctx.InputDim("H0")[0] : 0, w.projection}, type);
      ctx.ShareLoD("Input", "Projection");
      ctx.ShareLoD("Input", "Cell");
    })
    .Kernel<float>(Checked<float, LstmpKernel<float>>)
    .Kernel<double>(Checked<double, LstmpKernel<double>>)
    .Gradient(DefaultGradient({.inputs = {"Input", "H0", "C0", "Weight", "ProjWeight", "Bias"},
                               .outputs = {"Projection", "Cell", "BatchGate", "BatchCellPreAct", "BatchHidden",
                                           "OrderedP0"},
                               .no_gradient = {}}));

HEADRACE_REGISTER_OP(lstmp_grad)
    .Comment("Gradient of lstmp.")
    .With(LstmpSlots)
    .Input("Projection", "as in the operator")
    .Input("Cell", "as in the operator")
    .Input("BatchGate", "as in the operator")
    .Input("BatchCellPreAct", "as in the operator")
    .Input("BatchHidden", "as in the operator")
    .Input("OrderedP0", "as in the operator", kDispensable)
    .Input("Projection@GRAD", "gradient of Projection", kDispensable)
    .Input("Cell@GRAD", "gradient of Cell", kDispensable)
    .Input("BatchGate@GRAD", "not used", kDispensable)
    .Input("BatchCellPreAct@GRAD", "not used", kDispensable)
    .Input("BatchHidden@GRAD", "not used", kDispensable)
    .Input("OrderedP0@GRAD", "not used", kDispensable)
    .Output("Input@GRAD", "dims and LoD of Input", kDispensable)
    .Output("H0@GRAD", "dims of H0", kDispensable)
    .Output("C0@GRAD", "dims of C0", kDispensable)
    .Output("Weight@GRAD", "dims of Weight", kDispensable)
    .Output("ProjWeight@GRAD", "dims of ProjWeight", kDispensable)
    .Output("Bias@GRAD", "dims of Bias", kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      const Widths w = CheckLstmp(ctx, ctx.HasInput("OrderedP0"));
      if (ctx.HasInput("OrderedP0")) {
        EnforceDims(ctx, "OrderedP0", {ctx.HasInput("H0") ? ctx.InputDim("H0")[0] : 0, w.projection});
        EnforceSameType(ctx, "OrderedP0", "Input");
      }
      const int64_t rows = ctx.InputDim("Input")[0];
      for (const char* slot :
           {"Projection", "Projection@GRAD", "Cell", "Cell@GRAD", "BatchCellPreAct", "BatchHidden"}) {
        if (ctx.HasInput(slot)) {
          const bool projected = std::string_view(slot).starts_with("Proj");
          EnforceDims(ctx, slot, {rows, projected ? w.projection : w.state});
          EnforceSameType(ctx, slot, "Input");
        }
      }
      EnforceDims(ctx, "BatchGate", ctx.InputDim("Input"));
      EnforceSameType(ctx, "BatchGate", "Input");
      InferGradients(ctx, {"Input", "H0", "C0", "Weight", "ProjWeight", "Bias"});
      if (ctx.HasOutput("Input@GRAD")) {
        ctx.ShareLoD("Input", "Input@GRAD");
      }
    })
    .Kernel<float>(Checked<float, LstmpGradKernel<float>>)
    .Kernel<double>(Checked<double, LstmpGradKernel<double>>);

}  // namespace headrace::ops
