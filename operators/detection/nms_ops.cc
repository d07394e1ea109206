// multiclass_nms, multiclass_nms2, locality_aware_nms: of many boxes, those that show something, each thing once.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/registration.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/detection/polygons.h"
#include "operators/math/element_loop.h"
#include "operators/math/scratch.h"
#include "operators/math/tensor_size.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// The scores and boxes of a batch.
template <typename T>
struct ScoredBoxes {
  enum class Layout {
    kShared,    // boxes [N, M, size], for all classes, and scores [N, C, M]
    kRows,      // boxes [rows, C, size] and scores [rows, C], a sequence of rows for each image
    kPerClass,  // boxes [N, C, M, size] and scores [N, C, M]
  };

  explicit ScoredBoxes(const ExecutionContext& ctx)
      : scores(ctx.Input("Scores").data<T>()),
        boxes(ctx.Input("BBoxes").data<T>()),
        box_size(ctx.Input("BBoxes").dims().back()),
        classes(ctx.Input("Scores").dims()[1]) {
    const DDim& dims = ctx.Input("Scores").dims();
    if (dims.size() == 3) {
      images = dims[0];
      per_image = dims[2];
    } else {
      layout = Layout::kRows;
      sequences = &SequencesOf(ctx, "BBoxes");
      images = SequenceCount(*sequences);
    }
  }

  int64_t First(int64_t image) const {
    return layout == Layout::kRows ? static_cast<int64_t>((*sequences)[static_cast<size_t>(image)]) : image * per_image;
  }
  int64_t Count(int64_t image) const { return First(image + 1) - First(image); }
  // Where the scores of a class begin, and how far they lie apart.
  const T* ScoresOf(int64_t image, int64_t c) const {
    return scores + First(image) * classes + (layout == Layout::kRows ? c : c * per_image);
  }
  int64_t Stride() const { return layout == Layout::kRows ? classes : 1; }
  // The place among all boxes of box `i` of an image.
  int64_t Place(int64_t image, int64_t c, int64_t i) const {
    switch (layout) {
      case Layout::kShared:
        return First(image) + i;
      case Layout::kRows:
        return (First(image) + i) * classes + c;
      case Layout::kPerClass:
        break;
    }
    return (image * classes + c) * per_image + i;
  }
  const T* Box(int64_t image, int64_t c, int64_t i) const { return boxes + Place(image, c, i) * box_size; }
  T Overlap(const T* a, const T* b, T pixel) const {
    return box_size == kBoxSize ? TouchingOverlap(a, b, pixel) : PolygonOverlap(a, b, box_size / 2);
  }

  const T* scores;
  const T* boxes;
  int64_t box_size;
  Layout layout = Layout::kShared;
  int64_t classes;
  int64_t images;
  int64_t per_image = 0;
  const LoDOffsets* sequences = nullptr;
};

struct Detection {
  int64_t label;
  int64_t box;
};

// The boxes of one class of one image that are kept, the best first.
template <typename T>
PoolVector<int64_t> KeptBoxes(const ExecutionContext& ctx, const ScoredBoxes<T>& all, int64_t image, int64_t c) {
  const PoolVector<int64_t> best =
      BestScores(all.ScoresOf(image, c), all.Count(image), all.Stride(),
                 static_cast<T>(ctx.Attr<double>("score_threshold")), ctx.Attr<int32_t>("nms_top_k"));
  const T pixel = PixelOf<T>(ctx.Attr<bool>("normalized"));
  return SuppressOverlaps(
      best, static_cast<T>(ctx.Attr<double>("nms_threshold")), static_cast<T>(ctx.Attr<double>("nms_eta")), -1,
      [&](int64_t a, int64_t b) { return all.Overlap(all.Box(image, c, a), all.Box(image, c, b), pixel); });
}

// The detections of an image, by label, of those with the greatest scores.
template <typename T>
PoolVector<Detection> DetectionsOf(const ExecutionContext& ctx, const ScoredBoxes<T>& all, int64_t image,
                                   const PoolVector<PoolVector<int64_t>>& kept) {
  PoolVector<Detection> found;
  for (int64_t c = 0; c < all.classes; ++c) {
    for (const int64_t box : kept[static_cast<size_t>(image * all.classes + c)]) {
      found.push_back({c, box});
    }
  }
  const auto score = [&](const Detection& d) { return all.ScoresOf(image, d.label)[d.box * all.Stride()]; };
  const int64_t most = ctx.Attr<int32_t>("keep_top_k");
  if (most >= 0 && static_cast<int64_t>(found.size()) > most) {
    std::sort(found.begin(), found.end(), [&](const Detection& a, const Detection& b) {
      return score(a) != score(b) ? score(a) > score(b) : a.label != b.label ? a.label < b.label : a.box < b.box;
    });
    found.resize(static_cast<size_t>(most));
  }
  // Rows stay in their order, as in Fluid.
  const bool by_score = all.layout != ScoredBoxes<T>::Layout::kRows;
  std::sort(found.begin(), found.end(), [&](const Detection& a, const Detection& b) {
    if (a.label != b.label) {
      return a.label < b.label;
    }
    return by_score && score(a) != score(b) ? score(a) > score(b) : a.box < b.box;
  });
  return found;
}

