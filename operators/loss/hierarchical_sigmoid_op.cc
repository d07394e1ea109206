// hierarchical_sigmoid: a loss over many classes as a walk down a binary tree (F. Morin and Y. Bengio, Hierarchical
// probabilistic neural network language model, 2005).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/loss/labels.h"
#include "operators/loss/row_gradient.h"
#include "operators/math/element_loop.h"
#include "operators/math/numbered_rows.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/scratch.h"

namespace headrace::ops {
namespace {

// The way of each row from its leaf up: which node it meets at each step, and on which side of it it came.
class Paths {
 public:
  explicit Paths(const ExecutionContext& ctx)
      : label_(ctx.Input("Label").data<int64_t>()),
        classes_(ctx.Attr<int32_t>("num_classes")),
        nodes_(ctx.Input("W").dims()[0]) {
    if (const LoDTensor* table = ctx.InputOrNull("PathTable")) {
      table_ = table->data<int64_t>();
      code_ = ctx.Input("PathCode").data<int64_t>();
      length_ = table->dims()[1];
    } else {
      length_ = std::bit_width(static_cast<uint64_t>(classes_ - 1));
    }
  }

  // The longest path.
  int64_t length() const { return length_; }

  // Calls visit(step, node, whether it is the right side) for each step of row `r`.
  template <typename Visit>
  void ForEachStep(int64_t r, Visit&& visit) const {
    if (table_ != nullptr) {
      for (int64_t step = 0; step < length_ && table_[r * length_ + step] >= 0; ++step) {
        const int64_t node = table_[r * length_ + step];
        HR_ENFORCE(node < nodes_, OutOfRange, "input PathTable: row ", r, " has node ", node, ", expected one below ",
                   nodes_, " (rows of W), or a negative number behind its end");
        visit(step, node, code_[r * length_ + step] != 0);
      }
      return;
    }
    HR_ENFORCE(0 <= label_[r] && label_[r] < classes_, OutOfRange, "input Label: row ", r, " has class ", label_[r],
               ", expected one in [0, ", classes_, ")");
    // A complete binary tree whose nodes have the numbers of a heap: the root is 1, leaf c is c + classes.
    const auto leaf = static_cast<uint64_t>(label_[r] + classes_);
    for (int64_t step = 0; leaf >> (step + 1) != 0; ++step) {
      visit(step, static_cast<int64_t>(leaf >> (step + 1)) - 1, (leaf >> step & 1) != 0);
    }
  }

