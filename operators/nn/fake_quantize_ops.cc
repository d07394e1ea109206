// fake_quantize_abs_max, fake_quantize_range_abs_max, fake_quantize_moving_average_abs_max,
// fake_quantize_dequantize_moving_average_abs_max, fake_channel_wise_quantize_abs_max, fake_dequantize_max_abs,
// fake_channel_wise_dequantize_max_abs, moving_average_abs_max_scale: the rounding that a network with integers of few
// bits will have, on floating point, so that it is trained with it (B. Jacob et al., Quantization and training of
// neural networks for efficient integer-arithmetic-only inference, 2018).
//
// A number of b bits stands for a multiple of scale / (2^(b - 1) - 1) between -scale and scale. None of these operators
// has a gradient: Fluid's programs give what comes before them that of what comes after.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "framework/ddim.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

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

// The greatest whole number of so many bits.
inline int32_t MostOfBits(int32_t bits) { return (1 << (bits - 1)) - 1; }

// Where the scale is 0, x is clipped to zeros, and so is the result (Fluid divides them by zero).
template <typename T>
T Quantized(T x, T scale, T most) {
  return std::round(std::clamp(x, -scale, scale) / (scale == 0 ? T(1) : scale) * most);
}

template <typename T>
void Quantize(const ExecutionContext& ctx, T scale) {
  const auto most = static_cast<T>(MostOfBits(ctx.Attr<int32_t>("bit_length")));
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  ParallelFor(x_tensor.numel(), kElementsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = Quantized(x[i], scale, most);
    }
  });
}

// What the whole numbers of the result stand for, once more as such.
template <typename T>
void ScaleBack(const ExecutionContext& ctx, T scale) {
  const T factor = scale / static_cast<T>(MostOfBits(ctx.Attr<int32_t>("bit_length")));
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  ParallelFor(out_tensor->numel(), kElementsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] *= factor;
    }
  });
}

// Calls visit(channel, begin, end) for parts of the elements of dims `dims`, by several threads: each part lies in one
// index of dimension `axis`.
template <typename Visit>
void ForEachChannelPart(const DDim& dims, size_t axis, const Visit& visit) {
  int64_t size = 1;
  for (size_t d = axis + 1; d < dims.size(); ++d) {
    size *= dims[d];
  }
  const int64_t channels = dims[axis];
  const int64_t parts = size == 0 ? 0 : Numel(dims) / size;
  ParallelFor(parts, RowsPerBlock(size), [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      visit(part % channels, part * size, (part + 1) * size);
    }
  });
}

template <typename T>
void ChannelAbsMaxKernel(const ExecutionContext& ctx) {
  const auto most = static_cast<T>(MostOfBits(ctx.Attr<int32_t>("bit_length")));
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  T* scales = ctx.Output("OutScale")->mutable_data<T>();
  std::fill_n(scales, x_tensor.dims()[0], T(0));
  T* out = ctx.Output("Out")->mutable_data<T>();
  ForEachChannelPart(x_tensor.dims(), 0, [=](int64_t channel, int64_t begin, int64_t end) {
    T scale = 0;
    for (int64_t i = begin; i < end; ++i) {
      scale = std::max(scale, std::abs(x[i]));
    }
    for (int64_t i = begin; i < end; ++i) {
      out[i] = Quantized(x[i], scale, most);
    }
    scales[channel] = scale;
  });
}

// The next state of a moving average, and the average.
template <typename T>
T MoveAverage(const ExecutionContext& ctx) {
  const auto rate = static_cast<T>(ctx.Attr<double>("moving_rate"));
  const LoDTensor& x = ctx.Input("X");
  const T state = rate * *ctx.Input("InState").data<T>() + 1;
  const T sum = rate * *ctx.Input("InAccum").data<T>() + AbsMax(x.data<T>(), x.numel());
  *ctx.Output("OutState")->mutable_data<T>() = state;
  *ctx.Output("OutAccum")->mutable_data<T>() = sum;
  return sum / state;
}

template <typename T>
T MovingScale(const ExecutionContext& ctx) {
  T scale = *ctx.Input("InScale").data<T>();
  if (!ctx.Attr<bool>("is_test")) {
    scale = MoveAverage<T>(ctx);
  }
  HR_ENFORCE(scale >= 0, OutOfRange, "inputs InScale, InAccum and InState: expected a scale of 0 or more, got ", scale);
  if (LoDTensor* out_scale = ctx.OutputOrNull("OutScale")) {
    *out_scale->mutable_data<T>() = scale;
  }
  return scale;
}

