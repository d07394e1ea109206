// sequence_pool, sequence_softmax: over the sequences of the deepest level of the LoD.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/softmax.h"
#include "operators/math/tensor_size.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// --- sequence_pool ---

// What SUM, AVERAGE and SQRT multiply the sum of a sequence by.
template <typename T>
T FactorOf(HashedName type, int64_t length) {
  const auto n = static_cast<T>(length);
  return type == "AVERAGE" ? 1 / n : type == "SQRT" ? 1 / std::sqrt(n) : T(1);
}

// The row that FIRST or LAST takes from rows [begin, end).
int64_t RowOf(HashedName type, int64_t begin, int64_t end) { return type == "FIRST" ? begin : end - 1; }

bool TakesARow(HashedName type) { return type == "FIRST" || type == "LAST"; }

template <typename T>
void MaxOfRows(const T* x, int64_t begin, int64_t end, int64_t width, T* out, int32_t* index) {
  std::copy_n(x + begin * width, width, out);
  std::fill_n(index, width, static_cast<int32_t>(begin));
  for (int64_t r = begin + 1; r < end; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const T value = x[r * width + c];
      if (value > out[c] || (IsNaN(value) && !IsNaN(out[c]))) {
        out[c] = value;
        index[c] = static_cast<int32_t>(r);
      }
    }
  }
}

template <typename T>
void SequencePoolKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const LoDOffsets& offsets = SequencesOf(ctx, "X");
  const HashedName type = ctx.Text("pooltype");
  const int64_t width = Numel(x_tensor.dims(), 1, x_tensor.dims().size());
  LoDTensor* out_tensor = ctx.Output("Out");
  DDim dims = x_tensor.dims();
  dims[0] = static_cast<int64_t>(offsets.size()) - 1;
  T* out = out_tensor->Resize(dims).template mutable_data<T>();
  out_tensor->set_lod(LoD(x_tensor.lod().begin(), x_tensor.lod().end() - 1));
  int32_t* index = nullptr;
  if (type == "MAX") {
    LoDTensor* index_tensor = ctx.Output("MaxIndex");
    index = index_tensor->Resize(dims).template mutable_data<int32_t>();
  }
  const T* x = x_tensor.data<T>();
  const auto pad = static_cast<T>(ctx.Attr<double>("pad_value"));
  ForEachSequenceInParallel(offsets, width, [&](int64_t s, int64_t begin, int64_t end) {
    T* to = out + s * width;
    if (begin == end) {
      std::fill_n(to, width, pad);
      if (index != nullptr) {
        std::fill_n(index + s * width, width, -1);
      }
    } else if (index != nullptr) {
      MaxOfRows(x, begin, end, width, to, index + s * width);
    } else if (TakesARow(type)) {
      std::copy_n(x + RowOf(type, begin, end) * width, width, to);
    } else {
      std::fill_n(to, width, T(0));
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t c = 0; c < width; ++c) {
          to[c] += x[r * width + c];
        }
      }
      const T factor = FactorOf<T>(type, end - begin);
      std::for_each(to, to + width, [factor](T& value) { value *= factor; });
    }
  });
}

template <typename T>
void SequencePoolGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const LoDOffsets& offsets = SequencesOf(ctx, "X");
  const HashedName type = ctx.Text("pooltype");
  const int64_t width = Numel(x_tensor.dims(), 1, x_tensor.dims().size());
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  HR_ENFORCE(out_grad.dims()[0] == static_cast<int64_t>(offsets.size()) - 1, InvalidArgument,
             "input Out@GRAD: expected ", offsets.size() - 1, " rows, one for each sequence of X, got dims ",
             ToString(out_grad.dims()));
  const T* d = out_grad.data<T>();
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  ParallelFill(dx, x_tensor.numel(), T(0));
  const int32_t* index = nullptr;
  if (type == "MAX") {
    const LoDTensor& index_tensor = ctx.Input("MaxIndex");
    HR_ENFORCE(index_tensor.dims() == out_grad.dims(), InvalidArgument, "input MaxIndex: expected dims ",
               ToString(out_grad.dims()), ", got ", ToString(index_tensor.dims()));
    index = index_tensor.data<int32_t>();
  }
  ForEachSequenceInParallel(offsets, width, [&](int64_t s, int64_t begin, int64_t end) {
    const T* from = d + s * width;
    if (begin == end) {
      return;
    }
    if (index != nullptr) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t row = index[s * width + c];
        HR_ENFORCE(begin <= row && row < end, OutOfRange, "input MaxIndex: sequence ", s, " has row ", row,
                   ", expected one in [", begin, ", ", end, ")");
        dx[row * width + c] = from[c];
      }
    } else if (TakesARow(type)) {
      std::copy_n(from, width, dx + RowOf(type, begin, end) * width);
    } else {
      const T factor = FactorOf<T>(type, end - begin);
      for (int64_t r = begin; r < end; ++r) {
        std::transform(from, from + width, dx + r * width, [factor](T value) { return value * factor; });
      }
    }
  });
}

