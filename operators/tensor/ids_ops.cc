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
    .Input("Ids", "int64 [N, 1], 0 or more", kDuplicable)
    .Output("Out", "int64 [number of ids in it, 1]", kDuplicable)
    .InferShape([](InferShapeContext& ctx) {
      for (size_t i = 0; i < ctx.InputSize("Ids"); ++i) {
        EnforceDims(ctx, "Ids", {-1, 1}, i);
        EnforceType(ctx, "Ids", DataType::kInt64, i);
      }
      HR_ENFORCE(ctx.OutputSize("Out") > 0, InvalidArgument, "output Out: expected one variable or more");
      for (size_t i = 0; i < ctx.OutputSize("Out"); ++i) {
        if (!ctx.IsRuntime()) {
          ctx.SetOutputDim("Out", {-1, 1}, i);
        }
        ctx.SetOutputType("Out", DataType::kInt64, i);
      }
    })
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
