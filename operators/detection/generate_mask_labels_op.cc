// generate_mask_labels: which pixels of regions belong to their objects.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/detection/ground_truth.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

struct GridPoint {
  int64_t x;
  int64_t y;
};

// The pixels of a square that lie within a polygon, as COCO's tools count them: its border is drawn with five times as
// many points, and a column of pixels changes sides where the border crosses its middle.
class PolygonFill {
 public:
  explicit PolygonFill(int64_t size) : size_(size), crossings_(static_cast<size_t>(size * size + 1)) {}

  // Adds the inside of a polygon to `mask`, [size, size]. Its corners, in pixels: place(i) for i in [0, count).
  template <typename T, typename Corner>
  void Add(int64_t count, const Corner& corner, uint8_t* mask) {
    std::fill(crossings_.begin(), crossings_.end(), uint8_t{0});
    GridPoint last{};
    bool has_last = false;
    for (int64_t i = 0; i < count; ++i) {
      Walk(corner(i), corner((i + 1) % count), [&](const GridPoint& point) {
        if (has_last && point.x != last.x) {
          Cross(std::min(point.x, last.x), std::min(point.y, last.y));
        }
        last = point;
        has_last = true;
      });
    }
    uint8_t inside = 0;
    for (int64_t i = 0; i < size_ * size_; ++i) {
      inside ^= crossings_[static_cast<size_t>(i)];
      mask[i % size_ * size_ + i / size_] |= inside;
    }
  }

  static constexpr int64_t kScale = 5;

 private:
  // Calls visit(point) for each point from `a` to `b`, one for each row or column, whichever are more.
  template <typename Visit>
  static void Walk(const GridPoint& a, const GridPoint& b, const Visit& visit) {
    const bool along_x = std::abs(a.x - b.x) >= std::abs(a.y - b.y);
    const int64_t from = along_x ? a.x : a.y;
    const int64_t to = along_x ? b.x : b.y;
    // Rounded the same in both directions.
    const GridPoint& low = from <= to ? a : b;
    const GridPoint& high = from <= to ? b : a;
    const int64_t steps = std::abs(to - from);
    const int64_t rise = along_x ? high.y - low.y : high.x - low.x;
    const double slope = steps == 0 ? 0 : static_cast<double>(rise) / static_cast<double>(steps);
    for (int64_t d = 0; d <= steps; ++d) {
      const int64_t t = from <= to ? d : steps - d;
      const double other = static_cast<double>(along_x ? low.y : low.x) + slope * static_cast<double>(t);
      const double rounded = other + 0.5;  // and cut off: COCO's
      const auto place = static_cast<int64_t>(rounded);
      visit(along_x ? GridPoint{low.x + t, place} : GridPoint{place, low.y + t});
    }
  }

  // The border crosses the line between columns `x` and `x` + 1 of points at `y`.
  void Cross(int64_t x, int64_t y) {
    constexpr int64_t kMiddle = kScale / 2;
    if ((x - kMiddle) % kScale != 0 || x < kMiddle || (x - kMiddle) / kScale >= size_) {
      return;
    }
    const int64_t below = y <= kMiddle ? 0 : (y - kMiddle + kScale - 1) / kScale;
    crossings_[static_cast<size_t>((x - kMiddle) / kScale * size_ + std::min(below, size_))] ^= 1;
  }

  int64_t size_;
  PoolVector<uint8_t> crossings_;  // column by column: whether the border is crossed before a pixel
};

// The polygons of one object: rows of GtSegms [offsets[first], offsets[first + 1]), … up to those of last - 1.
struct ObjectOutline {
  size_t first;
  size_t last;
};

template <typename T>
class MaskMaker {
 public:
  MaskMaker(const T* points, const LoDOffsets& polygons, int64_t size)
      : points_(points), polygons_(polygons), size_(size), fill_(size) {}

