// add_position_encoding: where in its sequence each element stands, as sines and cosines added to it.
#include <cmath>
#include <cstdint>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// The place of each row in its sequence: X is [rows, width] with a LoD or [sequences, length, width].
PoolVector<int64_t> PlacesInSequences(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const DDim& dims = x.dims();
  PoolVector<int64_t> places(static_cast<size_t>(Numel(dims, 0, dims.size() - 1)));
  if (dims.size() == 3) {
    for (size_t r = 0; r < places.size(); ++r) {
      places[r] = static_cast<int64_t>(r) % dims[1];
    }
    return places;
  }
  ForEachSequence(SequencesOf(ctx, "X"), [&places](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      places[static_cast<size_t>(r)] = r - begin;
    }
  });
  return places;
}

template <typename T>
void AddPositionEncodingKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const PoolVector<int64_t> places = PlacesInSequences(ctx);
  const int64_t half = x_tensor.dims().back() / 2;
  const double alpha = ctx.Attr<double>("alpha");
  const double beta = ctx.Attr<double>("beta");
  PoolVector<double> periods(static_cast<size_t>(half), 1e4);
  for (int64_t k = 0; k < half && half > 1; ++k) {
    periods[static_cast<size_t>(k)] = std::pow(1e4, static_cast<double>(k) / static_cast<double>(half - 1));
  }
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* x = x_tensor.data<T>();
  const auto rows = static_cast<int64_t>(places.size());
  ParallelFor(half == 0 ? 0 : rows, RowsPerBlock(64 * half), [&, out, x](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* from = x + r * 2 * half;
      T* to = out + r * 2 * half;
      for (int64_t k = 0; k < half; ++k) {
        const double angle = static_cast<double>(places[static_cast<size_t>(r)]) / periods[static_cast<size_t>(k)];
        to[k] = static_cast<T>(static_cast<double>(from[k]) * alpha + std::sin(angle) * beta);
        to[half + k] = static_cast<T>(static_cast<double>(from[half + k]) * alpha + std::cos(angle) * beta);
      }
    }
  });
}

template <typename T>
void AddPositionEncodingGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  const auto alpha = static_cast<T>(ctx.Attr<double>("alpha"));
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const T* d = out_grad.data<T>();
  ParallelFor(out_grad.numel(), kElementsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      dx[i] = d[i] * alpha;
    }
  });
}

void CheckPositions(const InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  HR_ENFORCE(x.size() == 2 || x.size() == 3, InvalidArgument,
             "input X: expected dims [rows, width] with a LoD or [sequences, length, width], got ", ToString(x));
  EnforceLevelsAtMost(ctx, "X", x.size() == 2 ? 1 : 0);
  if (x.size() == 2) {
    EnforceSequences(ctx, "X", 2);
  }
  HR_ENFORCE(x.back() < 0 || x.back() % 2 == 0, InvalidArgument, "input X: expected an even width, got dims ",
             ToString(x));
}

void CheckEncodingScale(const double& value) {
  HR_ENFORCE(value >= 0, InvalidArgument, "attributes alpha and beta: expected numbers of 0 or more, got ", value);
}

OpRegistrar&& PositionAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<double>("alpha", "what X is multiplied with", 1.0, CheckEncodingScale)
      .Attr<double>("beta", "factor of the sines and cosines", 1.0, CheckEncodingScale);
}

}  // namespace

HEADRACE_REGISTER_OP(add_position_encoding)
    .Comment(
        "alpha * X + beta * (sines, then cosines of the place in the sequence, with periods from 2 pi to 20,000 pi) "
        "(A. Vaswani et al., 2017).")
    .Input("X", "[rows, width] with a LoD of one level, or [sequences, length, width]; an even width")
    .Output("Out", "dims and LoD of X")
    .InPlace("Out", "X")
    .With(PositionAttrs)
    .InferShape([](InferShapeContext& ctx) {
      CheckPositions(ctx);
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(AddPositionEncodingKernel<float>)
    .Kernel<double>(AddPositionEncodingKernel<double>)
    .Gradient(DefaultGradient({.inputs = {}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(add_position_encoding_grad)
    .Comment("Gradient of add_position_encoding.")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of Out")
    .With(PositionAttrs)
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "X@GRAD", ctx.InputDim("Out@GRAD"), ctx.InputType("Out@GRAD"));
    })
    .Kernel<float>(AddPositionEncodingGradKernel<float>)
    .Kernel<double>(AddPositionEncodingGradKernel<double>);

}  // namespace headrace::ops
