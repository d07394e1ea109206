// lrn: local response normalisation, each pixel by its neighbours in other channels (A. Krizhevsky, I. Sutskever and
// G. Hinton, ImageNet classification with deep convolutional neural networks, 2012).
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/layout.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// Images with the channels last are images of a single pixel each here.
struct LrnShape {
  explicit LrnShape(const ExecutionContext& ctx) : n(ctx.Attr<int32_t>("n")), before((n - 1) / 2) {
    const DDim& dims = ctx.Input("X").dims();
    const bool last = HasChannelsLast(ctx.attrs());
    images = last ? Numel(dims, 0, 3) : dims[0];
    channels = ChannelsOf(dims, last);
    pixels = last ? 1 : dims[2] * dims[3];
  }

  // The channels that channel `c` is normalised by, or with the sign turned round, those that it normalises.
  int64_t First(int64_t c) const { return std::max<int64_t>(c - before, 0); }
  int64_t Last(int64_t c) const { return std::min(c - before + n, channels) - 1; }

  int64_t images = 0;
  int64_t channels = 0;
  int64_t pixels = 0;
  int64_t n;
  int64_t before;  // how many channels before its own a window begins
};

template <typename T>
void LrnKernel(const ExecutionContext& ctx) {
  const LrnShape s(ctx);
  const auto k = static_cast<T>(ctx.Attr<double>("k"));
  const auto alpha = static_cast<T>(ctx.Attr<double>("alpha"));
  const auto beta = static_cast<T>(ctx.Attr<double>("beta"));
  T* out = ctx.Output("Out")->mutable_data<T>();
  T* mid = ctx.Output("MidOut")->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  ParallelFor(s.images * s.channels, RowsPerBlock((32 + s.n) * s.pixels), [=](int64_t begin, int64_t end) {
    for (int64_t map = begin; map < end; ++map) {
      const int64_t c = map % s.channels;
      const T* image = x + (map - c) * s.pixels;
      T* to_mid = mid + map * s.pixels;
      std::fill_n(to_mid, s.pixels, T(0));
      for (int64_t other = s.First(c); other <= s.Last(c); ++other) {
        const T* channel = image + other * s.pixels;
        for (int64_t p = 0; p < s.pixels; ++p) {
          to_mid[p] += channel[p] * channel[p];
        }
      }
      for (int64_t p = 0; p < s.pixels; ++p) {
        to_mid[p] = k + alpha * to_mid[p];
        out[map * s.pixels + p] = x[map * s.pixels + p] * std::pow(to_mid[p], -beta);
      }
    }
  });
}

// dx = dy mid^-beta - 2 alpha beta x Σ dy' y' / mid', over the channels (') that x normalises.
template <typename T>
void LrnGradKernel(const ExecutionContext& ctx) {
  const LrnShape s(ctx);
  const auto beta = static_cast<T>(ctx.Attr<double>("beta"));
  const auto factor = static_cast<T>(2 * ctx.Attr<double>("alpha") * ctx.Attr<double>("beta"));
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const T* x = ctx.Input("X").data<T>();
  const T* out = ctx.Input("Out").data<T>();
  const T* mid = ctx.Input("MidOut").data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const int64_t after = s.n - 1 - s.before;
  ParallelFor(s.images * s.channels, RowsPerBlock((32 + s.n) * s.pixels), [=](int64_t begin, int64_t end) {
    for (int64_t map = begin; map < end; ++map) {
      const int64_t c = map % s.channels;
      const int64_t first = map * s.pixels;
      T* to = dx + first;
      std::fill_n(to, s.pixels, T(0));
      const int64_t last = std::min(c + s.before, s.channels - 1);
      for (int64_t other = std::max<int64_t>(c - after, 0); other <= last; ++other) {
        const int64_t at = (map - c + other) * s.pixels;
        for (int64_t p = 0; p < s.pixels; ++p) {
          to[p] += d[at + p] * out[at + p] / mid[at + p];
        }
      }
      for (int64_t p = 0; p < s.pixels; ++p) {
        to[p] = d[first + p] * std::pow(mid[first + p], -beta) - factor * x[first + p] * to[p];
      }
    }
  });
}

OpRegistrar&& LrnAttrs(OpRegistrar&& op) {
  const auto positive = [](const char* name) {
    return [name](const double& value) {
      HR_ENFORCE(value > 0 && std::isfinite(value), InvalidArgument, "attribute ", name,
                 ": expected a number above 0, got ", value);
    };
  };
  return std::move(op)
      .Attr<int32_t>(
          "n", "how many channels a pixel is normalised by", 5,
          [](const int32_t& n) { HR_ENFORCE(n > 0, InvalidArgument, "attribute n: expected 1 or more, got ", n); })
      .Attr<double>("k", "added to the sum of the squares, times alpha", 2.0, positive("k"))
      .Attr<double>("alpha", "factor on the sum of the squares", 1e-4,
                    [](const double& alpha) {
                      HR_ENFORCE(alpha >= 0 && std::isfinite(alpha), InvalidArgument,
                                 "attribute alpha: expected a number of 0 or more, got ", alpha);
                    })
      .Attr<double>("beta", "exponent", 0.75, positive("beta"))
      .With(LayoutAttr, "data_format", "NCHW");
}

}  // namespace

HEADRACE_REGISTER_OP(lrn)
    .Comment("X / MidOut^beta, MidOut = k + alpha times the sum of the squares of X over n channels around each.")
    .Input("X", "[N, C, H, W], or [N, H, W, C]")
    .Output("Out", "dims of X")
    .Output("MidOut", "dims of X")
    .With(LrnAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "X", 4);
      ctx.ShareAll("X", "Out");
      SetOutput(ctx, "MidOut", ctx.InputDim("X"), ctx.InputType("X"));
    })
    .Kernel<float>(LrnKernel<float>)
    .Kernel<double>(LrnKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {"Out", "MidOut"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(lrn_grad)
    .Comment("Gradient of lrn.")
    .Input("X", "as in the operator")
    .Input("Out", "as in the operator")
    .Input("MidOut", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Input("MidOut@GRAD", "not used", kDispensable)
    .Output("X@GRAD", "dims of X")
    .With(LrnAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "X", 4);
      for (const HashedName slot : HashedNames{"Out", "MidOut", "Out@GRAD"}) {
        EnforceDims(ctx, slot, ctx.InputDim("X"));
        EnforceSameType(ctx, slot, "X");
      }
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(LrnGradKernel<float>)
    .Kernel<double>(LrnGradKernel<double>);

}  // namespace headrace::ops