  // The box around an outline.
  void BoxOf(const ObjectOutline& outline, T* box) const {
    box[0] = box[1] = std::numeric_limits<T>::max();
    box[2] = box[3] = std::numeric_limits<T>::lowest();
    for (size_t i = polygons_[outline.first]; i < polygons_[outline.last]; ++i) {
      for (size_t k = 0; k < 2; ++k) {
        box[k] = std::min(box[k], points_[2 * i + k]);
        box[2 + k] = std::max(box[2 + k], points_[2 * i + k]);
      }
    }
  }

  // Which of size² parts of `roi` lie within an outline.
  const PoolVector<uint8_t>& MaskOf(const ObjectOutline& outline, const T* roi) {
    mask_.assign(static_cast<size_t>(size_ * size_), 0);
    const T extent[2] = {std::max(roi[2] - roi[0], T(1)), std::max(roi[3] - roi[1], T(1))};
    for (size_t polygon = outline.first; polygon < outline.last; ++polygon) {
      const T* corners = points_ + 2 * polygons_[polygon];
      const auto count = static_cast<int64_t>(polygons_[polygon + 1] - polygons_[polygon]);
      const auto place = [&](int64_t i, size_t k) {
        // Further away it is as far away.
        constexpr double kMax = 1 << 22;
        const T pixel = (corners[2 * i + static_cast<int64_t>(k)] - roi[k]) * static_cast<T>(size_) / extent[k];
        const double scaled = static_cast<double>(PolygonFill::kScale) * static_cast<double>(pixel) + 0.5;
        return static_cast<int64_t>(std::clamp(scaled, -kMax, kMax));
      };
      fill_.Add<T>(count, [&](int64_t i) { return GridPoint{place(i, 0), place(i, 1)}; }, mask_.data());
    }
    return mask_;
  }

 private:
  const T* points_;
  const LoDOffsets& polygons_;
  int64_t size_;
  PolygonFill fill_;
  PoolVector<uint8_t> mask_;
};

template <typename T>
struct MaskTargets {
  PoolVector<T> rois;
  PoolVector<int32_t> numbers;
  PoolVector<int32_t> masks;
  LoDOffsets offsets = {0};
};

template <typename T>
void CheckOutlines(const LoDTensor& outlines, const LoDOffsets& objects) {
  HR_ENFORCE(outlines.lod().size() == 3 && outlines.lod()[0] == objects, InvalidArgument,
             "input GtSegms: expected a LoD of three levels, the first that of input GtClasses, got ",
             outlines.lod().size(), " levels");
  CheckLoD(outlines.lod(), outlines.dims()[0]);
  const T* points = outlines.data<T>();
  for (int64_t i = 0; i < outlines.numel(); ++i) {
    HR_ENFORCE(std::isfinite(points[i]), InvalidArgument, "input GtSegms: row ", i / 2, " is ", points[i],
               ", expected finite numbers");
  }
  const LoDOffsets& polygons = outlines.lod()[2];
  for (size_t i = 0; i + 1 < polygons.size(); ++i) {
    HR_ENFORCE(polygons[i] < polygons[i + 1], InvalidArgument, "input GtSegms: polygon ", i, " has no corners");
  }
}

