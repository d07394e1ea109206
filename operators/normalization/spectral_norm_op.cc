// spectral_norm: a weight divided by its greatest singular value, as a few steps of power iteration find it (T. Miyato
// et al., Spectral normalization for generative adversarial networks, 2018).
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "framework/ddim.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/gemm.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/permute.h"
#include "operators/math/scratch.h"

namespace headrace::ops {
namespace {

// Divides x by its length.
template <typename T>
void Normalise(int64_t n, T epsilon, T* x) {
  const T divisor = std::sqrt(ParallelSumOf<T>(n, [x](int64_t i) { return x[i] * x[i]; })) + epsilon;
  for (int64_t i = 0; i < n; ++i) {
    x[i] /= divisor;
  }
}

// The weight as a matrix whose rows are those of dimension `dim`, its singular value, and the vectors that belong to
// it.
template <typename T>
struct SpectralNorm {
  explicit SpectralNorm(const ExecutionContext& ctx) {
    const LoDTensor& weight = ctx.Input("Weight");
    const DDim& dims = weight.dims();
    const size_t dim = FrontAxis(ctx.Attr<int32_t>("dim"), dims.size(), "dim");
    rows = dims[dim];
    columns = weight.numel() / std::max<int64_t>(rows, 1);
    inner = 1;
    for (size_t d = dim + 1; d < dims.size(); ++d) {
      inner *= dims[d];
    }
    const T* matrix = weight.data<T>();
    Tensor memory;
    if (dim != 0) {
      PoolVector<size_t> order{dim};
      for (size_t d = 0; d < dims.size(); ++d) {
        if (d != dim) order.push_back(d);
      }
      T* permuted = Scratch<T>(&memory, weight.numel());
      Permute(dims, order, sizeof(T), matrix, permuted);
      matrix = permuted;
    }
    u = Scratch<T>(&u_memory_, rows);
    v = Scratch<T>(&v_memory_, columns);
    std::copy_n(ctx.Input("U").data<T>(), rows, u);
    std::copy_n(ctx.Input("V").data<T>(), columns, v);
    const auto epsilon = static_cast<T>(ctx.Attr<double>("eps"));
    for (int32_t i = 0; i < ctx.Attr<int32_t>("power_iters"); ++i) {
      Gemm<T>(false, false, 1, columns, rows, 1, u, matrix, false, v);
      Normalise(columns, epsilon, v);
      Gemm<T>(false, false, rows, 1, columns, 1, matrix, v, false, u);
      Normalise(rows, epsilon, u);
    }
    Tensor product_memory;
    T* product = Scratch<T>(&product_memory, rows);
    Gemm<T>(false, false, rows, 1, columns, 1, matrix, v, false, product);
    value = SumOf<T>(rows, [this, product](int64_t r) { return u[r] * product[r]; });
  }

  int64_t rows;
  int64_t columns;
  int64_t inner;  // how many elements of a row lie side by side in the weight
  T* u;
  T* v;
  T value;

 private:
  Tensor u_memory_;
  Tensor v_memory_;
};

template <typename T>
void SpectralNormKernel(const ExecutionContext& ctx) {
  const T* weight = ctx.Input("Weight").data<T>();
  const T value = SpectralNorm<T>(ctx).value;
  T* out = ctx.Output("Out")->mutable_data<T>();
  ParallelFor(ctx.Input("Weight").numel(), kElementsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = weight[i] / value;
    }
  });
}

