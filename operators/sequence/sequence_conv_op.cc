// sequence_conv: a convolution along sequences. fusion_seqconv_eltadd_relu: the same with a bias and relu, to which
// Fluid's inference passes join three operators.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/gemm.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// The context of a row of the result: places [first, last) of it are rows of the sequence [begin, end), the others lie
// outside.
struct RowContext {
  int64_t row;
  int64_t begin;
  int64_t end;
  int64_t first;
  int64_t last;
};

template <typename Visit>
void ForEachContext(const ExecutionContext& ctx, Visit&& visit) {
  const LoDOffsets& offsets = SequencesOf(ctx, "X");
  const int64_t length = ctx.Attr<int32_t>("contextLength");
  const int64_t start = ctx.Attr<int32_t>("contextStart");
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const auto begin = static_cast<int64_t>(offsets[s]);
    const auto end = static_cast<int64_t>(offsets[s + 1]);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = std::clamp<int64_t>(begin - row - start, 0, length);
      visit(RowContext{row, begin, end, first, std::clamp<int64_t>(end - row - start, first, length)});
    }
  }
}

// Calls visit(row of the result, place in its context, row of the input) for each row that a context has; what lies
// outside of the sequence is left out.
template <typename Visit>
void ForEachNeighbour(const ExecutionContext& ctx, Visit&& visit) {
  const int64_t start = ctx.Attr<int32_t>("contextStart");
  ForEachContext(ctx, [&](const RowContext& context) {
    for (int64_t place = context.first; place < context.last; ++place) {
      visit(context.row, place, context.row + start + place);
    }
  });
}

// How many rows contexts need before and after a sequence.
struct Surroundings {
  explicit Surroundings(const AttributeIndex& op)
      : before(std::max<int64_t>(0, -int64_t{op.Attr<int32_t>("contextStart")})),
        after(std::max<int64_t>(0, int64_t{op.Attr<int32_t>("contextStart")} + op.Attr<int32_t>("contextLength") - 1)) {
  }
  int64_t before;
  int64_t after;
};

// Calls visit(row of the result, place in its context, row of PaddingData) for what ForEachNeighbour leaves out.
template <typename Visit>
void ForEachPadding(const ExecutionContext& ctx, Visit&& visit) {
  const int64_t length = ctx.Attr<int32_t>("contextLength");
  const int64_t start = ctx.Attr<int32_t>("contextStart");
  const int64_t before = Surroundings(ctx.attrs()).before;
  ForEachContext(ctx, [&](const RowContext& context) {
    for (int64_t place = 0; place < context.first; ++place) {
      visit(context.row, place, before + context.row + start + place - context.begin);
    }
    for (int64_t place = context.last; place < length; ++place) {
      visit(context.row, place, before + context.row + start + place - context.end);
    }
  });
}

// Each row with its context, side by side: [rows, contextLength · width]; outside of the sequence, zeros or the rows of
// PaddingData.
template <typename T>
PoolVector<T> Contexts(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const int64_t width = x_tensor.dims()[1];
  const int64_t length = ctx.Attr<int32_t>("contextLength");
  PoolVector<T> contexts(static_cast<size_t>(MultiplyExtents(x_tensor.numel(), length)), T(0));
  const T* x = x_tensor.data<T>();
  ForEachNeighbour(ctx, [&](int64_t row, int64_t place, int64_t from) {
    std::copy_n(x + from * width, width, contexts.data() + (row * length + place) * width);
  });
  if (ctx.attrs().Has("paddingTrainable") && ctx.Attr<bool>("paddingTrainable")) {
    const T* padding = ctx.Input("PaddingData").data<T>();
    ForEachPadding(ctx, [&](int64_t row, int64_t place, int64_t from) {
      std::copy_n(padding + from * width, width, contexts.data() + (row * length + place) * width);
    });
  }
  return contexts;
}

