// shard_index: numbers of rows of a table as numbers within one of its shards.
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

template <typename T>
void ShardIndexKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  const int64_t numbers = ctx.Attr<int32_t>("index_num");
  const int64_t shards = ctx.Attr<int32_t>("nshards");
  const int64_t size = (numbers + shards - 1) / shards;
  const int64_t shard = ctx.Attr<int32_t>("shard_id");
  const auto ignored = static_cast<T>(ctx.Attr<int32_t>("ignore_value"));
  T* out = ctx.Output("Out")->mutable_data<T>();
  ParallelForEach(x_tensor.numel(), [=](int64_t i) {
    const int64_t number = x[i];
    HR_ENFORCE(0 <= number && number < numbers, OutOfRange, "input X: element ", i, " is ", number,
               ", expected one in [0, ", numbers, ")");
    out[i] = number / size == shard ? static_cast<T>(number % size) : ignored;
  });
}

void InferShardIndex(InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 2);
  const int32_t numbers = ctx.Attr<int32_t>("index_num");
  const int32_t shards = ctx.Attr<int32_t>("nshards");
  const int32_t shard = ctx.Attr<int32_t>("shard_id");
  HR_ENFORCE(numbers > 0, InvalidArgument, "attribute index_num: expected 1 or more, got ", numbers);
  HR_ENFORCE(1 <= shards && shards <= numbers, InvalidArgument, "attribute nshards: expected a number in [1, ", numbers,
             "], as index_num is ", numbers, ", got ", shards);
  HR_ENFORCE(0 <= shard && shard < shards, InvalidArgument, "attribute shard_id: expected a number in [0, ", shards,
             "), got ", shard);
  ctx.ShareAll("X", "Out");
}

}  // namespace

HEADRACE_REGISTER_OP(shard_index)
    .Comment(
        "Numbers of rows of a table as numbers within one of its shards, each of index_num / nshards rows, rounded up.")
    .Input("X", "int32 or int64 [..., 1], numbers in [0, index_num)")
    .Output("Out", "dims, dtype and LoD of X")
    .InPlace("Out", "X")
    .Attr<int32_t>("index_num", "how many rows there are")
    .Attr<int32_t>("nshards", "how many shards")
    .Attr<int32_t>("shard_id", "the shard")
    .Attr<int32_t>("ignore_value", "what stands for the numbers of other shards", -1)
    .InferShape(InferShardIndex)
    .Kernel<int32_t>(ShardIndexKernel<int32_t>)
    .Kernel<int64_t>(ShardIndexKernel<int64_t>);

}  // namespace headrace::ops
