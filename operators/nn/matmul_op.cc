// matmul: products of batches of matrices, by operators/math/gemm.h.
#include <algorithm>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/gemm.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// What a matmul multiplies: `batch` pairs of matrices; a side that has no batch dimensions is used for all of them. X
// as a vector is a row, Y a column, of which the result lacks the dimension; transposed, they are matrices.
struct MatmulShape {
  MatmulShape(const AttributeIndex& op, DDim x, DDim y)
      : transpose_x(op.Attr<bool>("transpose_X")), transpose_y(op.Attr<bool>("transpose_Y")) {
    HR_ENFORCE(!x.empty(), InvalidArgument,
               "input X: expected a vector, a matrix or a batch of matrices, got a scalar");
    HR_ENFORCE(!y.empty(), InvalidArgument,
               "input Y: expected a vector, a matrix or a batch of matrices, got a scalar");
    x_is_vector = x.size() == 1;
    const bool y_is_vector = y.size() == 1;
    if (x_is_vector) {
      x.insert(x.begin(), 1);
    }
    if (y_is_vector) {
      y.push_back(1);
    }
    const DDim x_batch(x.begin(), x.end() - 2);
    const DDim y_batch(y.begin(), y.end() - 2);
    x_batched = !x_batch.empty();
    y_batched = !y_batch.empty();
    bool fits = !x_batched || !y_batched || x_batch.size() == y_batch.size();
    for (size_t d = 0; fits && x_batched && y_batched && d < x_batch.size(); ++d) {
      fits = Fits(x_batch[d], y_batch[d]);
    }
    HR_ENFORCE(fits, InvalidArgument, "input Y: expected the batch dims of X, which has dims ", ToString(x),
               ", or none, got dims ", ToString(y));
    m = transpose_x ? x[x.size() - 1] : x[x.size() - 2];
    k = transpose_x ? x[x.size() - 2] : x[x.size() - 1];
    const int64_t y_rows = transpose_y ? y[y.size() - 1] : y[y.size() - 2];
    n = transpose_y ? y[y.size() - 2] : y[y.size() - 1];
    HR_ENFORCE(Fits(k, y_rows), InvalidArgument, "input Y: expected matrices of ", k,
               " rows, as many as those of X have columns, got ", y_rows, " (X has dims ", ToString(x),
               transpose_x ? ", transposed" : "", ", Y has dims ", ToString(y), transpose_y ? ", transposed" : "", ")");
    out = x_batched ? x_batch : y_batch;
    batch = Numel(out);
    if (!x_is_vector || transpose_x) {
      out.push_back(m);
    }
    if (!y_is_vector || transpose_y) {
      out.push_back(n);
    }
    if (out.empty()) {
      out.push_back(1);
    }
    // Matrices of X that lie one below the other are one tall matrix.
    if (!y_batched && !transpose_x && batch >= 0 && m >= 0) {
      m = MultiplyExtents(m, batch);
      batch = 1;
    }
  }

  // Whether the rows of the result are those of X, so that its sequences are, too.
  bool KeepsRows() const { return !x_is_vector && (x_batched || (!y_batched && !transpose_x)); }

  bool transpose_x;
  bool transpose_y;
  bool x_is_vector;
  bool x_batched;
  bool y_batched;
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t batch;
  DDim out;
};

// Of products that are shared among threads one by one. A large one is shared by itself.
int64_t MatricesPerBlock(const MatmulShape& s) { return ProductsPerTask(s.m * s.n * s.k); }

template <typename T>
void MatmulKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const LoDTensor& y = ctx.Input("Y");
  const MatmulShape s(ctx.attrs(), x.dims(), y.dims());
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  if (out_tensor->numel() == 0) {
    return;
  }
  const auto alpha = static_cast<T>(ctx.Attr<double>("alpha"));
  const T* x_data = x.data<T>();
  const T* y_data = y.data<T>();
  ParallelFor(s.batch, MatricesPerBlock(s), [=, &s](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      Gemm<T>(s.transpose_x, s.transpose_y, s.m, s.n, s.k, alpha, x_data + (s.x_batched ? b * s.m * s.k : 0),
              y_data + (s.y_batched ? b * s.k * s.n : 0), false, out + b * s.m * s.n);
    }
  });
}

