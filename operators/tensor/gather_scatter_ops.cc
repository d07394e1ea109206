// gather, scatter, multiplex: rows by their numbers.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/kernel_data.h"
#include "operators/common/registration.h"
#include "operators/common/second_order.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/index_map.h"
#include "operators/math/numbered_rows.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// The numbers that `slot` holds, int32 or int64, each in [0, rows). Throws OutOfRange naming place and value.
PoolVector<int64_t> RowNumbers(const ExecutionContext& ctx, HashedName slot, int64_t rows) {
  PoolVector<int64_t> numbers = IntegerInput(ctx, slot);
  for (size_t i = 0; i < numbers.size(); ++i) {
    HR_ENFORCE(0 <= numbers[i] && numbers[i] < rows, OutOfRange, "input ", slot, ": element ", i, " is ", numbers[i],
               ", expected a row in [0, ", rows, ")");
  }
  return numbers;
}

// The extent of a list of row numbers, [n] or [n, 1].
int64_t CheckRowNumbers(const InferShapeContext& ctx, HashedName slot) {
  const DDim dims = ctx.InputDim(slot);
  HR_ENFORCE(dims.size() == 1 || (dims.size() == 2 && Fits(dims[1], 1)), InvalidArgument, "input ", slot,
             ": expected dims [n] or [n, 1], got ", ToString(dims));
  EnforceIntegers(ctx, slot);
  return dims[0];
}

// --- gather ---

IndexMap GatherMap(const ExecutionContext& ctx) {
  const DDim& x = ctx.Input("X").dims();
  return IndexMap::OfRows(x, RowNumbers(ctx, "Index", x[0]));
}

DDim GatherDims(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 1);
  DDim dims = ctx.InputDim("X");
  dims[0] = CheckRowNumbers(ctx, "Index");
  return dims;
}

void GatherKernel(const ExecutionContext& ctx) { GatherMap(ctx).Move(ctx.Input("X"), ctx.Output("Out")); }

template <typename T>
void GatherGradKernel(const ExecutionContext& ctx) {
  GatherMap(ctx).AddBack<T>(ctx.Input("Out@GRAD"), ctx.Output("X@GRAD"));
}

// --- scatter ---

template <typename T>
void ScatterKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const PoolVector<int64_t> rows = RowNumbers(ctx, "Ids", x.dims()[0]);
  const bool overwrite = ctx.Attr<bool>("overwrite");
  const int64_t width = Numel(x.dims(), 1, x.dims().size());
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  if (out != x.data<T>()) {
    ParallelCopy(x.data<T>(), x.numel(), out);
  }
  const T* updates = ctx.Input("Updates").data<T>();
  const auto for_each_row = [&](const auto& visit) {
    ForEachNumberedRow(rows.data(), static_cast<int64_t>(rows.size()), x.dims()[0], width, visit);
  };
  if (overwrite) {
    for_each_row([=](int64_t i, int64_t row) { std::copy_n(updates + i * width, width, out + row * width); });
    return;
  }
  for_each_row([=](int64_t, int64_t row) { std::fill_n(out + row * width, width, T(0)); });
  for_each_row([=](int64_t i, int64_t row) {
    for (int64_t c = 0; c < width; ++c) {
      out[row * width + c] += updates[i * width + c];
    }
  });
}

// With overwrite, each row's last update is the one that counts.
template <typename T>
void ScatterGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  const DDim& dims = out_grad.dims();
  const PoolVector<int64_t> rows = RowNumbers(ctx, "Ids", dims[0]);
  const int64_t width = Numel(dims, 1, dims.size());
  const T* d = out_grad.data<T>();
  if (LoDTensor* x_grad = ctx.OutputOrNull("X@GRAD")) {
    T* dx = x_grad->mutable_data<T>();
    ParallelCopy(d, out_grad.numel(), dx);
    ForEachNumberedRow(rows.data(), static_cast<int64_t>(rows.size()), dims[0], width,
                       [=](int64_t, int64_t row) { std::fill_n(dx + row * width, width, T(0)); });
  }
  if (LoDTensor* updates_grad = ctx.OutputOrNull("Updates@GRAD")) {
    PoolVector<size_t> last(static_cast<size_t>(dims[0]));
    for (size_t i = 0; i < rows.size(); ++i) {
      last[static_cast<size_t>(rows[i])] = i;
    }
    T* updates = updates_grad->mutable_data<T>();
    const bool overwrite = ctx.Attr<bool>("overwrite");
    ParallelFor(static_cast<int64_t>(rows.size()), RowsPerBlock(width), [&, d, updates](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = rows[static_cast<size_t>(i)];
        if (overwrite && last[static_cast<size_t>(row)] != static_cast<size_t>(i)) {
          std::fill_n(updates + i * width, width, T(0));
        } else {
          std::copy_n(d + row * width, width, updates + i * width);
        }
      }
    });
  }
}