// Adds the regions [begin, end) of an image that have objects; the first one of the others if there are none, with a
// mask that does not count.
template <typename T>
void AddMasks(const ExecutionContext& ctx, int64_t begin, int64_t end, const PoolVector<ObjectOutline>& outlines,
              T scale, MaskMaker<T>* maker, MaskTargets<T>* to) {
  const T* rois = ctx.Input("Rois").data<T>();
  const int32_t* labels = ctx.Input("LabelsInt32").data<int32_t>();
  const int64_t classes = ctx.Attr<int32_t>("num_classes");
  const int64_t mask_size = int64_t{ctx.Attr<int32_t>("resolution")} * ctx.Attr<int32_t>("resolution");
  const auto add = [&](int64_t r) {
    to->rois.insert(to->rois.end(), rois + r * kBoxSize, rois + (r + 1) * kBoxSize);
    to->numbers.push_back(static_cast<int32_t>(r - begin));
    to->masks.resize(to->masks.size() + static_cast<size_t>(classes * mask_size), -1);
  };
  const size_t before = to->numbers.size();
  PoolVector<T> boxes(outlines.size() * kBoxSize);
  for (size_t i = 0; i < outlines.size(); ++i) {
    maker->BoxOf(outlines[i], boxes.data() + i * kBoxSize);
  }
  for (int64_t r = begin; r < end; ++r) {
    const int32_t label = labels[r];
    HR_ENFORCE(0 <= label && label < classes, OutOfRange, "input LabelsInt32: region ", r, " has class ", label,
               ", expected one in [0, ", classes, ")");
    if (label == 0) {
      continue;
    }
    HR_ENFORCE(!outlines.empty(), InvalidArgument, "input LabelsInt32: region ", r, " has class ", label,
               ", but its image has no object with an outline");
    T roi[kBoxSize];
    std::transform(rois + r * kBoxSize, rois + (r + 1) * kBoxSize, roi, [scale](T place) { return place / scale; });
    size_t object = 0;
    T best = 0;
    for (size_t i = 0; i < outlines.size(); ++i) {
      const T overlap = BoxOverlap(roi, boxes.data() + i * kBoxSize, T(1));
      if (overlap > best) {
        best = overlap;
        object = i;
      }
    }
    add(r);
    const PoolVector<uint8_t>& mask = maker->MaskOf(outlines[object], roi);
    std::copy(mask.begin(), mask.end(), to->masks.end() - (classes - label) * mask_size);
  }
  if (to->numbers.size() == before && begin < end) {
    add(begin);
  }
  to->offsets.push_back(to->numbers.size());
}

template <typename T>
void GenerateMaskLabelsKernel(const ExecutionContext& ctx) {
  const LoDOffsets& objects = SequencesOf(ctx, "GtClasses");
  const LoDOffsets& rois = SequencesOf(ctx, "Rois");
  const int64_t images = ctx.Input("ImInfo").dims()[0];
  HR_ENFORCE(SequenceCount(objects) == images && SequenceCount(rois) == images, InvalidArgument,
             "inputs GtClasses and Rois: expected a sequence for each of the ", images, " images of input ImInfo, got ",
             SequenceCount(objects), " and ", SequenceCount(rois));
  HR_ENFORCE(SequencesOf(ctx, "IsCrowd") == objects, InvalidArgument,
             "input IsCrowd: expected the LoD of input GtClasses");
  HR_ENFORCE(SequencesOf(ctx, "LabelsInt32") == rois, InvalidArgument,
             "input LabelsInt32: expected the LoD of input Rois");
  const LoDTensor& segments = ctx.Input("GtSegms");
  CheckOutlines<T>(segments, objects);
  const int32_t* classes = ctx.Input("GtClasses").data<int32_t>();
  const int32_t* crowd = ctx.Input("IsCrowd").data<int32_t>();
  const int64_t resolution = ctx.Attr<int32_t>("resolution");
  MaskMaker<T> maker(segments.data<T>(), segments.lod()[2], resolution);
  MaskTargets<T> targets;
  for (int64_t n = 0; n < images; ++n) {
    const auto image = static_cast<size_t>(n);
    PoolVector<ObjectOutline> outlines;
    for (size_t object = objects[image]; object < objects[image + 1]; ++object) {
      const ObjectOutline outline{segments.lod()[1][object], segments.lod()[1][object + 1]};
      if (classes[object] > 0 && crowd[object] == 0 && outline.first < outline.last) {
        outlines.push_back(outline);
      }
    }
    AddMasks(ctx, static_cast<int64_t>(rois[image]), static_cast<int64_t>(rois[image + 1]), outlines,
             ImageInfoOf<T>(ctx, n)[2], &maker, &targets);
  }
  const auto write = [&](HashedName slot, const auto& values, int64_t width) {
    LoDTensor* out = ctx.Output(slot);
    out->Resize({static_cast<int64_t>(targets.numbers.size()), width});
    using Element = typename std::decay_t<decltype(values)>::value_type;
    std::copy(values.begin(), values.end(), out->template mutable_data<Element>());
    out->set_lod({targets.offsets});
  };
  write("MaskRois", targets.rois, kBoxSize);
  write("RoiHasMaskInt32", targets.numbers, 1);
  write("MaskInt32", targets.masks, ctx.Attr<int32_t>("num_classes") * resolution * resolution);
}

