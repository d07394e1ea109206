// random_crop: a random part of each instance.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/philox.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// Copies the part of dims to[d...] that begins at `from`, which lies in a tensor of dims x[d...], to `*out`.
template <typename T>
void CopyPart(const DDim& x, const DDim& to, size_t d, const PoolVector<int64_t>& strides, const T* from, T** out) {
  if (d + 1 == x.size()) {
    *out = std::copy_n(from, to[d], *out);
    return;
  }
  for (int64_t i = 0; i < to[d]; ++i) {
    CopyPart(x, to, d + 1, strides, from + i * strides[d], out);
  }
}

template <typename T>
void RandomCropKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const DDim& x = x_tensor.dims();
  const auto& shape = ctx.Attr<std::vector<int32_t>>("shape");
  const size_t batch_dims = x.size() - shape.size();
  const int64_t seed = *ctx.Input("Seed").data<int64_t>();
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  const PhiloxStream stream(static_cast<uint64_t>(seed));
  PoolVector<int64_t> strides(x.size(), 1);
  for (size_t d = x.size() - 1; d-- > 0;) {
    strides[d] = strides[d + 1] * x[d + 1];
  }
  const int64_t instances = Numel(x, 0, batch_dims);
  const int64_t size = Numel(x, batch_dims, x.size());
  const DDim& to = out_tensor->dims();
  const int64_t out_size = Numel(to, batch_dims, to.size());
  const T* data = x_tensor.data<T>();
  const auto crop = [=, &x, &to, &stream, &strides](int64_t i) {
    const T* from = data + i * size;
    uint64_t draw = static_cast<uint64_t>(i) * (x.size() - batch_dims);
    for (size_t d = batch_dims; d < x.size(); ++d) {
      // A multiplication in place of a division: the bias, a 2^-32nd of the number of places, does not matter.
      const auto places = static_cast<uint64_t>(x[d] - to[d] + 1);
      const auto bits = static_cast<uint64_t>(stream.Block(draw++)[0]);
      from += static_cast<int64_t>(bits * places >> 32) * strides[d];
    }
    T* part = out + i * out_size;
    CopyPart(x, to, batch_dims, strides, from, &part);
  };
  ParallelForEach(instances, crop, out_size);
  const PhiloxBlock next = stream.Block(~uint64_t{0});
  *ctx.Output("SeedOut")->mutable_data<int64_t>() =
      static_cast<int64_t>((static_cast<uint64_t>(next[0]) << 32 | next[1]) >> 1);
}

void InferRandomCrop(InferShapeContext& ctx) {
  DDim dims = ctx.InputDim("X");
  const auto& shape = ctx.Attr<std::vector<int32_t>>("shape");
  HR_ENFORCE(!shape.empty() && shape.size() <= dims.size(), InvalidArgument, "attribute shape: expected 1 to ",
             dims.size(), " dimensions, as X has dims ", ToString(dims), ", got ", ToString(Attribute(shape)));
  const size_t batch_dims = dims.size() - shape.size();
  for (size_t d = batch_dims; d < dims.size(); ++d) {
    const int64_t wanted = shape[d - batch_dims];
    HR_ENFORCE(wanted > 0 && (dims[d] < 0 || wanted <= dims[d]) && dims[d] < int64_t{1} << 31, InvalidArgument,
               "attribute shape: expected at most the last dimensions of X, ", ToString(dims), ", each 1 or more, got ",
               ToString(Attribute(shape)));
    dims[d] = wanted;
  }
  EnforceType(ctx, "Seed", DataType::kInt64);
  HR_ENFORCE(Fits(Numel(ctx.InputDim("Seed")), 1), InvalidArgument, "input Seed: expected a single element, got dims ",
             ToString(ctx.InputDim("Seed")));
  SetOutput(ctx, "Out", dims, ctx.InputType("X"));
  SetOutput(ctx, "SeedOut", {1}, DataType::kInt64);
}

}  // namespace

HEADRACE_REGISTER_OP(random_crop)
    .Comment("A part of each instance, at a random place.")
    .Input("X", "[..., instance]; the last dimensions, as many as shape has, are those of an instance")
    .Input("Seed", "int64 [1]: the same places whenever it is the same")
    .Output("Out", "[..., shape...], dtype of X")
    .Output("SeedOut", "int64 [1]: the seed of the next run; may be Seed")
    .InPlace("SeedOut", "Seed")
    .Attr<std::vector<int32_t>>("shape", "the dims of the parts")
    .Attr<int32_t>("startup_seed", "Fluid's; has no effect, since Seed must hold a number", 0)
    .KernelTypeFrom("X")
    .InferShape(InferRandomCrop)
    .Kernel<float>(RandomCropKernel<float>)
    .Kernel<double>(RandomCropKernel<double>)
    .Kernel<int32_t>(RandomCropKernel<int32_t>)
    .Kernel<int64_t>(RandomCropKernel<int64_t>)
    .Kernel<uint8_t>(RandomCropKernel<uint8_t>);

}  // namespace headrace::ops
