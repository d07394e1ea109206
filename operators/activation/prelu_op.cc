// prelu: leaky_relu with slopes that are learned.
#include <algorithm>
#include <cstdint>
#include <string>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/ordered_sum.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// X as [outer, slopes, inner]: an element's slope is that of its index in the middle.
struct SlopesOfElements {
  SlopesOfElements(HashedName mode, const DDim& x) {
    if (mode == "all") {
      inner = Numel(x);
    } else if (mode == "channel") {
      slopes = x[1];
      outer = x[0];
      inner = Numel(x, 2, x.size());
    } else {
      slopes = Numel(x, 1, x.size());
      outer = x[0];
    }
  }

  // Calls run(first element, number, slope of the first, whether each further element has the next slope), from several
  // threads, for runs that together are all elements.
  template <typename Run>
  void ForEachRun(const Run& run) const {
    if (inner == 1) {
      ParallelFor(outer, RowsPerBlock(slopes), [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o) {
          run(o * slopes, slopes, 0, true);
        }
      });
      return;
    }
    const int64_t size = std::max<int64_t>(1, std::min(inner, kElementsPerBlock));
    const int64_t runs = (inner + size - 1) / size;  // of as many elements of one slope
    ParallelFor(outer * slopes * runs, RowsPerBlock(size), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t first = i % runs * size;
        run(i / runs * inner + first, std::min(size, inner - first), i / runs % slopes, false);
      }
    });
  }

  int64_t outer = 1;
  int64_t slopes = 1;
  int64_t inner = 1;
};

// to = factor, or slope · factor where x is not positive.
template <typename T>
void MultiplyNegative(const SlopesOfElements& s, const T* x, const T* alpha, const T* factor, T* to) {
  s.ForEachRun([=](int64_t first, int64_t n, int64_t slope, bool next) {
    const T* a = alpha + slope;
    if (next) {
      HEADRACE_INDEPENDENT_ITERATIONS
      for (int64_t i = 0; i < n; ++i) {
        to[first + i] = (x[first + i] > 0 ? T(1) : a[i]) * factor[first + i];
      }
      return;
    }
    const T of_all = *a;
    HEADRACE_INDEPENDENT_ITERATIONS
    for (int64_t i = first; i < first + n; ++i) {
      to[i] = (x[i] > 0 ? T(1) : of_all) * factor[i];
    }
  });
}

template <typename T>
void PreluKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  MultiplyNegative(SlopesOfElements(ctx.Text("mode"), x.dims()), x.data<T>(), ctx.Input("Alpha").data<T>(), x.data<T>(),
                   ctx.Output("Out")->mutable_data<T>());
}

template <typename T>
void PreluGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const SlopesOfElements s(ctx.Text("mode"), x_tensor.dims());
  const T* x = x_tensor.data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  if (LoDTensor* x_grad = ctx.OutputOrNull("X@GRAD")) {
    MultiplyNegative(s, x, ctx.Input("Alpha").data<T>(), d, x_grad->mutable_data<T>());
  }
  LoDTensor* alpha_grad = ctx.OutputOrNull("Alpha@GRAD");
  if (alpha_grad == nullptr) {
    return;
  }
  T* da = alpha_grad->mutable_data<T>();
  const auto of_element = [=](int64_t i) { return x[i] > 0 ? T(0) : d[i] * x[i]; };
  if (s.slopes == 1) {
    *da = ParallelSumOf<T>(s.outer * s.inner, of_element);
    return;
  }
  std::fill_n(da, s.slopes, T(0));
  ParallelFor(s.slopes, std::max<int64_t>(RowsPerBlock(s.outer * s.inner), s.inner == 1 ? 64 : 1),
              [=](int64_t begin, int64_t end) {
                for (int64_t o = 0; o < s.outer; ++o) {
                  for (int64_t slope = begin; slope < end; ++slope) {
                    const int64_t first = (o * s.slopes + slope) * s.inner;
                    da[slope] += s.inner == 1 ? of_element(first)
                                              : SumOf<T>(s.inner, [=](int64_t i) { return of_element(first + i); });
                  }
                }
              });
}

void EnforceAlpha(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 2);
  EnforceSameType(ctx, "Alpha", "X");
  const DDim x = ctx.InputDim("X");
  const HashedName mode = ctx.Text("mode");
  const int64_t expected = mode == "all" ? 1 : mode == "channel" ? x[1] : Numel(x, 1, x.size());
  HR_ENFORCE(Fits(Numel(ctx.InputDim("Alpha")), expected), InvalidArgument, "input Alpha: expected ", expected,
             " elements for mode '", mode, "' and X of dims ", ToString(x), ", got dims ",
             ToString(ctx.InputDim("Alpha")));
}

OpRegistrar&& PreluAttrs(OpRegistrar&& op) {
  return std::move(op).Attr<std::string>(
      "mode", "'all': one slope; 'channel': one for each channel, dimension 1; 'element': one for each element", "all",
      [](const std::string& mode) {
        HR_ENFORCE(mode == "all" || mode == "channel" || mode == "element", InvalidArgument,
                   "attribute mode: expected 'all', 'channel' or 'element', got '", mode, "'");
      });
}

}  // namespace

HEADRACE_REGISTER_OP(prelu)
    .Comment("X, or Alpha * X where X < 0 (K. He et al., 2015).")
    .Input("X", "[N, ...]")
    .Input("Alpha", "as many elements as mode says, dtype of X")
    .Output("Out", "dims, dtype and LoD of X")
    .With(PreluAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceAlpha(ctx);
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(PreluKernel<float>)
    .Kernel<double>(PreluKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Alpha"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(prelu_grad)
    .Comment("Gradient of prelu.")
    .Input("X", "as in the operator")
    .Input("Alpha", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Alpha@GRAD", "dims of Alpha", kDispensable)
    .With(PreluAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceAlpha(ctx);
      EnforceDims(ctx, "Out@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X", "Alpha"});
    })
    .Kernel<float>(PreluGradKernel<float>)
    .Kernel<double>(PreluGradKernel<double>);

}  // namespace headrace::ops