template <typename T>
void WriteDetections(const ExecutionContext& ctx, const ScoredBoxes<T>& all) {
  PoolVector<PoolVector<int64_t>> kept(static_cast<size_t>(all.images * all.classes));
  const int64_t background = ctx.Attr<int32_t>("background_label");
  const int64_t mean = all.images == 0 ? 0 : all.First(all.images) / all.images;
  ParallelFor(all.images * all.classes, RowsPerBlock(16 * mean), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i % all.classes != background) {
        kept[static_cast<size_t>(i)] = KeptBoxes(ctx, all, i / all.classes, i % all.classes);
      }
    }
  });
  PoolVector<PoolVector<Detection>> found;
  LoDOffsets offsets = {0};
  for (int64_t image = 0; image < all.images; ++image) {
    found.push_back(DetectionsOf(ctx, all, image, kept));
    offsets.push_back(offsets.back() + found.back().size());
  }
  LoDTensor* out_tensor = ctx.Output("Out");
  LoDTensor* index_tensor = ctx.OutputOrNull("Index");
  const auto rows = static_cast<int64_t>(offsets.back());
  if (rows == 0 && index_tensor == nullptr) {  // Fluid's
    *out_tensor->Resize({1, 1}).template mutable_data<T>() = T(-1);
    out_tensor->set_lod({LoDOffsets{0, 1}});
    return;
  }
  T* out = out_tensor->Resize({rows, all.box_size + 2}).template mutable_data<T>();
  int32_t* index = index_tensor == nullptr ? nullptr : index_tensor->Resize({rows, 1}).template mutable_data<int32_t>();
  for (int64_t image = 0; image < all.images; ++image) {
    for (const Detection& d : found[static_cast<size_t>(image)]) {
      *out++ = static_cast<T>(d.label);
      *out++ = all.ScoresOf(image, d.label)[d.box * all.Stride()];
      out = std::copy_n(all.Box(image, d.label, d.box), all.box_size, out);
      if (index != nullptr) {
        *index++ = static_cast<int32_t>(all.Place(image, d.label, d.box));
      }
    }
  }
  if (index_tensor != nullptr) {
    index_tensor->set_lod({offsets});
  }
  out_tensor->set_lod({std::move(offsets)});
}

template <typename T>
void MulticlassNmsKernel(const ExecutionContext& ctx) {
  WriteDetections(ctx, ScoredBoxes<T>(ctx));
}

// Merges each box of a class with the one before, if they overlap by more than `threshold`: a mean, weighted by the
// scores, with the sum of the scores. What has been merged into the next one has the least score there is.
template <typename T>
void MergeNeighbours(const ScoredBoxes<T>& all, int64_t count, T threshold, T pixel, T* boxes, T* scores) {
  int64_t last = 0;
  for (int64_t i = 1; i < count; ++i) {
    T* const box = boxes + i * all.box_size;
    T* const before = boxes + last * all.box_size;
    if (!(all.Overlap(box, before, pixel) > threshold)) {
      last = i;
      continue;
    }
    const T sum = scores[i] + scores[last];
    for (int64_t d = 0; d < all.box_size && sum != 0; ++d) {
      before[d] = (box[d] * scores[i] + before[d] * scores[last]) / sum;
    }
    scores[last] = sum;
    scores[i] = -std::numeric_limits<T>::infinity();
  }
}

template <typename T>
void LocalityAwareNmsKernel(const ExecutionContext& ctx) {
  const ScoredBoxes<T> all(ctx);
  const T threshold = static_cast<T>(ctx.Attr<double>("nms_threshold"));
  const T pixel = PixelOf<T>(ctx.Attr<bool>("normalized"));
  const int64_t count = all.per_image;
  Tensor memory;
  Tensor score_memory;
  T* boxes = Scratch<T>(&memory, all.images * all.classes * count * all.box_size);
  T* scores = Scratch<T>(&score_memory, all.images * all.classes * count);
  ParallelFor(all.images * all.classes, RowsPerBlock(16 * count), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* const of_class = boxes + i * count * all.box_size;
      std::copy_n(all.boxes + i / all.classes * count * all.box_size, count * all.box_size, of_class);
      std::copy_n(all.scores + i * count, count, scores + i * count);
      MergeNeighbours(all, count, threshold, pixel, of_class, scores + i * count);
    }
  });
  ScoredBoxes<T> merged = all;
  merged.layout = ScoredBoxes<T>::Layout::kPerClass;
  merged.boxes = boxes;
  merged.scores = scores;
  WriteDetections(ctx, merged);
}