void InferMaskLabels(InferShapeContext& ctx) {
  EnforceDims(ctx, "Rois", {-1, kBoxSize});
  EnforceSequences(ctx, "Rois", 2);
  EnforceSequences(ctx, "LabelsInt32", 1);
  EnforceLengths(ctx, "LabelsInt32", ctx.InputDim("Rois")[0], DataType::kInt32);
  EnforceSequences(ctx, "GtClasses", 1);
  const int64_t objects = ctx.InputDim("GtClasses")[0];
  EnforceLengths(ctx, "GtClasses", objects, DataType::kInt32);
  EnforceSequences(ctx, "IsCrowd", 1);
  EnforceLengths(ctx, "IsCrowd", objects, DataType::kInt32);
  EnforceDims(ctx, "GtSegms", {-1, 2});
  EnforceSequences(ctx, "GtSegms", 2);
  EnforceSameType(ctx, "GtSegms", "Rois");
  CheckImageInfo(ctx, "Rois");
  const int64_t classes = ctx.Attr<int32_t>("num_classes");
  const int64_t resolution = ctx.Attr<int32_t>("resolution");
  constexpr int64_t kMaxResolution = 1 << 12;
  HR_ENFORCE(classes > 0, InvalidArgument, "attribute num_classes: expected 1 or more, got ", classes);
  HR_ENFORCE(0 < resolution && resolution <= kMaxResolution, InvalidArgument,
             "attribute resolution: expected a number in [1, ", kMaxResolution, "], got ", resolution);
  if (ctx.IsRuntime()) {
    return;  // the kernel knows how many there are
  }
  SetOutput(ctx, "MaskRois", {-1, kBoxSize}, ctx.InputType("Rois"));
  SetOutput(ctx, "RoiHasMaskInt32", {-1, 1}, DataType::kInt32);
  SetOutput(ctx, "MaskInt32", {-1, classes * resolution * resolution}, DataType::kInt32);
  for (const HashedName slot : {HashedName("MaskRois"), HashedName("RoiHasMaskInt32"), HashedName("MaskInt32")}) {
    ctx.SetOutputLoDLevel(slot, 1);
  }
}

}  // namespace

HEADRACE_REGISTER_OP(generate_mask_labels)
    .Comment("Which pixels of regions belong to their objects (K. He et al., Mask R-CNN, 2017).")
    .Input("Rois", "[R, 4] (left, upper, right, lower), with a LoD: the regions of each image")
    .Input("LabelsInt32", "int32 [R] or [R, 1], the LoD of Rois: the classes of their objects, 0 for none")
    .Input("GtClasses", "int32 [K] or [K, 1], with a LoD: the classes of the objects of each image")
    .Input("IsCrowd", "int32 [K] or [K, 1], with the same LoD: 1 for what stands for many objects")
    .Input("GtSegms",
           "[points, 2] (x, y), with a LoD of three levels: objects of images, polygons of objects, corners"
           " of polygons; before scaling")
    .Input("ImInfo", "[N, 3]: height and width of each image, and by how much it was scaled")
    .Output("MaskRois", "[P, 4], with a LoD: the regions with objects; of an image with none, its first region")
    .Output("RoiHasMaskInt32", "int32 [P, 1], the LoD of MaskRois: their numbers among the regions of their image")
    .Output("MaskInt32",
            "int32 [P, num_classes resolution²], the LoD of MaskRois: in the columns of its class, 1 where"
            " the object is and 0 elsewhere; -1 in all others")
    .Attr<int32_t>("num_classes", "how many classes there are; 0 is for no object")
    .Attr<int32_t>("resolution", "how many rows and columns of pixels a mask has")
    .InferShape(InferMaskLabels)
    .Kernel<float>(GenerateMaskLabelsKernel<float>)
    .Kernel<double>(GenerateMaskLabelsKernel<double>);

}  // namespace headrace::ops
