// temporal_shift: some channels of the images of a video, one step later or earlier.
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// Channels [0, later) of an image of `to` are those of the image `step` before, [later, earlier) those of the image
// `step` after; the others stay. Beyond the ends of a video are zeros.
template <typename T>
void ShiftImages(const ExecutionContext& ctx, const LoDTensor& x, int64_t step, LoDTensor* out) {
  const DDim& dims = x.dims();
  const int64_t segments = ctx.Attr<int32_t>("seg_num");
  const auto ratio = static_cast<float>(ctx.Attr<double>("shift_ratio"));
  const int64_t channels = dims[1];
  const auto later = static_cast<int64_t>(static_cast<float>(channels) * ratio);
  const auto earlier = static_cast<int64_t>(static_cast<float>(channels * 2) * ratio);
  const int64_t pixels = dims[2] * dims[3];
  const T* from = x.data<T>();
  T* to = out->mutable_data<T>();
  ParallelFor(dims[0], RowsPerBlock(channels * pixels), [=](int64_t begin, int64_t end) {
    for (int64_t image = begin; image < end; ++image) {
      const auto copy = [=](int64_t first, int64_t last, int64_t shift) {
        const int64_t source = image % segments + shift;
        T* part = to + (image * channels + first) * pixels;
        const int64_t n = (last - first) * pixels;
        if (source < 0 || source >= segments) {
          std::fill_n(part, n, T(0));
        } else {
          std::copy_n(from + ((image + shift) * channels + first) * pixels, n, part);
        }
      };
      copy(0, later, -step);
      copy(later, earlier, step);
      copy(earlier, channels, 0);
    }
  });
}

template <typename T>
void TemporalShiftKernel(const ExecutionContext& ctx) {
  ShiftImages<T>(ctx, ctx.Input("X"), 1, ctx.Output("Out"));
}

template <typename T>
void TemporalShiftGradKernel(const ExecutionContext& ctx) {
  ShiftImages<T>(ctx, ctx.Input("Out@GRAD"), -1, ctx.Output("X@GRAD"));
}

void CheckVideos(const InferShapeContext& ctx, HashedName slot) {
  EnforceRank(ctx, slot, 4);
  const DDim x = ctx.InputDim(slot);
  const int32_t segments = ctx.Attr<int32_t>("seg_num");
  HR_ENFORCE(segments > 0, InvalidArgument, "attribute seg_num: expected 1 or more, got ", segments);
  HR_ENFORCE(x[0] < 0 || x[0] % segments == 0, InvalidArgument, "input ", slot,
             ": expected a multiple of seg_num images, ", segments, ", got dims ", ToString(x));
}

OpRegistrar&& TemporalShiftAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int32_t>("seg_num", "how many images a video has")
      .Attr<double>("shift_ratio", "the part of the channels that come a step later, and that come a step earlier",
                    0.25, [](const double& ratio) {
                      HR_ENFORCE(ratio > 0 && ratio < 0.5, InvalidArgument,
                                 "attribute shift_ratio: expected a number between 0 and 0.5, got ", ratio);
                    });
}

}  // namespace

HEADRACE_REGISTER_OP(temporal_shift)
    .Comment("Some channels of the images of videos, a step later or earlier (J. Lin et al., TSM, 2018).")
    .Input("X", "[N * seg_num, C, H, W]")
    .Output("Out", "dims and LoD of X")
    .With(TemporalShiftAttrs)
    .InferShape([](InferShapeContext& ctx) {
      CheckVideos(ctx, "X");
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(TemporalShiftKernel<float>)
    .Kernel<double>(TemporalShiftKernel<double>)
    .Gradient(DefaultGradient({.inputs = {}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(temporal_shift_grad)
    .Comment("Gradient of temporal_shift.")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of Out")
    .With(TemporalShiftAttrs)
    .InferShape([](InferShapeContext& ctx) {
      CheckVideos(ctx, "Out@GRAD");
      SetOutput(ctx, "X@GRAD", ctx.InputDim("Out@GRAD"), ctx.InputType("Out@GRAD"));
    })
    .Kernel<float>(TemporalShiftGradKernel<float>)
    .Kernel<double>(TemporalShiftGradKernel<double>);

}  // namespace headrace::ops