// With W the weight, s its singular value and d the gradient: d / s - (Σ d W) / s² · u vᵀ.
template <typename T>
void SpectralNormGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& weight_tensor = ctx.Input("Weight");
  const T* weight = weight_tensor.data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const SpectralNorm<T> norm(ctx);
  T* dw = ctx.Output("Weight@GRAD")->mutable_data<T>();
  const int64_t numel = weight_tensor.numel();
  const T sum = ParallelSumOf<T>(numel, [=](int64_t i) { return d[i] * weight[i]; });
  const T share = sum / (norm.value * norm.value);
  // Runs of a row, each of `inner` elements.
  ParallelFor(numel / std::max<int64_t>(norm.inner, 1), RowsPerBlock(norm.inner),
              [&, share](int64_t begin, int64_t end) {
                for (int64_t run = begin; run < end; ++run) {
                  const T factor = share * norm.u[run % norm.rows];
                  const T* v = norm.v + run / norm.rows * norm.inner;
                  const int64_t first = run * norm.inner;
                  for (int64_t i = 0; i < norm.inner; ++i) {
                    dw[first + i] = d[first + i] / norm.value - factor * v[i];
                  }
                }
              });
}

void CheckSpectralNorm(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "Weight", 2);
  const DDim weight = ctx.InputDim("Weight");
  const size_t dim = FrontAxis(ctx.Attr<int32_t>("dim"), weight.size(), "dim");
  int64_t columns = 1;
  for (size_t d = 0; d < weight.size(); ++d) {
    HR_ENFORCE(weight[d] != 0, InvalidArgument, "input Weight: expected elements, got dims ", ToString(weight));
    if (d != dim) columns = columns < 0 || weight[d] < 0 ? -1 : MultiplyExtents(columns, weight[d]);
  }
  for (const auto& [slot, extent] : {std::pair<HashedName, int64_t>{"U", weight[dim]}, {"V", columns}}) {
    EnforceDims(ctx, slot, ctx.InputDim(slot).size() == 2 ? DDim{extent, 1} : DDim{extent});
    EnforceSameType(ctx, slot, "Weight");
  }
}

OpRegistrar&& SpectralNormSlots(OpRegistrar&& op) {
  return std::move(op)
      .Input("Weight", "rank 2 or more")
      .Input("U", "[rows] or [rows, 1], dtype of Weight: where the iteration begins")
      .Input("V", "[columns] or [columns, 1], likewise; counts if power_iters is 0")
      .Attr<int32_t>("dim", "the dimension of Weight that makes the rows of the matrix; negative: from the back", 0)
      .Attr<int32_t>("power_iters", "how many iterations there are", 1,
                     [](const int32_t& count) {
                       HR_ENFORCE(count >= 0, InvalidArgument, "attribute power_iters: expected 0 or more, got ",
                                  count);
                     })
      .Attr<double>("eps", "is added to the lengths of vectors", 1e-12, CheckEpsilon);
}

}  // namespace

HEADRACE_REGISTER_OP(spectral_norm)
    .Comment(
        "Weight / (u^T W v), W being Weight as a matrix, and u and v what power iteration makes of U and V: v = W^T u "
        "and u = W v, divided by their lengths.")
    .With(SpectralNormSlots)
    .Output("Out", "dims of Weight")
    .InferShape([](InferShapeContext& ctx) {
      CheckSpectralNorm(ctx);
      ctx.ShareAll("Weight", "Out");
    })
    .Kernel<float>(SpectralNormKernel<float>)
    .Kernel<double>(SpectralNormKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"Weight", "U", "V"}, .outputs = {}, .no_gradient = {"U", "V"}}));

HEADRACE_REGISTER_OP(spectral_norm_grad)
    .Comment("Gradient of spectral_norm, to which u and v are constants.")
    .With(SpectralNormSlots)
    .Input("Out@GRAD", "gradient of Out")
    .Output("Weight@GRAD", "dims of Weight")
    .InferShape([](InferShapeContext& ctx) {
      CheckSpectralNorm(ctx);
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("Weight"));
      EnforceSameType(ctx, "Out@GRAD", "Weight");
      InferGradients(ctx, {"Weight"});
    })
    .Kernel<float>(SpectralNormGradKernel<float>)
    .Kernel<double>(SpectralNormGradKernel<double>);

}  // namespace headrace::ops