template <typename T>
void MovingAverageKernel(const ExecutionContext& ctx) {
  Quantize(ctx, MovingScale<T>(ctx));
}

template <typename T>
void MovingAverageBackKernel(const ExecutionContext& ctx) {
  const T scale = MovingScale<T>(ctx);
  Quantize(ctx, scale);
  ScaleBack(ctx, scale);
}

template <typename T>
void MovingAverageScaleKernel(const ExecutionContext& ctx) {
  if (!ctx.Attr<bool>("is_test")) {
    const T scale = MoveAverage<T>(ctx);
    if (LoDTensor* out_scale = ctx.OutputOrNull("OutScale")) {
      *out_scale->mutable_data<T>() = scale;
    }
  }
  const LoDTensor& x = ctx.Input("X");
  T* out = ctx.Output("Out")->mutable_data<T>();
  if (out != x.data<T>()) {
    ParallelCopy(x.data<T>(), x.numel(), out);
  }
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

// Of scales of the rows of X, or, if there is another scale of all elements, of its columns.
template <typename T>
void ChannelDequantizeKernel(const ExecutionContext& ctx) {
  const auto& bits = ctx.Attr<std::vector<int32_t>>("quant_bits");
  const bool has_other = ctx.InputSize("Scales") == 2;
  T factor = T(1) / static_cast<T>(MostOfBits(bits[0]));
  if (has_other) {
    factor *= *ctx.Input("Scales", 1).data<T>() / static_cast<T>(MostOfBits(bits[1]));
  }
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  const T* scales = ctx.Input("Scales").data<T>();
  T* out = ctx.Output("Out")->mutable_data<T>();
  ForEachChannelPart(x_tensor.dims(), has_other ? 1 : 0, [=](int64_t channel, int64_t begin, int64_t end) {
    const T scale = scales[channel] * factor;
    for (int64_t i = begin; i < end; ++i) {
      out[i] = scale * x[i];
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

void InferMovingAverage(InferShapeContext& ctx) {
  const bool is_test = ctx.Attr<bool>("is_test");
  for (const auto& [in, out] : {std::pair<HashedName, HashedName>{"InState", "OutState"}, {"InAccum", "OutAccum"}}) {
    HR_ENFORCE(is_test || (ctx.HasInput(in) && ctx.HasOutput(out)), InvalidArgument, "input ", in, " and output ", out,
               ": expected both, as attribute is_test is false");
    if (ctx.HasInput(in)) EnforceScale(ctx, in);
    if (!is_test) SetOutput(ctx, out, {1}, ctx.InputType("X"));
  }
  ctx.ShareAll("X", "Out");
}

void InferMovingScale(InferShapeContext& ctx) {
  EnforceScale(ctx, "InScale");
  InferMovingAverage(ctx);
  SetOutput(ctx, "OutScale", {1}, ctx.InputType("X"));
}

void InferChannelDequantize(InferShapeContext& ctx) {
  const size_t count = ctx.InputSize("Scales");
  HR_ENFORCE(count == 1 || count == 2, InvalidArgument, "input Scales: expected one variable or two, got ", count);
  HR_ENFORCE(ctx.Attr<std::vector<int32_t>>("quant_bits").size() == count, InvalidArgument,
             "attribute quant_bits: expected a number for each of input Scales, got ",
             ToString(Attribute(ctx.Attr<std::vector<int32_t>>("quant_bits"))));
  EnforceRankAtLeast(ctx, "X", count);
  EnforceDims(ctx, "Scales", {ctx.InputDim("X")[count - 1]});
  for (size_t i = 0; i < count; ++i) {
    EnforceType(ctx, "Scales", ctx.InputType("X"), i);
  }
  if (count == 2) {
    EnforceDims(ctx, "Scales", {1}, 1);
  }
  ctx.ShareAll("X", "Out");
}

void CheckBits(const char* attr, int32_t bits, int32_t least) {
  HR_ENFORCE(least <= bits && bits <= 16, InvalidArgument, "attribute ", attr, ": expected ", least, " to 16, got ",
             bits);
}

OpRegistrar&& BitLength(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("bit_length", "how many bits a number will have", 8,
                                     [](const int32_t& bits) { CheckBits("bit_length", bits, 1); });
}

OpRegistrar&& MovingAverageSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("InAccum", "[1], dtype of X: OutAccum of the step before; not used if is_test", kDispensable)
      .Input("InState", "[1], dtype of X: OutState of the step before; not used if is_test", kDispensable)
      .Output("OutAccum",
              "[1]: moving_rate * InAccum plus the greatest absolute value of X; may be InAccum. Not written if "
              "is_test",
              kDispensable)
      .Output("OutState", "[1]: moving_rate * InState + 1; may be InState. Not written if is_test", kDispensable)
      .InPlace("Out", "X")
      .InPlace("OutAccum", "InAccum")
      .InPlace("OutState", "InState")
      .Attr<double>("moving_rate", "how much of the average stays in a step", 0.9)
      .Attr<bool>("is_test", "whether the scale stays as it is", false)
      .KernelTypeFrom("X");
}

OpRegistrar&& MovingScaleSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("X", "any shape")
      .Input("InScale", "[1], dtype of X: the scale if is_test")
      .Output("OutScale", "[1], the scale: OutAccum / OutState; may be InScale", kDispensable)
      .InPlace("OutScale", "InScale")
      .With(BitLength)
      .InferShape(InferMovingScale);
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

HEADRACE_REGISTER_OP(fake_quantize_moving_average_abs_max)
    .Comment(
        "As fake_quantize_abs_max, with a moving average of the greatest absolute values of the steps; with InScale if "
        "is_test. X is clipped to it.")
    .With(MovingScaleSlots)
    .Output("Out", "dims and LoD of X: whole numbers, as floating point")
    .With(MovingAverageSlots)
    .Kernel<float>(MovingAverageKernel<float>)
    .Kernel<double>(MovingAverageKernel<double>);

HEADRACE_REGISTER_OP(fake_quantize_dequantize_moving_average_abs_max)
    .Comment("What the whole numbers of fake_quantize_moving_average_abs_max stand for.")
    .With(MovingScaleSlots)
    .Output("Out", "dims and LoD of X")
    .With(MovingAverageSlots)
    .Kernel<float>(MovingAverageBackKernel<float>)
    .Kernel<double>(MovingAverageBackKernel<double>);

HEADRACE_REGISTER_OP(moving_average_abs_max_scale)
    .Comment("X as it is, and the scale of fake_quantize_moving_average_abs_max.")
    .Input("X", "any shape")
    .Output("Out", "X")
    .Output("OutScale", "[1], dtype of X: OutAccum / OutState. Not written if is_test", kDispensable)
    .With(MovingAverageSlots)
    .InferShape([](InferShapeContext& ctx) {
      InferMovingAverage(ctx);
      if (!ctx.Attr<bool>("is_test")) {
        SetOutput(ctx, "OutScale", {1}, ctx.InputType("X"));
      }
    })
    .Kernel<float>(MovingAverageScaleKernel<float>)
    .Kernel<double>(MovingAverageScaleKernel<double>);

HEADRACE_REGISTER_OP(fake_channel_wise_quantize_abs_max)
    .Comment("fake_quantize_abs_max of each index of the first dimension of X by itself.")
    .Input("X", "rank 1 or more")
    .Output("Out", "dims and LoD of X: whole numbers, as floating point")
    .Output("OutScale", "[rows of X], dtype of X")
    .InPlace("Out", "X")
    .With(BitLength)
    .InferShape([](InferShapeContext& ctx) {
      EnforceRankAtLeast(ctx, "X", 1);
      ctx.ShareAll("X", "Out");
      SetOutput(ctx, "OutScale", {ctx.InputDim("X")[0]}, ctx.InputType("X"));
    })
    .Kernel<float>(ChannelAbsMaxKernel<float>)
    .Kernel<double>(ChannelAbsMaxKernel<double>);

HEADRACE_REGISTER_OP(fake_channel_wise_dequantize_max_abs)
    .Comment(
        "X times the scale of each index of its first dimension, by 2^(quant_bits[0] - 1) - 1; or, with another scale, "
        "of its second dimension, times that by 2^(quant_bits[1] - 1) - 1.")
    .Input("X", "rank 1, or 2, or more")
    .Input("Scales", "one variable, [rows of X]; or two, [columns of X] and [1]; dtype of X", kDuplicable)
    .Output("Out", "dims and LoD of X")
    .InPlace("Out", "X")
    .Attr<std::vector<int32_t>>("quant_bits", "how many bits the numbers of each scale have, 2 or more", {8},
                                [](const std::vector<int32_t>& bits) {
                                  for (const int32_t each : bits) CheckBits("quant_bits", each, 2);
                                })
    .InferShape(InferChannelDequantize)
    .KernelTypeFrom("X")
    .Kernel<float>(ChannelDequantizeKernel<float>)
    .Kernel<double>(ChannelDequantizeKernel<double>);

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
