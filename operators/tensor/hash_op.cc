// hash: rows of integers as numbers below a bound.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

constexpr uint64_t kXxhPrime1 = 0x9E3779B185EBCA87;
constexpr uint64_t kXxhPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kXxhPrime3 = 0x165667B19E3779F9;
constexpr uint64_t kXxhPrime4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kXxhPrime5 = 0x27D4EB2F165667C5;

template <typename Lane>
uint64_t XxhLane(const std::byte* from) {
  Lane lane = 0;
  std::memcpy(&lane, from, sizeof(lane));
  return lane;
}

uint64_t XxhRound(uint64_t sum, uint64_t lane) { return std::rotl(sum + lane * kXxhPrime2, 31) * kXxhPrime1; }

// XXH64 (Y. Collet's specification) of `size` bytes, a multiple of 4, on a little-endian machine.
uint64_t Xxh64(const std::byte* data, size_t size, uint64_t seed) {
  const std::byte* end = data + size;
  uint64_t hash = seed + kXxhPrime5;
  if (size >= 32) {
    uint64_t sums[] = {seed + kXxhPrime1 + kXxhPrime2, seed + kXxhPrime2, seed, seed - kXxhPrime1};
    for (; end - data >= 32; data += 32) {
      for (size_t i = 0; i < 4; ++i) {
        sums[i] = XxhRound(sums[i], XxhLane<uint64_t>(data + 8 * i));
      }
    }
    hash = std::rotl(sums[0], 1) + std::rotl(sums[1], 7) + std::rotl(sums[2], 12) + std::rotl(sums[3], 18);
    for (const uint64_t sum : sums) {
      hash = (hash ^ XxhRound(0, sum)) * kXxhPrime1 + kXxhPrime4;
    }
  }
  hash += size;
  for (; end - data >= 8; data += 8) {
    hash = std::rotl(hash ^ XxhRound(0, XxhLane<uint64_t>(data)), 27) * kXxhPrime1 + kXxhPrime4;
  }
  if (end != data) {
    hash = std::rotl(hash ^ XxhLane<uint32_t>(data) * kXxhPrime1, 23) * kXxhPrime2 + kXxhPrime3;
  }
  hash = (hash ^ hash >> 33) * kXxhPrime2;
  hash = (hash ^ hash >> 29) * kXxhPrime3;
  return hash ^ hash >> 32;
}

template <typename T>
void HashKernel(const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const int32_t hashes = ctx.Attr<int32_t>("num_hash");
  const auto bound = static_cast<uint64_t>(ctx.Attr<int64_t>("mod_by"));
  const size_t bytes = static_cast<size_t>(x.dims()[1]) * sizeof(T);
  const auto* rows = static_cast<const std::byte*>(x.raw_data());
  T* out = ctx.Output("Out")->mutable_data<T>();
  const int64_t work = (x.dims()[1] + 16) * hashes;
  const auto hash = [=](int64_t r) {
    for (int32_t seed = 0; seed < hashes; ++seed) {
      const uint64_t value = Xxh64(rows + static_cast<size_t>(r) * bytes, bytes, static_cast<uint64_t>(seed));
      out[r * hashes + seed] = static_cast<T>(value % bound);
    }
  };
  ParallelForEach(x.dims()[0], hash, work);
}

void InferHash(InferShapeContext& ctx) {
  EnforceRank(ctx, "X", 2);
  const int32_t hashes = ctx.Attr<int32_t>("num_hash");
  const int64_t bound = ctx.Attr<int64_t>("mod_by");
  HR_ENFORCE(hashes > 0, InvalidArgument, "attribute num_hash: expected 1 or more, got ", hashes);
  const int64_t most = ctx.InputType("X") == DataType::kInt32 ? int64_t{1} << 31 : INT64_MAX;
  HR_ENFORCE(0 < bound && bound <= most, InvalidArgument, "attribute mod_by: expected a number in [1, ", most,
             "], for results of the dtype of X, got ", bound);
  SetOutput(ctx, "Out", {ctx.InputDim("X")[0], hashes, 1}, ctx.InputType("X"));
  ctx.ShareLoD("X", "Out");
}

}  // namespace

HEADRACE_REGISTER_OP(hash)
    .Comment("XXH64 of the bytes of each row, with seeds 0, 1, ..., modulo mod_by.")
    .Input("X", "int32 or int64 [N, width]")
    .Output("Out", "[N, num_hash, 1], dtype and LoD of X")
    .Attr<int32_t>("num_hash", "how many seeds", 1)
    .Attr<int64_t>("mod_by", "the results are below that", 100000)
    .InferShape(InferHash)
    .Kernel<int32_t>(HashKernel<int32_t>)
    .Kernel<int64_t>(HashKernel<int64_t>);

}  // namespace headrace::ops
