// fake_quantize_abs_max, fake_quantize_range_abs_max, fake_dequantize_max_abs: the rounding that a network with
// integers of few bits will have, on floating point, so that it is trained with it (B. Jacob et al., Quantization and
// training of neural networks for efficient integer-arithmetic-only inference, 2018).
//
// A number of b bits stands for a multiple of scale / (2^(b - 1) - 1) between -scale and scale. None of these operators
// has a gradient: Fluid's programs give what comes before them that of what comes after.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

constexpr const char* kScaleComment = "[1], dtype of X";

// The greatest absolute value; 0 of no elements. NaN is passed over.
template <typename T>
T AbsMax(const T* x, int64_t n) {
  const int64_t blocks = (n + kElementsPerBlock - 1) / kElementsPerBlock;
  PoolVector<T> of_block(static_cast<size_t>(blocks), T(0));
  ParallelFor(n, kElementsPerBlock, [&](int64_t begin, int64_t end) {
    T greatest = 0;
    for (int64_t i = begin; i < end; ++i) {
      greatest = std::max(greatest, std::abs(x[i]));
    }
    of_block[static_cast<size_t>(begin / kElementsPerBlock)] = greatest;
  });
  return of_block.empty() ? T(0) : *std::max_element(of_block.begin(), of_block.end());
}

// Where the scale is 0, X is clipped to zeros, and so is the result (Fluid divides them by zero).
template <typename T>
void Quantize(const ExecutionContext& ctx, T scale) {
  const auto most = static_cast<T>((1 << (ctx.Attr<int32_t>("bit_length") - 1)) - 1);
  const T divisor = scale == 0 ? T(1) : scale;
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  ParallelFor(x_tensor.numel(), kElementsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = std::round(std::clamp(x[i], -scale, scale) / divisor * most);
    }
  });
}

template <typename T>
void AbsMaxKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const T scale = AbsMax(x.data<T>(), x.numel());
  *ctx.Output("OutScale")->mutable_data<T>() = scale;
  Quantize(ctx, scale);
}

// The greatest of the last window_size scales, without a look at all of them in most steps: the one that leaves the
// window matters only if it was the greatest.
template <typename T>
void RangeAbsMaxKernel(const ExecutionContext& ctx) {
  T scale = *ctx.Input("InScale").data<T>();
  HR_ENFORCE(scale >= 0, OutOfRange, "input InScale: expected 0 or more, got ", scale);
  if (!ctx.Attr<bool>("is_test")) {
    const int64_t window = ctx.Attr<int32_t>("window_size");
    const int64_t step = *ctx.Input("Iter").data<int64_t>();
    HR_ENFORCE(step >= 0, OutOfRange, "input Iter: expected a number of steps, got ", step);
    LoDTensor* scales_tensor = ctx.Output("OutScales");
    const bool has_history = scales_tensor->initialized();
    T* scales = scales_tensor->mutable_data<T>();
    if (!has_history) {
      std::fill_n(scales, window, T(0));
    }
    const LoDTensor& x = ctx.Input("X");
    const T latest = AbsMax(x.data<T>(), x.numel());
    const T leaving = std::exchange(scales[step % window], latest);
    if (scale < latest) {
      scale = latest;
    } else if (std::abs(leaving - scale) < T(1e-6)) {
      scale = *std::max_element(scales, scales + std::min(step + 1, window));
    }
  }
  if (LoDTensor* out_scale = ctx.OutputOrNull("OutScale")) {
    *out_scale->mutable_data<T>() = scale;
  }
  Quantize(ctx, scale);
}

template <typename T>
void DequantizeKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const T factor = *ctx.Input("Scale").data<T>() / static_cast<T>(ctx.Attr<double>("max_range"));
  const T* x = x_tensor.data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  ParallelFor(x_tensor.numel(), kElementsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = factor * x[i];
    }
  });
}

void EnforceScale(const InferShapeContext& ctx, HashedName slot) {
  EnforceSameType(ctx, slot, "X");
  HR_ENFORCE(Fits(Numel(ctx.InputDim(slot)), 1), InvalidArgument, "input ", slot, ": expected a single element, got ",
             ToString(ctx.InputDim(slot)));
}