void InferSequencePool(InferShapeContext& ctx) {
  EnforceSequences(ctx, "X", 2);
  HR_ENFORCE(ctx.InputDim("X")[0] <= INT32_MAX, InvalidArgument, "input X: expected at most 2^31 - 1 rows, got dims ",
             ToString(ctx.InputDim("X")));
  const bool max = ctx.Text("pooltype") == "MAX";
  HR_ENFORCE(!max || ctx.HasOutput("MaxIndex"), InvalidArgument,
             "output MaxIndex: it must be given for pooltype 'MAX'");
  if (ctx.IsRuntime()) {
    return;  // the kernel knows how many sequences there are
  }
  DDim dims = ctx.InputDim("X");
  dims[0] = -1;
  SetOutput(ctx, "Out", dims, ctx.InputType("X"));
  ctx.SetOutputLoDLevel("Out", std::max(ctx.InputLoDLevel("X") - 1, 0));
  if (max) {
    SetOutput(ctx, "MaxIndex", dims, DataType::kInt32);
  }
}

// Fluid's layers always give MaxIndex, which only 'MAX' writes.
std::vector<OpDesc> SequencePoolGradient(const OpDesc& op) {
  GradientUses uses{.inputs = {"X"}, .outputs = {}, .no_gradient = {}};
  if (op.Attr<std::string>("pooltype") == "MAX") {
    uses.outputs = {"MaxIndex"};
  }
  return DefaultGradient(uses)(op);
}

OpRegistrar&& SequencePoolAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<std::string>(
          "pooltype", "'SUM', 'AVERAGE', 'SQRT' (the sum over the root of the length), 'MAX', 'FIRST' or 'LAST'",
          "AVERAGE",
          [](const std::string& type) {
            HR_ENFORCE(type == "SUM" || type == "AVERAGE" || type == "SQRT" || type == "MAX" || TakesARow(type),
                       InvalidArgument,
                       "attribute pooltype: expected 'SUM', 'AVERAGE', 'SQRT', 'MAX', 'FIRST' or 'LAST', got '", type,
                       "'");
          })
      .Attr<double>("pad_value", "the result for a sequence without rows", 0.0);
}

// --- sequence_softmax ---

template <typename T>
void SequenceSoftmaxKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const LoDOffsets& offsets = SequencesOf(ctx, "X");
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* from = x.data<T>();
  ForEachSequenceInParallel(
      offsets, 8, [=](int64_t, int64_t begin, int64_t end) { Softmax(1, end - begin, from + begin, out + begin); });
}

template <typename T>
void SequenceSoftmaxGradKernel(const ExecutionContext& ctx) {
  const LoDOffsets& offsets = SequencesOf(ctx, "X");
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const T* out = ctx.Input("Out").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  ForEachSequenceInParallel(offsets, 4, [=](int64_t, int64_t begin, int64_t end) {
    SoftmaxGrad(1, end - begin, out + begin, d + begin, dx + begin);
  });
}

void InferSequenceSoftmax(InferShapeContext& ctx) {
  EnforceSequences(ctx, "X", 1);
  const DDim x = ctx.InputDim("X");
  HR_ENFORCE(Fits(Numel(x, 1, x.size()), 1), InvalidArgument, "input X: expected one number for each row, got dims ",
             ToString(x));
}

}  // namespace

HEADRACE_REGISTER_OP(sequence_pool)
    .Comment("One row for each sequence.")
    .Input("X", "[rows, ...] with LoD")
    .Output("Out", "[number of sequences, ...], with the LoD of X without its deepest level")
    .Output("MaxIndex", "int32, dims of Out: rows of X of the maxima; needed for pooltype 'MAX'", kDispensable)
    .With(SequencePoolAttrs)
    .InferShape(InferSequencePool)
    .Kernel<float>(SequencePoolKernel<float>)
    .Kernel<double>(SequencePoolKernel<double>)
    .Gradient(SequencePoolGradient);

HEADRACE_REGISTER_OP(sequence_pool_grad)
    .Comment("Gradient of sequence_pool.")
    .Input("X", "as in the operator; only its dims and its LoD are used", kShapeOnly)
    .Input("MaxIndex", "as in the operator", kDispensable)
    .Input("Out@GRAD", "gradient of Out")
    .Input("MaxIndex@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X")
    .With(SequencePoolAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceSequences(ctx, "X", 2);
      HR_ENFORCE(ctx.Text("pooltype") != "MAX" || ctx.HasInput("MaxIndex"), InvalidArgument,
                 "input MaxIndex: it must be given for pooltype 'MAX'");
      if (ctx.HasInput("MaxIndex")) {
        EnforceType(ctx, "MaxIndex", DataType::kInt32);
      }
      DDim out = ctx.InputDim("X");
      out[0] = -1;
      EnforceDims(ctx, "Out@GRAD", out);
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(SequencePoolGradKernel<float>)
    .Kernel<double>(SequencePoolGradKernel<double>);

HEADRACE_REGISTER_OP(sequence_softmax)
    .Comment("softmax within each sequence.")
    .Input("X", "[rows, 1] or [rows], with LoD")
    .Output("Out", "dims and LoD of X")
    .InferShape([](InferShapeContext& ctx) {
      InferSequenceSoftmax(ctx);
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(SequenceSoftmaxKernel<float>)
    .Kernel<double>(SequenceSoftmaxKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {"Out"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(sequence_softmax_grad)
    .Comment("Gradient of sequence_softmax.")
    .Input("X", "as in the operator; only its dims and its LoD are used", kShapeOnly)
    .Input("Out", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .InferShape([](InferShapeContext& ctx) {
      InferSequenceSoftmax(ctx);
      for (const HashedName slot : HashedNames{"Out", "Out@GRAD"}) {
        EnforceDims(ctx, slot, ctx.InputDim("X"));
        EnforceSameType(ctx, slot, "X");
      }
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(SequenceSoftmaxGradKernel<float>)
    .Kernel<double>(SequenceSoftmaxGradKernel<double>);

}  // namespace headrace::ops