 private:
  const int64_t* label_;
  int64_t classes_;
  int64_t nodes_;
  const int64_t* table_ = nullptr;
  const int64_t* code_ = nullptr;
  int64_t length_ = 0;
};

// Fluid's: steps behind the end of a short path count as if their score was 0, so that each adds log(2) to the loss.
template <typename T>
void HierarchicalSigmoidKernel(const ExecutionContext& ctx) {
  const DDim& dims = ctx.Input("X").dims();
  const Paths paths(ctx);
  const int64_t length = paths.length();
  T* out = ctx.Output("Out")->mutable_data<T>();
  T* losses = ctx.Output("PreOut")->Resize({dims[0], length}).template mutable_data<T>();
  ParallelFill(losses, dims[0] * length, std::log(T(2)));
  const T* x = ctx.Input("X").data<T>();
  const T* weight = ctx.Input("W").data<T>();
  const T* bias = ElementsOrNull<T>(ctx, "Bias");
  const int64_t width = dims[1];
  const auto walk = [=, &paths](int64_t r) {
    const T* row = x + r * width;
    // In double, as other sums: of a class that is all but certain, next to nothing is left of large terms.
    double loss = 0;
    int64_t behind_end = length;
    paths.ForEachStep(r, [&](int64_t step, int64_t node, bool is_right) {
      const T* w = weight + node * width;
      const double dot = SumOfRange<T>(0, width, [=](int64_t i) { return row[i] * w[i]; });
      const double offset = bias == nullptr ? 0.0 : static_cast<double>(bias[node]);
      const double score = std::clamp(dot + offset, -40.0, 40.0);
      const double loss_of_step = std::log1p(std::exp(score));
      losses[r * length + step] = static_cast<T>(loss_of_step);
      loss += is_right ? loss_of_step - score : loss_of_step;
      --behind_end;
    });
    out[r] = static_cast<T>(loss + static_cast<double>(behind_end) * std::numbers::ln2);
  };
  ParallelForEach(dims[0], walk, length * (width + 64));
}

template <typename T>
void HierarchicalSigmoidGradKernel(const ExecutionContext& ctx) {
  const DDim& dims = ctx.Input("X").dims();
  const Paths paths(ctx);
  T* dx = ZerosOrNull<T>(ctx, "X@GRAD");
  const LoDTensor& losses_tensor = ctx.Input("PreOut");
  HR_ENFORCE(losses_tensor.dims()[1] == paths.length(), InvalidArgument, "input PreOut: expected dims [", dims[0], ", ",
             paths.length(), "], got ", ToString(losses_tensor.dims()));
  const T* losses = losses_tensor.data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* weight = ctx.Input("W").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const int64_t width = dims[1];
  const bool sparse = ctx.Attr<bool>("is_sparse");
  PoolVector<int64_t> met;
  for (int64_t r = 0; sparse && r < dims[0]; ++r) {
    paths.ForEachStep(r, [&met](int64_t, int64_t node, bool) { met.push_back(node); });
  }
  met = SortedOnce(std::move(met));
  const int64_t nodes = ctx.Input("W").dims()[0];
  const RowGradient<T> weight_grad(ctx, "W@GRAD", "W", nodes, sparse, met);
  const RowGradient<T> bias_grad(ctx, "Bias@GRAD", "Bias", nodes, sparse, met);
  // Of each step of each row: the node, -1 behind the end of a path, and the gradient of its score.
  const int64_t length = paths.length();
  const int64_t steps = dims[0] * length;
  PoolVector<int64_t> node_memory(static_cast<size_t>(steps), -1);
  Tensor slope_memory;
  int64_t* step_node = node_memory.data();
  T* slopes = Scratch<T>(&slope_memory, steps);
  const auto walk = [=, &paths](int64_t r) {
    paths.ForEachStep(r, [&](int64_t step, int64_t node, bool is_right) {
      const int64_t at = r * length + step;
      // sigmoid(score) = 1 − exp(−log(1 + exp(score)))
      const T slope = d[r] * (-std::expm1(-losses[at]) - (is_right ? T(1) : T(0)));
      step_node[at] = node;
      slopes[at] = slope;
      for (int64_t i = 0; dx != nullptr && i < width; ++i) {
        dx[r * width + i] += slope * weight[node * width + i];
      }
    });
  };
  ParallelForEach(dims[0], walk, length * (width + 64));
  ForEachNumberedRow(step_node, steps, nodes, width, [&](int64_t at, int64_t node) {
    if (weight_grad) {
      AddScaled(slopes[at], x + at / length * width, width, weight_grad.Row(node));
    }
    if (bias_grad) {
      *bias_grad.Row(node) += slopes[at];
    }
  });
}

// Checks the inputs that operator and gradient share; returns the longest path, -1 if unknown.
int64_t CheckHierarchicalSigmoid(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 2);
  const DDim x = ctx.InputDim("X");
  EnforceDims(ctx, "W", {-1, x[1]});
  EnforceSameType(ctx, "W", "X");
  EnforceDims(ctx, "Label", ctx.InputDim("Label").size() == 1 ? DDim{x[0]} : DDim{x[0], 1});
  EnforceNumbers(ctx, "Label");
  const int64_t nodes = ctx.InputDim("W")[0];
  if (ctx.HasInput("Bias")) {
    const DDim bias = ctx.InputDim("Bias");
    const bool is_row = !ctx.Attr<bool>("is_sparse") && bias.size() == 2 && bias[0] == 1 && Fits(bias[1], nodes);
    HR_ENFORCE(is_row || ((bias.size() == 1 || (bias.size() == 2 && Fits(bias[1], 1))) && Fits(bias[0], nodes)),
               InvalidArgument, "input Bias: expected dims [", nodes, ", 1], got ", ToString(bias));
    EnforceSameType(ctx, "Bias", "X");
  }
  HR_ENFORCE(ctx.HasInput("PathTable") == ctx.HasInput("PathCode"), InvalidArgument,
             "inputs PathTable and PathCode: expected both or none of them");
  if (ctx.HasInput("PathTable")) {
    EnforceDims(ctx, "PathTable", {x[0], -1});
    EnforceDims(ctx, "PathCode", ctx.InputDim("PathTable"));
    EnforceType(ctx, "PathTable", DataType::kInt64);
    EnforceType(ctx, "PathCode", DataType::kInt64);
    return ctx.InputDim("PathTable")[1];
  }
  const int32_t classes = ctx.Attr<int32_t>("num_classes");
  HR_ENFORCE(classes >= 2, InvalidArgument, "attribute num_classes: expected 2 or more, got ", classes);
  EnforceDims(ctx, "W", {classes - 1, x[1]});
  return std::bit_width(static_cast<uint32_t>(classes - 1));
}

OpRegistrar&& HierarchicalSigmoidSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("X", "[N, D]")
      .Input("W", "[number of inner nodes, D], dtype of X; num_classes - 1 nodes without PathTable")
      .Input("Label", "int64 [N, 1] or [N], in [0, num_classes); not used with PathTable")
      .Input("PathTable", "int64 [N, L]: the nodes on the way of each row; a negative number behind the last",
             kDispensable)
      .Input("PathCode", "int64 [N, L]: for each node whether the path continues to the right (1) or to the left (0)",
             kDispensable)
      .Input("Bias", "[number of inner nodes, 1] or, unless is_sparse, [1, number of inner nodes], dtype of X",
             kDispensable)
      .Attr<int32_t>("num_classes", "number of classes; not used with PathTable", 2)
      .Attr<bool>("is_sparse", "whether the gradients of W and Bias are SelectedRows: only the nodes that are met",
                  false)
      .KernelTypeFrom("X");
}

}  // namespace