template <typename T>
void SequenceConvKernel(const ExecutionContext& ctx) {
  const DDim& filter = ctx.Input("Filter").dims();
  const PoolVector<T> contexts = Contexts<T>(ctx);
  T* out = ctx.Output("Out")->mutable_data<T>();
  Gemm<T>(false, false, ctx.Input("X").dims()[0], filter[1], filter[0], T(1), contexts.data(),
          ctx.Input("Filter").data<T>(), false, out);
}

template <typename T>
void ConvBiasReluKernel(const ExecutionContext& ctx) {
  SequenceConvKernel<T>(ctx);
  LoDTensor* out_tensor = ctx.Output("Out");
  const int64_t width = out_tensor->dims()[1];
  T* out = out_tensor->mutable_data<T>();
  const T* bias = ctx.Input("Bias").data<T>();
  for (int64_t r = 0; r < out_tensor->dims()[0]; ++r, out += width) {
    for (int64_t c = 0; c < width; ++c) {
      const T sum = out[c] + bias[c];
      out[c] = sum < 0 ? T(0) : sum;
    }
  }
}

template <typename T>
void SequenceConvGradKernel(const ExecutionContext& ctx) {
  const DDim& filter = ctx.Input("Filter").dims();
  const int64_t rows = ctx.Input("X").dims()[0];
  const int64_t width = ctx.Input("X").dims()[1];
  const T* d = ctx.Input("Out@GRAD").data<T>();
  if (T* filter_grad = MutableOrNull<T>(ctx, "Filter@GRAD")) {
    const PoolVector<T> contexts = Contexts<T>(ctx);
    Gemm<T>(true, false, filter[0], filter[1], rows, T(1), contexts.data(), d, false, filter_grad);
  }
  T* dx = ZerosOrNull<T>(ctx, "X@GRAD");
  T* padding_grad = ZerosOrNull<T>(ctx, "PaddingData@GRAD");
  const bool has_padding = padding_grad != nullptr && ctx.Attr<bool>("paddingTrainable");
  if (dx == nullptr && !has_padding) {
    return;
  }
  PoolVector<T> contexts_grad(static_cast<size_t>(MultiplyExtents(rows, filter[0])));
  Gemm<T>(false, true, rows, filter[0], filter[1], T(1), d, ctx.Input("Filter").data<T>(), false, contexts_grad.data());
  const auto add_to = [&](T* to, int64_t row, int64_t place) {
    const T* grad = contexts_grad.data() + row * filter[0] + place * width;
    std::transform(grad, grad + width, to, to, [](T a, T b) { return b + a; });
  };
  if (dx != nullptr) {
    ForEachNeighbour(ctx, [&](int64_t row, int64_t place, int64_t from) { add_to(dx + from * width, row, place); });
  }
  if (has_padding) {
    ForEachPadding(ctx,
                   [&](int64_t row, int64_t place, int64_t from) { add_to(padding_grad + from * width, row, place); });
  }
}

// Checks X and Filter; returns the dims of Out.
DDim CheckFilter(const InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 2);
  EnforceRank(ctx, "Filter", 2);
  EnforceSameType(ctx, "Filter", "X");
  const DDim x = ctx.InputDim("X");
  const int64_t length = ctx.Attr<int32_t>("contextLength");
  EnforceDims(ctx, "Filter", {x[1] < 0 ? -1 : MultiplyExtents(x[1], length), -1});
  return {x[0], ctx.InputDim("Filter")[1]};
}

// Checks the inputs that operator and gradient share; returns the dims of Out.
DDim CheckSequenceConv(const InferShapeContext& ctx) {
  const DDim out = CheckFilter(ctx);
  if (ctx.Attr<bool>("paddingTrainable")) {
    const Surroundings rows(ctx.attrs());
    HR_ENFORCE(rows.before + rows.after > 0, InvalidArgument,
               "attribute paddingTrainable: expected false, as contexts are single rows of the sequence, got true");
    HR_ENFORCE(ctx.HasInput("PaddingData"), InvalidArgument, "input PaddingData: expected ", rows.before + rows.after,
               " rows, as attribute paddingTrainable is true, got none");
    EnforceDims(ctx, "PaddingData", {rows.before + rows.after, ctx.InputDim("X")[1]});
    EnforceSameType(ctx, "PaddingData", "X");
  }
  return out;
}