template <typename T>
void MatmulGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const LoDTensor& y = ctx.Input("Y");
  const MatmulShape s(ctx.attrs(), x.dims(), y.dims());
  const auto alpha = static_cast<T>(ctx.Attr<double>("alpha"));
  const T* out_grad = ctx.Input("Out@GRAD").data<T>();
  LoDTensor* x_grad = ctx.OutputOrNull("X@GRAD");
  LoDTensor* y_grad = ctx.OutputOrNull("Y@GRAD");
  T* dx = x_grad == nullptr ? nullptr : x_grad->mutable_data<T>();
  T* dy = y_grad == nullptr ? nullptr : y_grad->mutable_data<T>();
  if (Numel(s.out) == 0) {
    ParallelFill(dx, dx == nullptr ? 0 : x_grad->numel(), T(0));
    ParallelFill(dy, dy == nullptr ? 0 : y_grad->numel(), T(0));
    return;
  }
  const T* x_data = x.data<T>();
  const T* y_data = y.data<T>();
  const auto matrix = [=, &s](int64_t b) {
    const T* x_b = x_data + (s.x_batched ? b * s.m * s.k : 0);
    const T* y_b = y_data + (s.y_batched ? b * s.k * s.n : 0);
    const T* grad_b = out_grad + b * s.m * s.n;
    if (dx != nullptr) {
      T* dx_b = dx + (s.x_batched ? b * s.m * s.k : 0);
      const bool accumulate = !s.x_batched && b > 0;
      if (s.transpose_x) {
        Gemm<T>(s.transpose_y, true, s.k, s.m, s.n, alpha, y_b, grad_b, accumulate, dx_b);
      } else {
        Gemm<T>(false, !s.transpose_y, s.m, s.k, s.n, alpha, grad_b, y_b, accumulate, dx_b);
      }
    }
    if (dy != nullptr) {
      T* dy_b = dy + (s.y_batched ? b * s.k * s.n : 0);
      const bool accumulate = !s.y_batched && b > 0;
      if (s.transpose_y) {
        Gemm<T>(true, s.transpose_x, s.n, s.k, s.m, alpha, grad_b, x_b, accumulate, dy_b);
      } else {
        Gemm<T>(!s.transpose_x, false, s.k, s.n, s.m, alpha, x_b, grad_b, accumulate, dy_b);
      }
    }
  };
  if (s.x_batched && s.y_batched) {
    ParallelFor(s.batch, MatricesPerBlock(s), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        matrix(b);
      }
    });
    return;
  }
  for (int64_t b = 0; b < s.batch; ++b) {
    matrix(b);  // the gradient of what is not batched adds them up
  }
}

OpRegistrar&& MatmulAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<bool>("transpose_X", "whether the matrices of X are transposed", false)
      .Attr<bool>("transpose_Y", "whether the matrices of Y are transposed", false)
      .Attr<double>("alpha", "factor of the product", 1.0);
}

}  // namespace

HEADRACE_REGISTER_OP(matmul)
    .Comment("alpha · X · Y for the matrices in the last two dimensions.")
    .Input("X", "[..., m, k], or [..., k, m] if transpose_X; a vector [k] is a row, or a column [m, 1] if transpose_X")
    .Input("Y",
           "[..., k, n], or [..., n, k] if transpose_Y; the leading dims are those of X, or one of the two has none; "
           "a vector [k] is a column, or a row [1, n] if transpose_Y")
    .Output("Out", "[..., m, n], without the dimensions that vectors lack; [1] if none is left")
    .With(MatmulAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceSameType(ctx, "Y", "X");
      const MatmulShape shape(ctx.attrs(), ctx.InputDim("X"), ctx.InputDim("Y"));
      SetOutput(ctx, "Out", shape.out, ctx.InputType("X"));
      if (shape.KeepsRows()) {
        ctx.ShareLoD("X", "Out");
      }
    })
    .Kernel<float>(MatmulKernel<float>)
    .Kernel<double>(MatmulKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Y"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(matmul_grad)
    .Comment("Gradient of matmul.")
    .Input("X", "as in matmul")
    .Input("Y", "as in matmul")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X", kDispensable)
    .Output("Y@GRAD", "dims of Y", kDispensable)
    .With(MatmulAttrs)
    .InferShape([](InferShapeContext& ctx) {
      EnforceSameType(ctx, "Out@GRAD", "X");
      EnforceDims(ctx, "Out@GRAD", MatmulShape(ctx.attrs(), ctx.InputDim("X"), ctx.InputDim("Y")).out);
      InferGradients(ctx, {"X", "Y"});
    })
    .Kernel<float>(MatmulGradKernel<float>)
    .Kernel<double>(MatmulGradKernel<double>)
    .Gradient(GradientOfBilinear("matmul"));

}  // namespace headrace::ops