void EnforceUpdates(const InferShapeContext& ctx, HashedName like, HashedName updates) {
  EnforceRankAtLeast(ctx, like, 1);
  DDim dims = ctx.InputDim(like);
  dims[0] = CheckRowNumbers(ctx, "Ids");
  EnforceDims(ctx, updates, dims);
  EnforceSameType(ctx, updates, like);
}

OpRegistrar&& ScatterAttr(OpRegistrar&& op) {
  return std::move(op).Attr<bool>(
      "overwrite", "whether the last update of a row replaces it; otherwise the sum of its updates does", true);
}

// --- multiplex ---

// Calls copy(variable, first element of the row, its elements) for each row, from several threads.
template <typename Copy>
void ForEachChoice(const ExecutionContext& ctx, size_t candidates, const DDim& dims, const Copy& copy) {
  const LoDTensor& ids_tensor = ctx.Input("Ids");
  const int32_t* ids = ids_tensor.data<int32_t>();
  const int64_t width = Numel(dims, 1, dims.size());
  ParallelFor(dims[0], RowsPerBlock(width), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      HR_ENFORCE(0 <= ids[r] && static_cast<size_t>(ids[r]) < candidates, OutOfRange, "input Ids: row ", r, " is ",
                 ids[r], ", expected one of the ", candidates, " variables of input X");
      copy(static_cast<size_t>(ids[r]), r * width, width);
    }
  });
}

template <typename T>
void MultiplexKernel(const ExecutionContext& ctx) {
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->mutable_data<T>();
  PoolVector<const T*> candidates;
  for (size_t k = 0; k < ctx.InputSize("X"); ++k) {
    candidates.push_back(ctx.Input("X", k).data<T>());
  }
  ForEachChoice(ctx, candidates.size(), out_tensor->dims(),
                [&](size_t k, int64_t at, int64_t n) { std::copy_n(candidates[k] + at, n, out + at); });
}

template <typename T>
void MultiplexGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  PoolVector<T*> grads;
  for (size_t k = 0; k < ctx.OutputSize("X@GRAD"); ++k) {
    LoDTensor* grad = ctx.OutputOrNull("X@GRAD", k);
    grads.push_back(grad == nullptr ? nullptr : grad->mutable_data<T>());
    if (grad != nullptr) {
      ParallelFill(grads.back(), grad->numel(), T(0));
    }
  }
  const T* d = out_grad.data<T>();
  ForEachChoice(ctx, grads.size(), out_grad.dims(), [d, grads = grads.data()](size_t k, int64_t at, int64_t n) {
    if (grads[k] != nullptr) {
      std::copy_n(d + at, n, grads[k] + at);
    }
  });
}

void EnforceIds(const InferShapeContext& ctx, int64_t rows) {
  EnforceDims(ctx, "Ids", {rows, 1});
  EnforceType(ctx, "Ids", DataType::kInt32);
}

}  // namespace

HEADRACE_REGISTER_OP(gather)
    .Comment("Rows of X by their numbers.")
    .Input("X", "[rows, ...]")
    .Input("Index", "int32 or int64, [n] or [n, 1]")
    .Output("Out", "[n, ...]")
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) { SetOutput(ctx, "Out", GatherDims(ctx), ctx.InputType("X")); })
    .With(KernelForAllTypes, GatherKernel)
    .Gradient(DefaultGradient({.inputs = {"X", "Index"}, .outputs = {}, .no_gradient = {"Index"}}));