HEADRACE_REGISTER_OP(hierarchical_sigmoid)
    .Comment(
        "-log of the probability of the class of each row, which is the product of a sigmoid at each node on the way "
        "from the root of a binary tree to its leaf.")
    .With(HierarchicalSigmoidSlots)
    .Output("Out", "[N, 1]; steps that a path is shorter than the longest one count log(2) each, as in Fluid")
    .Output("PreOut", "[N, longest path]: log(1 + exp(score)) of each step, for the gradient")
    .InferShape([](InferShapeContext& ctx) {
      const int64_t length = CheckHierarchicalSigmoid(ctx);
      const int64_t rows = ctx.InputDim("X")[0];
      SetOutput(ctx, "Out", {rows, 1}, ctx.InputType("X"));
      SetOutput(ctx, "PreOut", {rows, length}, ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .Kernel<float>(HierarchicalSigmoidKernel<float>)
    .Kernel<double>(HierarchicalSigmoidKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "W", "Label", "PathTable", "PathCode", "Bias"},
                               .outputs = {"PreOut"},
                               .no_gradient = {"Label", "PathTable", "PathCode"}}));

HEADRACE_REGISTER_OP(hierarchical_sigmoid_grad)
    .Comment("Gradient of hierarchical_sigmoid, by way of Out.")
    .With(HierarchicalSigmoidSlots)
    .Input("PreOut", "as in the operator")
    .Input("PreOut@GRAD", "not used", kDispensable)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("W@GRAD", "dims of W; SelectedRows if is_sparse", kDispensable | kSelectedRows)
    .Output("Bias@GRAD", "dims of Bias; SelectedRows if is_sparse", kDispensable | kSelectedRows)
    .InferShape([](InferShapeContext& ctx) {
      const int64_t length = CheckHierarchicalSigmoid(ctx);
      const int64_t rows = ctx.InputDim("X")[0];
      EnforceDims(ctx, "PreOut", {rows, length});
      EnforceSameType(ctx, "PreOut", "X");
      EnforceDims(ctx, "Out@GRAD", {rows, 1});
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X", "W", "Bias"});
      if (ctx.Attr<bool>("is_sparse")) {
        ctx.SetOutputSelectedRows("W@GRAD");
        ctx.SetOutputSelectedRows("Bias@GRAD");
      }
    })
    .Kernel<float>(HierarchicalSigmoidGradKernel<float>)
    .Kernel<double>(HierarchicalSigmoidGradKernel<double>);

}  // namespace headrace::ops
