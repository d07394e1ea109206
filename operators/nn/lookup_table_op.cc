// lookup_table, lookup_table_v2: rows of a table by their numbers; an embedding.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/loss/labels.h"
#include "operators/math/element_loop.h"
#include "operators/math/numbered_rows.h"
#include "operators/math/table_rows.h"

namespace headrace::ops {
namespace {

// The rows of W that Ids name.
class IdRows {
 public:
  explicit IdRows(const ExecutionContext& ctx)
      : ids_(ctx.Input("Ids").data<int64_t>()),
        count_(ctx.Input("Ids").numel()),
        rows_(ctx.Input("W").dims()[0]),
        padding_(ctx.Attr<int64_t>("padding_idx")) {}

  int64_t count() const { return count_; }

  // That of id `i`; -1 if it is padding. Throws OutOfRange naming place and value.
  int64_t operator()(int64_t i) const {
    HR_ENFORCE(0 <= ids_[i] && ids_[i] < rows_, OutOfRange, "input Ids: row ", i, " has id ", ids_[i],
               ", expected one in [0, ", rows_, ")");
    return ids_[i] == padding_ ? -1 : ids_[i];
  }

 private:
  const int64_t* ids_;
  int64_t count_;
  int64_t rows_;
  int64_t padding_;
};

// The same from SelectedRows, by the numbers of their rows.
template <typename T>
void LookupInRows(const ExecutionContext& ctx) {
  const SelectedRows& table = ctx.InputRows("W");
  const TableRows place_of(table, "W");
  const int64_t width = RowWidth(table);
  const int64_t padding = ctx.Attr<int64_t>("padding_idx");
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* w = table.value().data<T>();
  const int64_t* ids = ctx.Input("Ids").data<int64_t>();
  const auto look_up = [=, &place_of](int64_t i) {
    T* row = out + i * width;
    if (ids[i] == padding && padding >= 0) {
      std::fill_n(row, width, T(0));
    } else {
      std::copy_n(w + place_of(ids[i]) * width, width, row);
    }
  };
  ParallelForEach(ctx.Input("Ids").numel(), look_up, width + 64);
}

template <typename T>
void LookupKernel(const ExecutionContext& ctx) {
  if (ctx.IsSelectedRows("W")) {
    LookupInRows<T>(ctx);
    return;
  }
  const LoDTensor& table = ctx.Input("W");
  const int64_t width = table.dims()[1];
  T* out = ctx.Output("Out")->mutable_data<T>();
  const T* w = table.data<T>();
  const IdRows ids(ctx);
  const auto look_up = [=](int64_t i) {
    const int64_t id = ids(i);
    T* row = out + i * width;
    if (id < 0) {
      std::fill_n(row, width, T(0));
    } else {
      std::copy_n(w + id * width, width, row);
    }
  };
  ParallelForEach(ids.count(), look_up, width + 64);  // a row that is not in a cache takes as long as many that are
}

// The row of each id, in their order, however often it occurs.
template <typename T>
void SparseLookupGradKernel(const ExecutionContext& ctx) {
  const DDim& table = ctx.Input("W").dims();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  SelectedRows* w_grad = ctx.OutputRows("W@GRAD");
  w_grad->set_height(table[0]);
  PoolVector<int64_t>& rows = *w_grad->mutable_rows();
  rows.clear();
  PoolVector<int64_t> places;
  const IdRows ids(ctx);
  for (int64_t i = 0; i < ids.count(); ++i) {
    if (const int64_t id = ids(i); id >= 0) {
      rows.push_back(id);
      places.push_back(i);
    }
  }
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t width = table[1];
  T* to = w_grad->mutable_value()->Resize({count, width}).template mutable_data<T>();
  const auto copy_row = [=, places = places.data()](int64_t i) {
    std::copy_n(d + places[i] * width, width, to + i * width);
  };
  ParallelForEach(count, copy_row, width);
}

template <typename T>
void LookupGradKernel(const ExecutionContext& ctx) {
  if (ctx.Attr<bool>("is_sparse")) {
    SparseLookupGradKernel<T>(ctx);
    return;
  }
  LoDTensor* w_grad = ctx.Output("W@GRAD");
  const int64_t width = w_grad->dims()[1];
  T* dw = w_grad->mutable_data<T>();
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const int64_t rows = w_grad->dims()[0];
  const IdRows ids(ctx);
  ParallelFill(dw, w_grad->numel(), T(0));
  ForEachNumberedRow(ids.count(), ids, rows, width, [=](int64_t i, int64_t id) {
    for (int64_t c = 0; c < width; ++c) {
      dw[id * width + c] += d[i * width + c];
    }
  });
}

// `kColumn`: whether Ids have a last dimension of 1, which becomes that of the rows; otherwise they get one of their
// own.
template <bool kColumn>
DDim LookupDims(const InferShapeContext& ctx) {
  EnforceRank(ctx, "W", 2);
  EnforceRankAtLeast(ctx, "Ids", 1);
  EnforceNumbers(ctx, "Ids");
  const DDim w = ctx.InputDim("W");
  DDim dims = ctx.InputDim("Ids");
  if constexpr (kColumn) {
    HR_ENFORCE(Fits(dims.back(), 1), InvalidArgument, "input Ids: expected dims [..., 1], got ", ToString(dims));
    dims.pop_back();
  }
  const int64_t padding = ctx.Attr<int64_t>("padding_idx");
  HR_ENFORCE(padding >= -1 && (w[0] < 0 || padding < w[0]), InvalidArgument,
             "attribute padding_idx: expected -1 (none) or a row of W of dims ", ToString(w), ", got ", padding);
  dims.push_back(w[1]);
  return dims;
}

OpRegistrar&& LookupAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<int64_t>("padding_idx", "the id whose row is zero and does not learn; -1: none", -1)
      .Attr<bool>("is_sparse", "whether the gradient of W is SelectedRows: only those that Ids name", false);
}

template <bool kColumn>
OpRegistrar&& LookupOp(OpRegistrar&& op) {
  return std::move(op)
      .Comment("The rows of W with the numbers Ids.")
      .Input("W", "[rows, width], or SelectedRows with each row that Ids name, once", kSelectedRows)
      .Input("Ids", kColumn ? "int64 [..., 1]" : "int64 [...]")
      .Output("Out", "[..., width], LoD of Ids")
      .With(LookupAttrs)
      .KernelTypeFrom("W")
      .InferShape([](InferShapeContext& ctx) {
        SetOutput(ctx, "Out", LookupDims<kColumn>(ctx), ctx.InputType("W"));
        ctx.ShareLoD("Ids", "Out");
      })
      .template Kernel<float>(LookupKernel<float>)
      .template Kernel<double>(LookupKernel<double>)
      .Gradient(DefaultGradient({.inputs = {"W", "Ids"}, .outputs = {}, .no_gradient = {"Ids"}}));
}

template <bool kColumn>
OpRegistrar&& LookupGradOp(OpRegistrar&& op) {
  return std::move(op)
      .Comment("Gradient of the lookup: a tensor, or SelectedRows if is_sparse.")
      .Input("W", "as in the operator; only its dims are used", kShapeOnly)
      .Input("Ids", "as in the operator")
      .Input("Out@GRAD", "gradient of Out")
      .Output("W@GRAD", "dims of W", kSelectedRows)
      .With(LookupAttrs)
      .KernelTypeFrom("W")
      .InferShape([](InferShapeContext& ctx) {
        EnforceDims(ctx, "Out@GRAD", LookupDims<kColumn>(ctx));
        EnforceSameType(ctx, "Out@GRAD", "W");
        InferGradients(ctx, {"W"});
        if (ctx.Attr<bool>("is_sparse")) {
          ctx.SetOutputSelectedRows("W@GRAD");
        }
      })
      .template Kernel<float>(LookupGradKernel<float>)
      .template Kernel<double>(LookupGradKernel<double>);
}

}  // namespace

HEADRACE_REGISTER_OP(lookup_table).With(LookupOp<true>);
HEADRACE_REGISTER_OP(lookup_table_grad).With(LookupGradOp<true>);
HEADRACE_REGISTER_OP(lookup_table_v2).With(LookupOp<false>);
HEADRACE_REGISTER_OP(lookup_table_v2_grad).With(LookupGradOp<false>);

}  // namespace headrace::ops