void InferRangeAbsMax(InferShapeContext& ctx) {
  EnforceScale(ctx, "InScale");
  const bool is_test = ctx.Attr<bool>("is_test");
  HR_ENFORCE(is_test || (ctx.HasInput("Iter") && ctx.HasOutput("OutScales")), InvalidArgument,
             "input Iter and output OutScales: expected both, as attribute is_test is false");
  if (ctx.HasInput("Iter")) {
    EnforceType(ctx, "Iter", DataType::kInt64);
    HR_ENFORCE(Fits(Numel(ctx.InputDim("Iter")), 1), InvalidArgument, "input Iter: expected a single element, got ",
               ToString(ctx.InputDim("Iter")));
  }
  ctx.ShareAll("X", "Out");
  SetOutput(ctx, "OutScale", {1}, ctx.InputType("X"));
  if (!is_test) {
    SetOutput(ctx, "OutScales", {ctx.Attr<int32_t>("window_size")}, ctx.InputType("X"));
  }
}

OpRegistrar&& BitLength(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("bit_length", "how many bits a number will have", 8, [](const int32_t& bits) {
    HR_ENFORCE(1 <= bits && bits <= 16, InvalidArgument, "attribute bit_length: expected 1 to 16, got ", bits);
  });
}

}  // namespace

HEADRACE_REGISTER_OP(fake_quantize_abs_max)
    .Comment("round(X (2^(bit_length - 1) - 1) / OutScale), OutScale being the greatest absolute value of X.")
    .Input("X", "any shape")
    .Output("Out", "dims and LoD of X: whole numbers, as floating point")
    .Output("OutScale", kScaleComment)
    .InPlace("Out", "X")
    .With(BitLength)
    .InferShape([](InferShapeContext& ctx) {
      ctx.ShareAll("X", "Out");
      SetOutput(ctx, "OutScale", {1}, ctx.InputType("X"));
    })
    .Kernel<float>(AbsMaxKernel<float>)
    .Kernel<double>(AbsMaxKernel<double>);

HEADRACE_REGISTER_OP(fake_quantize_range_abs_max)
    .Comment(
        "As fake_quantize_abs_max, with the greatest scale of the last window_size steps; with InScale if is_test. X "
        "is clipped to it.")
    .Input("X", "any shape")
    .Input("InScale", "[1], dtype of X: OutScale of the step before")
    .Input("Iter", "int64 [1]: the number of the step, from 0 on; not used if is_test", kDispensable)
    .Output("Out", "dims and LoD of X: whole numbers, as floating point")
    .Output("OutScale", "[1], dtype of X; may be InScale", kDispensable)
    .Output("OutScales",
            "[window_size], dtype of X: the scales of the last steps, which this step reads and changes; persistable, "
            "or every step is the first one. Not written if is_test",
            kDispensable)
    .InPlace("Out", "X")
    .InPlace("OutScale", "InScale")
    .With(BitLength)
    .Attr<int32_t>("window_size", "how many steps a scale lasts at most", 10000,
                   [](const int32_t& size) {
                     HR_ENFORCE(size >= 1, InvalidArgument, "attribute window_size: expected 1 or more, got ", size);
                   })
    .Attr<bool>("is_test", "whether the scale stays as it is", false)
    .InferShape(InferRangeAbsMax)
    .KernelTypeFrom("X")
    .Kernel<float>(RangeAbsMaxKernel<float>)
    .Kernel<double>(RangeAbsMaxKernel<double>);

HEADRACE_REGISTER_OP(fake_dequantize_max_abs)
    .Comment("X Scale / max_range: what whole numbers stand for.")
    .Input("X", "any shape")
    .Input("Scale", kScaleComment)
    .Output("Out", "dims and LoD of X")
    .InPlace("Out", "X")
    .Attr<double>("max_range", "the greatest whole number, 2^(bit_length - 1) - 1")
    .InferShape([](InferShapeContext& ctx) {
      EnforceScale(ctx, "Scale");
      ctx.ShareAll("X", "Out");
    })
    .KernelTypeFrom("X")
    .Kernel<float>(DequantizeKernel<float>)
    .Kernel<double>(DequantizeKernel<double>);

}  // namespace headrace::ops