void InferMulticlassNms(InferShapeContext& ctx) {
  EnforceRank(ctx, "BBoxes", 3);
  EnforceSameType(ctx, "BBoxes", "Scores");
  const DDim boxes = ctx.InputDim("BBoxes");
  const DDim scores = ctx.InputDim("Scores");
  HR_ENFORCE(scores.size() == 2 || scores.size() == 3, InvalidArgument, "input Scores: expected rank 2 or 3, got dims ",
             ToString(scores));
  if (scores.size() == 3) {
    EnforceDims(ctx, "BBoxes", {scores[0], scores[2], -1});
    const int64_t size = boxes[2];
    HR_ENFORCE(size < 0 || size == kBoxSize || (size % 8 == 0 && 0 < size && size <= 2 * kMaxCorners), InvalidArgument,
               "input BBoxes: expected boxes of 4 numbers, or polygons of 8, 16, 24 or 32, got dims ", ToString(boxes));
  } else {
    EnforceSequences(ctx, "BBoxes", 3);
    EnforceDims(ctx, "BBoxes", {scores[0], scores[1], kBoxSize});
  }
  const int64_t count = Numel(boxes, 0, 2);
  HR_ENFORCE(!ctx.HasOutput("Index") || count <= INT32_MAX, InvalidArgument,
             "input BBoxes: expected at most 2^31 - 1 boxes, got dims ", ToString(boxes));
  if (!ctx.IsRuntime()) {  // the kernel knows how many are found
    SetOutput(ctx, "Out", {-1, boxes[2] < 0 ? -1 : boxes[2] + 2}, ctx.InputType("Scores"));
    ctx.SetOutputLoDLevel("Out", 1);
    SetOutput(ctx, "Index", {-1, 1}, DataType::kInt32);
    ctx.SetOutputLoDLevel("Index", 1);
  }
}

OpRegistrar&& NmsAttrs(OpRegistrar&& op, int32_t background) {
  return std::move(op)
      .Attr<int32_t>("background_label", "the class to leave out; -1: none", background)
      .Attr<double>("score_threshold", "greater scores count")
      .Attr<int32_t>("nms_top_k", "how many boxes of a class to look at, the best ones; -1: all")
      .Attr<double>("nms_threshold", "how much boxes may overlap", 0.3)
      .Attr<double>("nms_eta", "by what each box that is kept multiplies a threshold above 1/2, if below 1", 1.0)
      .Attr<int32_t>("keep_top_k", "how many boxes of an image to keep, the best ones; -1: all")
      .Attr<bool>("normalized", "false: boxes are made of pixels, of which the last one counts", true)
      .KernelTypeFrom("Scores");
}

void RegisterNms(const std::string& type, bool index) {
  OpRegistrar op(type);
  More(op)
      .Comment(
          "Of each image and class, the boxes with a score above score_threshold, without those that overlap a better "
          "one by more than nms_threshold.")
      .Input("BBoxes",
             "[N, M, 4], or [N, M, 8, 16, 24 or 32], for polygons of up to 16 corners; or [boxes, C, 4] with LoD, a "
             "sequence for each image: xmin, ymin, xmax, ymax")
      .Input("Scores", "[N, C, M] or [boxes, C], dtype of BBoxes")
      .Output("Out",
              index ? "[found, 6 or more] with LoD, a sequence for each image: label, score, box; by label"
                    : "[found, 6 or more] with LoD, a sequence for each image: label, score, box; by label. [[-1]] as "
                      "one sequence if nothing is found at all");
  if (index) {
    More(op).Output("Index", "int32 [found, 1] with the same LoD: the places in BBoxes, seen as a list of boxes");
  }
  More(op)
      .With(NmsAttrs, 0)
      .InferShape(InferMulticlassNms)
      .Kernel<float>(MulticlassNmsKernel<float>)
      .Kernel<double>(MulticlassNmsKernel<double>)
      .Register();
}

}  // namespace

HEADRACE_REGISTER_OPS(multiclass_nms) {
  RegisterNms("multiclass_nms", false);
  RegisterNms("multiclass_nms2", true);
}

HEADRACE_REGISTER_OP(locality_aware_nms)
    .Comment(
        "As multiclass_nms, after each box has been merged with the one before where they overlap by more than "
        "nms_threshold: their mean, weighted by the scores, with the sum of the scores (X. Zhou et al., EAST, 2017).")
    .Input("BBoxes",
           "[N, M, 4]: xmin, ymin, xmax, ymax; or [N, M, 8, 16, 24 or 32], for polygons of up to 16 corners; those of "
           "neighbouring cells next to each other")
    .Input("Scores", "[N, C, M], dtype of BBoxes")
    .Output("Out",
            "[found, 6 or more] with LoD, a sequence for each image: label, score, box; by label. [[-1]] as one "
            "sequence if nothing is found at all")
    .With(NmsAttrs, -1)
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "Scores", 3);
      InferMulticlassNms(ctx);
    })
    .Kernel<float>(LocalityAwareNmsKernel<float>)
    .Kernel<double>(LocalityAwareNmsKernel<double>);

}  // namespace headrace::ops