constexpr int32_t kMax = 1 << 20;  // contexts are no longer, and begin no further away

OpRegistrar&& ContextAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("contextLength", "how many rows a context has", 3,
                     [](const int32_t& length) {
                       HR_ENFORCE(length > 0 && length <= kMax, InvalidArgument,
                                  "attribute contextLength: expected a number in [1, ", kMax, "], got ", length);
                     })
      .Attr<int32_t>("contextStart", "where it begins, counted from its row", 0,
                     [](const int32_t& start) {
                       HR_ENFORCE(-kMax <= start && start <= kMax, InvalidArgument,
                                  "attribute contextStart: expected a number in [", -kMax, ", ", kMax, "], got ",
                                  start);
                     })
      .Attr<int32_t>("contextStride", "1", 1, [](const int32_t& stride) {
        HR_ENFORCE(stride == 1, Unimplemented, "attribute contextStride: only 1 is supported, got ", stride);
      });
}

OpRegistrar&& SequenceConvAttrs(OpRegistrar&& op) {
  return std::move(op)
      .With(ContextAttrs)
      .Attr<bool>("paddingTrainable", "whether PaddingData lies around sequences, instead of zeros", false);
}

}  // namespace

HEADRACE_REGISTER_OP(sequence_conv)
    .Comment("Each row with its neighbours in the sequence, its context, times Filter.")
    .Input("X", "[rows, D] with LoD")
    .Input("Filter", "[contextLength D, M], dtype of X")
    .Input("PaddingData",
           "[before + after, D], dtype of X, if paddingTrainable: the rows before each sequence, "
           "max(0, -contextStart), and those after it, max(0, contextStart + contextLength - 1)",
           kDispensable)
    .Output("Out", "[rows, M]; LoD of X")
    .With(SequenceConvAttrs)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "Out", CheckSequenceConv(ctx), ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .KernelTypeFrom("X")
    .Kernel<float>(SequenceConvKernel<float>)
    .Kernel<double>(SequenceConvKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Filter", "PaddingData"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(fusion_seqconv_eltadd_relu)
    .Comment(
        "relu(sequence_conv(X, Filter) + Bias), with zeros around sequences. For inference: it has no gradient, nor "
        "has "
        "it in Fluid.")
    .Input("X", "[rows, D] with LoD")
    .Input("Filter", "[contextLength D, M], dtype of X")
    .Input("Bias", "[1, M] or [M], dtype of X")
    .Output("Out", "[rows, M]; LoD of X")
    .Output("ColMat", "not written: memory for intermediate results in Fluid", kDispensable)
    .With(ContextAttrs)
    .InferShape([](InferShapeContext& ctx) {
      const DDim out = CheckFilter(ctx);
      EnforceDims(ctx, "Bias", ctx.InputDim("Bias").size() == 1 ? DDim{out[1]} : DDim{1, out[1]});
      EnforceSameType(ctx, "Bias", "X");
      SetOutput(ctx, "Out", out, ctx.InputType("X"));
      ctx.ShareLoD("X", "Out");
    })
    .KernelTypeFrom("X")
    .Kernel<float>(ConvBiasReluKernel<float>)
    .Kernel<double>(ConvBiasReluKernel<double>);

HEADRACE_REGISTER_OP(sequence_conv_grad)
    .Comment("Gradient of sequence_conv.")
    .Input("X", "as in the operator")
    .Input("Filter", "as in the operator")
    .Input("PaddingData", "as in the operator", kDispensable)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims and LoD of X", kDispensable)
    .Output("Filter@GRAD", "dims of Filter", kDispensable)
    .Output("PaddingData@GRAD", "dims of PaddingData", kDispensable)
    .With(SequenceConvAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", CheckSequenceConv(ctx));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X", "Filter", "PaddingData"});
      ctx.ShareLoD("X", "X@GRAD");
    })
    .KernelTypeFrom("X")
    .Kernel<float>(SequenceConvGradKernel<float>)
    .Kernel<double>(SequenceConvGradKernel<double>);

}  // namespace headrace::ops
