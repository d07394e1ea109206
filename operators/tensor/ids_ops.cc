// split_ids, merge_ids: the ids of an embedding, each once, in parts by their remainders; and the rows that were looked
// up for each part, put together again in the order of the ids.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <unordered_map>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/row_merge.h"

namespace headrace::ops {
namespace {

// The part of `n` that an id belongs to. Ids are not negative.
size_t PartOf(int64_t id, size_t n) { return static_cast<size_t>(static_cast<uint64_t>(id) % n); }

void SplitTensors(const ExecutionContext& ctx) {
  PoolVector<int64_t> ids;
  for (size_t i = 0; i < ctx.InputSize("Ids"); ++i) {
    const LoDTensor& x = ctx.Input("Ids", i);
    const int64_t* from = x.data<int64_t>();
    ids.insert(ids.end(), from, from + x.numel());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  HR_ENFORCE(ids.empty() || ids.front() >= 0, OutOfRange, "input Ids: expected ids of 0 or more, got ", ids.front());
  const size_t parts = ctx.OutputSize("Out");
  for (size_t p = 0; p < parts; ++p) {
    PoolVector<int64_t> part;
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(part), [=](int64_t id) { return PartOf(id, parts) == p; });
    LoDTensor* out = ctx.Output("Out", p);
    out->Resize({static_cast<int64_t>(part.size()), 1});
    std::copy(part.begin(), part.end(), out->mutable_data<int64_t>());
  }
}

// The same for the rows of SelectedRows, each where it first stood.
template <typename T>
void SplitRows(const ExecutionContext& ctx) {
  const SelectedRows& x = ctx.InputRows("Ids");
  const T* values = x.value().data<T>();
  const int64_t width = RowWidth(x);
  const size_t parts = ctx.OutputSize("Out");
  for (size_t p = 0; p < parts; ++p) {
    SelectedRows* out = ctx.OutputRows("Out", p);
    out->set_height(x.height());
    PoolVector<int64_t>& rows = *out->mutable_rows();
    rows.clear();
    std::copy_if(x.rows().begin(), x.rows().end(), std::back_inserter(rows),
                 [=](int64_t row) { return PartOf(row, parts) == p; });
    DDim dims = x.value().dims();
    dims[0] = static_cast<int64_t>(rows.size());
    T* to = out->mutable_value()->Resize(dims).template mutable_data<T>();
    for (size_t r = 0; r < x.rows().size(); ++r) {
      if (PartOf(x.rows()[r], parts) == p) {
        to = std::copy_n(values + static_cast<int64_t>(r) * width, width, to);
      }
    }
  }
}

void InferSplitIds(InferShapeContext& ctx) {
  HR_ENFORCE(ctx.OutputSize("Out") > 0, InvalidArgument, "output Out: expected one variable or more");
  const bool of_rows = ctx.InputIsSelectedRows("Ids");
  HR_ENFORCE(!of_rows || ctx.InputSize("Ids") == 1, InvalidArgument,
             "input Ids: expected one variable, since it holds SelectedRows, got ", ctx.InputSize("Ids"));
  for (size_t i = 0; !of_rows && i < ctx.InputSize("Ids"); ++i) {
    EnforceDims(ctx, "Ids", {-1, 1}, i);
    EnforceType(ctx, "Ids", DataType::kInt64, i);
  }
  for (size_t i = 0; i < ctx.OutputSize("Out"); ++i) {
    if (of_rows) {
      SetOutput(ctx, "Out", ctx.InputDim("Ids"), ctx.InputType("Ids"), i);
      ctx.SetOutputSelectedRows("Out", i);
      continue;
    }
    if (!ctx.IsRuntime()) {
      ctx.SetOutputDim("Out", {-1, 1}, i);
    }
    ctx.SetOutputType("Out", DataType::kInt64, i);
  }
}

void MergeIds(const ExecutionContext& ctx, DataType type) {
  // The memory of the row of each id.
  std::unordered_map<int64_t, const char*> row_of;
  const int64_t width = ctx.Input("X").dims()[1];
  const size_t bytes = static_cast<size_t>(width) * SizeOf(type);
  for (size_t i = 0; i < ctx.InputSize("X"); ++i) {
    const LoDTensor& rows = ctx.Input("Rows", i);
    const LoDTensor& x = ctx.Input("X", i);
    HR_ENFORCE(x.dims()[0] == rows.numel(), InvalidArgument, "input X: expected ", rows.numel(), " rows in variable ",
               i, ", as many as Rows has ids, got dims ", ToString(x.dims()));
    for (int64_t r = 0; r < rows.numel(); ++r) {
      const int64_t id = rows.data<int64_t>()[r];
      const char* row = static_cast<const char*>(x.raw_data()) + static_cast<size_t>(r) * bytes;
      HR_ENFORCE(row_of.emplace(id, row).second, InvalidArgument, "input Rows: id ", id, " occurs twice");
    }
  }
  for (size_t i = 0; i < ctx.InputSize("Ids"); ++i) {
    const LoDTensor& ids = ctx.Input("Ids", i);
    char* to = static_cast<char*>(ctx.Output("Out", i)->mutable_data(type));
    for (int64_t r = 0; r < ids.numel(); ++r, to += bytes) {
      const auto found = row_of.find(ids.data<int64_t>()[r]);
      HR_ENFORCE(found != row_of.end(), NotFound, "input Ids: id ", ids.data<int64_t>()[r], " in row ", r,
                 " is not among Rows");
      std::copy_n(found->second, bytes, to);
    }
  }
}

void InferMergeIds(InferShapeContext& ctx) {
  HR_ENFORCE(ctx.InputSize("Rows") == ctx.InputSize("X") && ctx.InputSize("X") > 0, InvalidArgument,
             "input Rows: expected as many variables as X has, ", ctx.InputSize("X"), ", got ", ctx.InputSize("Rows"));
  HR_ENFORCE(ctx.InputSize("Ids") == ctx.OutputSize("Out"), InvalidArgument,
             "output Out: expected as many variables as Ids has, ", ctx.InputSize("Ids"), ", got ",
             ctx.OutputSize("Out"));
  EnforceRank(ctx, "X", 2);
  const DDim x = ctx.InputDim("X");
  for (size_t i = 0; i < ctx.InputSize("X"); ++i) {
    EnforceDims(ctx, "X", {-1, x[1]}, i);
    HR_ENFORCE(ctx.InputType("X", i) == ctx.InputType("X"), TypeMismatch, "input X: expected variables of one dtype");
    EnforceDims(ctx, "Rows", {-1, 1}, i);
    EnforceType(ctx, "Rows", DataType::kInt64, i);
  }
  for (size_t i = 0; i < ctx.InputSize("Ids"); ++i) {
    EnforceDims(ctx, "Ids", {-1, 1}, i);
    EnforceType(ctx, "Ids", DataType::kInt64, i);
    SetOutput(ctx, "Out", {ctx.InputDim("Ids", i)[0], x[1]}, ctx.InputType("X"), i);
    ctx.ShareLoD("Ids", "Out", i, i);
  }
}

}  // namespace

HEADRACE_REGISTER_OP(split_ids)
    .Comment("All ids, each once and in ascending order; those whose remainder by the number of outputs is i in Out i.")
    .Input("Ids", "int64 [N, 1], 0 or more; or one variable of SelectedRows, whose rows are split as they are",
           kDuplicable | kSelectedRows)
    .Output("Out", "int64 [number of ids in it, 1]; SelectedRows if Ids are", kDuplicable | kSelectedRows)
    .InferShape(InferSplitIds)
    .Kernel<float>(SplitRows<float>)
    .Kernel<double>(SplitRows<double>)
    .Kernel<int64_t>(SplitTensors);

HEADRACE_REGISTER_OP(merge_ids)
    .Comment("The row of each id: that of X at the place that it has in Rows.")
    .Input("Ids", "int64 [N, 1]", kDuplicable)
    .Input("Rows", "int64 [M, 1]: ids, none of them twice", kDuplicable)
    .Input("X", "[M, width]: the rows of the ids of Rows", kDuplicable)
    .Output("Out", "[N, width], one for each Ids; LoD of Ids", kDuplicable)
    .InferShape(InferMergeIds)
    .KernelTypeFrom("X")
    .Kernel<float>([](const ExecutionContext& ctx) { MergeIds(ctx, DataType::kFloat32); })
    .Kernel<double>([](const ExecutionContext& ctx) { MergeIds(ctx, DataType::kFloat64); });

}  // namespace headrace::ops
