#include "operators/detection/ground_truth.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "operators/common/shape_inference.h"
#include "operators/random/random_stream.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// Checks an int32 number for each object.
void CheckNumbers(const InferShapeContext& ctx, HashedName slot) {
  EnforceSequences(ctx, slot, 1);
  EnforceLengths(ctx, slot, ctx.InputDim("GtBoxes")[0], DataType::kInt32);
}

}  // namespace

OpRegistrar&& GroundTruthInputs(OpRegistrar&& op, HashedName labels) {
  OpRegistrar&& with_labels =
      labels.empty()
          ? std::move(op)
          : std::move(op).Input(labels.ToString(), "int32 [K] or [K, 1], with a LoD: the classes of objects");
  return std::move(with_labels)
      .Input("IsCrowd", "int32 [K] or [K, 1], with a LoD: 1 for what stands for many objects")
      .Input("GtBoxes", "[K, 4] (left, upper, right, lower), with a LoD: the objects of each image, before scaling")
      .Input("ImInfo", "[N, 3]: height and width of each image, and by how much it was scaled");
}

void CheckGroundTruth(const InferShapeContext& ctx, HashedName like, HashedName labels) {
  EnforceDims(ctx, "GtBoxes", {-1, 4});
  EnforceSameType(ctx, "GtBoxes", like);
  EnforceSequences(ctx, "GtBoxes", 2);
  CheckNumbers(ctx, "IsCrowd");
  if (!labels.empty()) {
    CheckNumbers(ctx, labels);
  }
  CheckImageInfo(ctx, like);
}

void CheckImageInfo(const InferShapeContext& ctx, HashedName like) {
  EnforceDims(ctx, "ImInfo", {-1, 3});
  EnforceSameType(ctx, "ImInfo", like);
}

template <typename T>
const T* ImageInfoOf(const ExecutionContext& ctx, int64_t image) {
  const T* info = ctx.Input("ImInfo").data<T>() + 3 * image;
  HR_ENFORCE(std::all_of(info, info + 3, [](T number) { return std::isfinite(number) && number > 0; }), InvalidArgument,
             "input ImInfo: expected positive numbers, got height ", info[0], ", width ", info[1], " and scale ",
             info[2], " of image ", image);
  return info;
}

template const float* ImageInfoOf(const ExecutionContext& ctx, int64_t image);
template const double* ImageInfoOf(const ExecutionContext& ctx, int64_t image);

GroundTruth::GroundTruth(const ExecutionContext& ctx, HashedName labels_slot)
    : images(ctx.Input("ImInfo").dims()[0]),
      offsets(SequencesOf(ctx, "GtBoxes")),
      crowd(ctx.Input("IsCrowd").data<int32_t>()),
      labels(labels_slot.empty() ? nullptr : ctx.Input(labels_slot).data<int32_t>()) {
  HR_ENFORCE(SequenceCount(offsets) == images, InvalidArgument,
             "input GtBoxes: expected a sequence of boxes for each of the ", images, " images of input ImInfo, got ",
             SequenceCount(offsets));
  for (const HashedName slot : {HashedName("IsCrowd"), labels_slot}) {
    HR_ENFORCE(slot.empty() || SequencesOf(ctx, slot) == offsets, InvalidArgument, "input ", slot,
               ": expected the LoD of input GtBoxes");
  }
}

Chooser::Chooser(const ExecutionContext& ctx) {
  if (ctx.Attr<bool>("use_random")) {
    stream_ = StreamOfRun(ctx);
  }
}

void Chooser::Keep(int64_t most, PoolVector<int64_t>* places) {
  const auto count = static_cast<int64_t>(places->size());
  const int64_t kept = std::clamp<int64_t>(most, 0, count);
  if (stream_ && kept < count) {
    int64_t wanted = kept;
    size_t to = 0;
    for (int64_t i = 0; i < count && wanted > 0; ++i) {
      const PhiloxBlock block = stream_->Block(drawn_++);
      const uint64_t number = static_cast<uint64_t>(block[0]) << 32 | block[1];
      if (number % static_cast<uint64_t>(count - i) < static_cast<uint64_t>(wanted)) {
        (*places)[to++] = (*places)[static_cast<size_t>(i)];
        --wanted;
      }
    }
  }
  places->resize(static_cast<size_t>(kept));
}

OpRegistrar&& ChooserSlots(OpRegistrar&& op) {
  return std::move(op)
      .With(SeedInput)
      .Attr<bool>("use_random", "whether examples are chosen at random; else the first ones are taken", true)
      .With(SeedAttr, "examples");
}

}  // namespace headrace::ops
