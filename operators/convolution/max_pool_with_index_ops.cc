// max_pool2d_with_index, max_pool3d_with_index: maxima of sliding windows, and where they were.
#include <algorithm>
#include <cstdint>
#include <string>

#include "framework/op_registry.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/convolution/pooling.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// Where the first of the greatest elements of a window lies within its map.
template <typename T>
int64_t FirstMaximum(const PoolShape& s, const T* x, const PoolAxis::Span& z, const PoolAxis::Span& y,
                     const PoolAxis::Span& c) {
  const auto at = [&](int64_t iz, int64_t iy, int64_t ix) { return (iz * s.rows.inputs + iy) * s.cols.inputs + ix; };
  int64_t found = at(z.begin, y.begin, c.begin);
  for (int64_t iz = z.begin; iz < z.end; ++iz) {
    for (int64_t iy = y.begin; iy < y.end; ++iy) {
      for (int64_t ix = c.begin; ix < c.end; ++ix) {
        const int64_t candidate = at(iz, iy, ix);
        const bool greater = x[candidate] > x[found] || (IsNaN(x[candidate]) && !IsNaN(x[found]));
        found = greater ? candidate : found;
      }
    }
  }
  return found;
}

template <typename T>
void PoolWithIndexKernel(const ExecutionContext& ctx, size_t spatial) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const PoolShape s(ctx.attrs(), spatial, x_tensor.dims());
  T* out = ctx.Output("Out")->mutable_data<T>();
  int32_t* mask = ctx.Output("Mask")->mutable_data<int32_t>();
  const T* x = x_tensor.data<T>();
  const auto pool_map = [=, &s](int64_t i) {
    const T* map = x + i * s.MapSize();
    int64_t to = i * s.OutputSizeOfMap();
    for (int64_t oz = 0; oz < s.planes.outputs; ++oz) {
      const PoolAxis::Span z = s.planes.At(oz);
      for (int64_t oy = 0; oy < s.rows.outputs; ++oy) {
        const PoolAxis::Span y = s.rows.At(oy);
        for (int64_t ox = 0; ox < s.cols.outputs; ++ox, ++to) {
          const int64_t found = FirstMaximum(s, map, z, y, s.cols.At(ox));
          out[to] = map[found];
          mask[to] = static_cast<int32_t>(found);
        }
      }
    }
  };
  ParallelForEach(s.maps, pool_map, 4 * s.MapSize());
}

template <typename T>
void PoolWithIndexGradKernel(const ExecutionContext& ctx, size_t spatial) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const PoolShape s(ctx.attrs(), spatial, x_tensor.dims());
  const int64_t size = s.MapSize();
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  const int32_t* mask = ctx.Input("Mask").data<int32_t>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const int64_t outputs = s.OutputSizeOfMap();
  const auto add_map = [=](int64_t i) {
    T* map = dx + i * size;
    std::fill_n(map, size, T(0));
    for (int64_t o = i * outputs; o < (i + 1) * outputs; ++o) {
      HR_ENFORCE(0 <= mask[o] && mask[o] < size, OutOfRange, "input Mask: map ", i, " has index ", mask[o],
                 ", expected one in [0, ", size, ")");
      map[mask[o]] += d[o];
    }
  };
  ParallelForEach(s.maps, add_map, size + outputs);
}

void RegisterMaxPoolWithIndex(const std::string& type, size_t spatial) {
  OpRegistrar forward(type);
  OpRegistrar backward(type + "_grad");
  const bool flat = spatial == 2;
  More(forward)
      .Comment("The maximum of each window, and where it was: of equal elements, the first.")
      .Input("X", flat ? "[N, C, H, W]" : "[N, C, D, H, W]")
      .Output("Out", std::string(flat ? "[N, C, OH, OW]" : "[N, C, OD, OH, OW]") +
                         ", OH = (H + 2 padding - ksize) / stride + 1, the others likewise")
      .Output("Mask", "int32, dims of Out: where each maximum lies within its map, row by row")
      .With(WindowAttrs, spatial)
      .InferShape([spatial](InferShapeContext& ctx) {
        const DDim x = ctx.InputDim("X");
        const DDim dims = PoolShape(ctx.attrs(), spatial, x).dims;
        HR_ENFORCE(Numel(x, 2, x.size()) <= INT32_MAX, InvalidArgument,
                   "input X: expected at most 2^31 - 1 elements in a map, got dims ", ToString(x));
        SetOutput(ctx, "Out", dims, ctx.InputType("X"));
        SetOutput(ctx, "Mask", dims, DataType::kInt32);
        ctx.ShareLoD("X", "Out");
      })
      .Kernel<float>([spatial](const ExecutionContext& ctx) { PoolWithIndexKernel<float>(ctx, spatial); })
      .Kernel<double>([spatial](const ExecutionContext& ctx) { PoolWithIndexKernel<double>(ctx, spatial); })
      .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {"Mask"}, .no_gradient = {}}))
      .Register();
  More(backward)
      .Comment("Gradient of " + type + ".")
      .Input("X", "as in the operator; only its dims are used", kShapeOnly)
      .Input("Mask", "as in the operator")
      .Input("Out@GRAD", "gradient of Out")
      .Input("Mask@GRAD", "not used", kDispensable)
      .Output("X@GRAD", "dims of X")
      .With(WindowAttrs, spatial)
      .InferShape([spatial](InferShapeContext& ctx) {
        const DDim out = PoolShape(ctx.attrs(), spatial, ctx.InputDim("X")).dims;
        EnforceDims(ctx, "Mask", out);
        EnforceType(ctx, "Mask", DataType::kInt32);
        EnforceDims(ctx, "Out@GRAD", out);
        EnforceSameType(ctx, "Out@GRAD", "X");
        InferGradients(ctx, {"X"});
      })
      .Kernel<float>([spatial](const ExecutionContext& ctx) { PoolWithIndexGradKernel<float>(ctx, spatial); })
      .Kernel<double>([spatial](const ExecutionContext& ctx) { PoolWithIndexGradKernel<double>(ctx, spatial); })
      .Register();
}

HEADRACE_REGISTER_OPS(max_pool_with_index_ops) {
  RegisterMaxPoolWithIndex("max_pool2d_with_index", 2);
  RegisterMaxPoolWithIndex("max_pool3d_with_index", 3);
}

}  // namespace
}  // namespace headrace::ops