HEADRACE_REGISTER_OP(gather_grad)
    .Comment("Gradient of gather: the sum for rows that were taken more than once.")
    .Input("X", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Index", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "Out@GRAD", GatherDims(ctx));
      EnforceSameType(ctx, "Out@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(GatherGradKernel<float>)
    .Kernel<double>(GatherGradKernel<double>)
    .Gradient(GradientOfLinear("gather"));

HEADRACE_REGISTER_OP(scatter)
    .Comment("X, with the rows Ids replaced by Updates. Out may be X.")
    .Input("X", "[rows, ...]")
    .Input("Ids", "int32 or int64, [n] or [n, 1]: numbers of rows")
    .Input("Updates", "[n, ...]")
    .Output("Out", "dims of X")
    .InPlace("Out", "X")
    .With(ScatterAttr)
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceUpdates(ctx, "X", "Updates");
      SetOutput(ctx, "Out", ctx.InputDim("X"), ctx.InputType("X"));
    })
    .Kernel<float>(ScatterKernel<float>)
    .Kernel<double>(ScatterKernel<double>)
    .Kernel<int32_t>(ScatterKernel<int32_t>)
    .Kernel<int64_t>(ScatterKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {"Ids", "Updates"}, .outputs = {}, .no_gradient = {"Ids"}}));

HEADRACE_REGISTER_OP(scatter_grad)
    .Comment("Gradient of scatter.")
    .Input("Ids", "as in the operator")
    .Input("Updates", "as in the operator; only its dims are used", kShapeOnly)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of Out", kDispensable)
    .Output("Updates@GRAD", "dims of Updates", kDispensable)
    .With(ScatterAttr)
    .KernelTypeFrom("Out@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      EnforceUpdates(ctx, "Out@GRAD", "Updates");
      SetOutput(ctx, "X@GRAD", ctx.InputDim("Out@GRAD"), ctx.InputType("Out@GRAD"));
      InferGradients(ctx, {"Updates"});
    })
    .Kernel<float>(ScatterGradKernel<float>)
    .Kernel<double>(ScatterGradKernel<double>);

HEADRACE_REGISTER_OP(multiplex)
    .Comment("Row r of Out is row r of that variable of X whose number is in row r of Ids.")
    .Input("Ids", "int32 [rows, 1]")
    .Input("X", "at least one tensor [rows, ...]; the same dims and dtype", kDuplicable)
    .Output("Out", "[rows, ...]")
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRankAtLeast(ctx, "X", 1);
      EnforceIds(ctx, ctx.InputDim("X")[0]);
      for (size_t k = 1; k < ctx.InputSize("X"); ++k) {
        EnforceDims(ctx, "X", ctx.InputDim("X"), k);
        EnforceSameType(ctx, "X", "X", k);
      }
      SetOutput(ctx, "Out", ctx.InputDim("X"), ctx.InputType("X"));
    })
    .Kernel<float>(MultiplexKernel<float>)
    .Kernel<double>(MultiplexKernel<double>)
    .Kernel<int32_t>(MultiplexKernel<int32_t>)
    .Kernel<int64_t>(MultiplexKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {"Ids"}, .outputs = {}, .no_gradient = {"Ids"}}));

HEADRACE_REGISTER_OP(multiplex_grad)
    .Comment("Gradient of multiplex.")
    .Input("Ids", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of Out each", kDuplicable)
    .KernelTypeFrom("Out@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRankAtLeast(ctx, "Out@GRAD", 1);
      EnforceIds(ctx, ctx.InputDim("Out@GRAD")[0]);
      for (size_t k = 0; k < ctx.OutputSize("X@GRAD"); ++k) {
        SetOutput(ctx, "X@GRAD", ctx.InputDim("Out@GRAD"), ctx.InputType("Out@GRAD"), k);
      }
    })
    .Kernel<float>(MultiplexGradKernel<float>)
    .Kernel<double>(MultiplexGradKernel<double>);

}  // namespace headrace::ops
