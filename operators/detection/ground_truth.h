// What training is told of the objects in a batch of images, and what operators share that choose targets by it.
#pragma once

#include <cstdint>
#include <optional>

#include "framework/lod_tensor.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/operator.h"
#include "operators/math/philox.h"

namespace headrace::ops {

// Declares inputs GtBoxes, IsCrowd, ImInfo and, if `with_labels`, `labels`.
OpRegistrar&& GroundTruthInputs(OpRegistrar&& op, HashedName labels);

// Checks them; their boxes have the dtype of input `like`. `labels`: "" if there are none.
void CheckGroundTruth(const InferShapeContext& ctx, HashedName like, HashedName labels);
// Checks ImInfo, [N, 3], of the dtype of `like`.
void CheckImageInfo(const InferShapeContext& ctx, HashedName like);

// Height, width and scale of image `image`. Throws InvalidArgument unless they are positive numbers.
template <typename T>
const T* ImageInfoOf(const ExecutionContext& ctx, int64_t image);

// Throws InvalidArgument unless there is a sequence in each input for each image, and they go together.
struct GroundTruth {
  GroundTruth(const ExecutionContext& ctx, HashedName labels_slot);

  int64_t Begin(int64_t image) const { return static_cast<int64_t>(offsets[static_cast<size_t>(image)]); }
  int64_t End(int64_t image) const { return Begin(image + 1); }
  bool IsCrowd(int64_t object) const { return crowd[object] != 0; }

  int64_t images;
  // The objects of image n are offsets[n], …, offsets[n + 1] - 1.
  const LoDOffsets& offsets;
  const int32_t* crowd;
  const int32_t* labels;  // nullptr if there are none
};

// Chooses some of many: the first ones, or ones at random.
class Chooser {
 public:
  // Reads attributes use_random and seed, and input Seed.
  explicit Chooser(const ExecutionContext& ctx);
  // The first ones.
  Chooser() = default;

  // Leaves `most` of `places`, in their order, none if that is negative.
  void Keep(int64_t most, PoolVector<int64_t>* places);

 private:
  std::optional<PhiloxStream> stream_;  // none: the first ones are taken
  uint64_t drawn_ = 0;
};

// Declares them; CheckSeed checks the input.
OpRegistrar&& ChooserSlots(OpRegistrar&& op);

}  // namespace headrace::ops
