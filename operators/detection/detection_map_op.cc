// detection_map: mean average precision of what a detector has found (M. Everingham et al., The PASCAL visual object
// classes challenge, 2010).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/math/ranking.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// Something that was found: whether it is there, and whether that is a mistake. Neither, if it does not count.
template <typename T>
struct Finding {
  T score;
  T is_true;
  T is_false;
};

template <typename T>
struct ClassFindings {
  int64_t objects = 0;  // that there are
  PoolVector<Finding<T>> found;
};

// The numbers below `count`, those with the greatest scores first, of equal ones the first.
template <typename Score>
PoolVector<int64_t> BestFirst(int64_t count, const Score& score) {
  PoolVector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return Before(score(a), score(b)) || (!Before(score(b), score(a)) && a < b); });
  return order;
}

// The columns of the rows of DetectRes and Label.
constexpr int64_t kFoundWidth = 6;
constexpr int64_t kFoundBox = 2;

template <typename T>
class MapState {
 public:
  explicit MapState(const ExecutionContext& ctx) : classes_(static_cast<size_t>(ctx.Attr<int32_t>("class_num"))) {}

  // Throws OutOfRange naming the slot.
  ClassFindings<T>& Class(HashedName slot, int64_t row, T label) {
    HR_ENFORCE(0 <= label && label < static_cast<T>(classes_.size()) && label == std::floor(label), OutOfRange,
               "input ", slot, ": row ", row, " has class ", label, ", expected one in [0, ", classes_.size(), ")");
    return classes_[static_cast<size_t>(label)];
  }

  void Read(const ExecutionContext& ctx) {
    const int32_t* count = ctx.Input("PosCount").data<int32_t>();
    HR_ENFORCE(ctx.Input("PosCount").numel() == static_cast<int64_t>(classes_.size()), InvalidArgument,
               "input PosCount: expected ", classes_.size(), " elements, one for each class, got dims ",
               ToString(ctx.Input("PosCount").dims()));
    for (const HashedName slot : HashedNames{"TruePos", "FalsePos"}) {
      const DDim& dims = ctx.Input(slot).dims();
      HR_ENFORCE(dims.size() == 2 && dims[1] == 2, InvalidArgument, "input ", slot, ": expected dims [found, 2], got ",
                 ToString(dims));
    }
    const LoDOffsets& sequences = SequencesOf(ctx, "TruePos");
    HR_ENFORCE(SequencesOf(ctx, "FalsePos") == sequences, InvalidArgument,
               "input FalsePos: expected the LoD of TruePos, ", ToString(ctx.Input("TruePos").lod()), ", got ",
               ToString(ctx.Input("FalsePos").lod()));
    HR_ENFORCE(sequences.size() <= classes_.size() + 1, InvalidArgument, "input TruePos: expected ", classes_.size(),
               " sequences at most, one for each class, got ", SequenceCount(sequences));
    const T* is_true = ctx.Input("TruePos").data<T>();
    const T* is_false = ctx.Input("FalsePos").data<T>();
    for (size_t c = 0; c < classes_.size(); ++c) {
      classes_[c].objects = count[c];
    }
    ForEachSequence(sequences, [&](int64_t c, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        classes_[static_cast<size_t>(c)].found.push_back({is_true[2 * i], is_true[2 * i + 1], is_false[2 * i + 1]});
      }
    });
  }

  void Write(const ExecutionContext& ctx) const {
    int32_t* count = ctx.Output("AccumPosCount")->mutable_data<int32_t>();
    LoDOffsets offsets = {0};
    for (const ClassFindings<T>& of_class : classes_) {
      *count++ = static_cast<int32_t>(of_class.objects);
      offsets.push_back(offsets.back() + of_class.found.size());
    }
    for (const bool right : {true, false}) {
      LoDTensor* out = ctx.Output(right ? "AccumTruePos" : "AccumFalsePos");
      T* to = out->Resize({static_cast<int64_t>(offsets.back()), 2}).template mutable_data<T>();
      for (const ClassFindings<T>& of_class : classes_) {
        for (const Finding<T>& finding : of_class.found) {
          *to++ = finding.score;
          *to++ = right ? finding.is_true : finding.is_false;
        }
      }
      out->set_lod({offsets});
    }
  }

  // The mean over the classes of which something is there and something was found, as in Fluid.
  double Map(int64_t background, bool eleven_points) const {
    double sum = 0;
    int64_t count = 0;
    for (size_t c = 0; c < classes_.size(); ++c) {
      if (static_cast<int64_t>(c) != background && classes_[c].objects > 0 && !classes_[c].found.empty()) {
        sum += AveragePrecision(classes_[c], eleven_points);
        ++count;
      }
    }
    return count == 0 ? 0 : sum / static_cast<double>(count);
  }

 private:
  static double AveragePrecision(const ClassFindings<T>& of_class, bool eleven_points) {
    const auto order = BestFirst(static_cast<int64_t>(of_class.found.size()),
                                 [&](int64_t i) { return of_class.found[static_cast<size_t>(i)].score; });
    double is_true = 0;
    double is_false = 0;
    double recall = 0;
    double area = 0;
    double best[11] = {};  // precision at a recall of 0, 0.1, …, 1 or more
    for (const int64_t i : order) {
      const Finding<T>& finding = of_class.found[static_cast<size_t>(i)];
      is_true += static_cast<double>(finding.is_true);
      is_false += static_cast<double>(finding.is_false);
      if (is_true + is_false == 0) {
        continue;
      }
      const double precision = is_true / (is_true + is_false);
      const double before = std::exchange(recall, is_true / static_cast<double>(of_class.objects));
      area += precision * (recall - before);
      for (int k = 0; k <= 10 && recall >= k / 10.0; ++k) {
        best[k] = std::max(best[k], precision);
      }
    }
    if (!eleven_points) {
      return area;
    }
    double sum = 0;
    for (const double precision : best) {
      sum += precision / 11;
    }
    return sum;
  }

  PoolVector<ClassFindings<T>> classes_;
};

// What is there and what was found in one image.
template <typename T>
class ImageFindings {
 public:
  ImageFindings(const ExecutionContext& ctx, MapState<T>* state)
      : state_(state),
        labels_(ctx.Input("Label").data<T>()),
        width_(ctx.Input("Label").dims()[1]),
        found_(ctx.Input("DetectRes").data<T>()),
        threshold_(static_cast<T>(ctx.Attr<double>("overlap_threshold"))),
        difficult_counts_(ctx.Attr<bool>("evaluate_difficult")) {}

  void CountObjects(int64_t begin, int64_t end) {
    begin_ = begin;
    end_ = end;
    seen_.assign(static_cast<size_t>(end - begin), false);
    for (int64_t i = begin; i < end; ++i) {
      state_->Class("Label", i, labels_[i * width_]).objects += Counts(i) ? 1 : 0;
    }
  }

  // The best first, so that each object is found by the best of those that find it.
  void CountFound(int64_t begin, int64_t end) {
    const auto score = [&](int64_t i) { return found_[(begin + i) * kFoundWidth + 1]; };
    for (const int64_t i : BestFirst(end - begin, score)) {
      CountFinding(begin + i);
    }
  }

 private:
  bool Counts(int64_t object) const {
    return difficult_counts_ || width_ != kFoundWidth || std::abs(labels_[object * width_ + 1]) < T(1e-6);
  }

  void CountFinding(int64_t i) {
    const T* row = found_ + i * kFoundWidth;
    ClassFindings<T>& of_class = state_->Class("DetectRes", i, row[0]);
    T box[kBoxSize];
    ClipBox(row + kFoundBox, T(1), T(1), box);
    T most = -1;
    int64_t best = -1;
    for (int64_t k = begin_; k < end_; ++k) {
      if (labels_[k * width_] != row[0]) {
        continue;
      }
      const T overlap = BoxOverlap(box, labels_ + (k + 1) * width_ - kBoxSize, T(0));
      if (overlap > most) {
        most = overlap;
        best = k;
      }
    }
    const bool finds = most > threshold_;
    if (finds && !Counts(best)) {
      return;
    }
    const bool is_new = finds && !seen_[static_cast<size_t>(best - begin_)];
    if (is_new) {
      seen_[static_cast<size_t>(best - begin_)] = true;
    }
    of_class.found.push_back({row[1], is_new ? T(1) : T(0), is_new ? T(0) : T(1)});
  }

  MapState<T>* state_;
  const T* labels_;
  int64_t width_;
  const T* found_;
  T threshold_;
  bool difficult_counts_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  PoolVector<bool> seen_;  // of the objects of the image
};

// multiclass_nms says so.
bool NothingFound(const DDim& dims) { return dims[0] == 1 && dims[1] == 1; }

template <typename T>
void DetectionMapKernel(const ExecutionContext& ctx) {
  MapState<T> state(ctx);
  if (ctx.HasInput("PosCount") && (!ctx.HasInput("HasState") || IntegerInput(ctx, "HasState")[0] != 0)) {
    state.Read(ctx);
  }
  const LoDOffsets& objects = SequencesOf(ctx, "Label");
  const bool nothing = NothingFound(ctx.Input("DetectRes").dims());
  const LoDOffsets& found = SequencesOf(ctx, "DetectRes");
  HR_ENFORCE(nothing || found.size() == objects.size(), InvalidArgument, "input DetectRes: expected ",
             SequenceCount(objects), " sequences, as Label has, got ", SequenceCount(found));
  ImageFindings<T> image(ctx, &state);
  ForEachSequence(objects, [&](int64_t s, int64_t begin, int64_t end) {
    image.CountObjects(begin, end);
    if (!nothing) {
      image.CountFound(static_cast<int64_t>(found[static_cast<size_t>(s)]),
                       static_cast<int64_t>(found[static_cast<size_t>(s + 1)]));
    }
  });
  *ctx.Output("MAP")->mutable_data<T>() =
      static_cast<T>(state.Map(ctx.Attr<int32_t>("background_label"), ctx.Text("ap_type") == "11point"));
  state.Write(ctx);
}

void InferDetectionMap(InferShapeContext& ctx) {
  EnforceSequences(ctx, "DetectRes", 2);
  EnforceRank(ctx, "DetectRes", 2);
  const DDim found = ctx.InputDim("DetectRes");
  if (!NothingFound(found)) {
    EnforceDims(ctx, "DetectRes", {-1, kFoundWidth});
  }
  EnforceSequences(ctx, "Label", 2);
  EnforceRank(ctx, "Label", 2);
  const DDim label = ctx.InputDim("Label");
  HR_ENFORCE(label[1] < 0 || label[1] == 5 || label[1] == 6, InvalidArgument,
             "input Label: expected rows of 5 or 6 numbers, got dims ", ToString(label));
  EnforceSameType(ctx, "Label", "DetectRes");
  const int32_t classes = ctx.Attr<int32_t>("class_num");
  HR_ENFORCE(0 < classes && classes <= 1 << 24, InvalidArgument,
             "attribute class_num: expected a number in [1, 2^24], got ", classes);
  const bool state = ctx.HasInput("PosCount");
  HR_ENFORCE(state == ctx.HasInput("TruePos") && state == ctx.HasInput("FalsePos"), InvalidArgument,
             "inputs PosCount, TruePos and FalsePos: expected all or none of them");
  if (ctx.HasInput("HasState")) {
    EnforceDims(ctx, "HasState", {1});
  }
  if (state && !ctx.IsRuntime()) {  // without a state it may hold anything: the kernel checks it
    EnforceType(ctx, "PosCount", DataType::kInt32);
    for (const HashedName slot : HashedNames{"TruePos", "FalsePos"}) {
      EnforceDims(ctx, slot, {-1, 2});
      EnforceSameType(ctx, slot, "DetectRes");
    }
  }
  SetOutput(ctx, "MAP", {1}, ctx.InputType("DetectRes"));
  SetOutput(ctx, "AccumPosCount", {classes, 1}, DataType::kInt32);
  for (const bool right : {true, false}) {
    const char* const in = right ? "TruePos" : "FalsePos";
    const char* const out = right ? "AccumTruePos" : "AccumFalsePos";
    if (!ctx.IsRuntime()) {  // the kernel knows how many were found
      SetOutput(ctx, out, {-1, 2}, ctx.InputType("DetectRes"));
      ctx.SetOutputLoDLevel(out, 1);
    } else if (state) {
      ctx.ShareLoD(in, out);  // in place, the kernel is still to read it
    }
  }
}

}  // namespace

HEADRACE_REGISTER_OP(detection_map)
    .Comment(
        "Mean average precision: of what was found, from the greatest score on, that counts as true which overlaps an "
        "object of its class by more than overlap_threshold, if nothing better has found it.")
    .Input(
        "DetectRes",
        "[found, 6] with LoD, a sequence for each image: class, score, xmin, ymin, xmax, ymax from 0 to 1; or [[-1]]: "
        "nothing was found")
    .Input("Label",
           "[objects, 5] or [objects, 6] with LoD, a sequence for each image: class, whether it is difficult (of six), "
           "box; dtype of DetectRes")
    .Input("HasState", "int32 [1]: 0 if the next three do not count yet", kDispensable)
    .Input("PosCount", "int32 [class_num, 1]: AccumPosCount of the batches before", kDispensable)
    .Input("TruePos", "[found, 2] with LoD: AccumTruePos of the batches before", kDispensable)
    .Input("FalsePos", "[found, 2] with LoD: AccumFalsePos of the batches before", kDispensable)
    .Output("MAP", "[1], dtype of DetectRes: of these batches and this one")
    .Output("AccumPosCount", "int32 [class_num, 1]: how many objects of each class there are")
    .Output("AccumTruePos", "[found, 2] with LoD, a sequence for each class: score, and 1 if it is true")
    .Output("AccumFalsePos", "[found, 2] with LoD, a sequence for each class: score, and 1 if it is false")
    .InPlace("AccumPosCount", "PosCount")
    .InPlace("AccumTruePos", "TruePos")
    .InPlace("AccumFalsePos", "FalsePos")
    .Attr<int32_t>("class_num", "number of classes")
    .Attr<int32_t>("background_label", "the class to leave out; -1: none", 0)
    .Attr<double>("overlap_threshold", "the least overlap of a true detection with its object", 0.5)
    .Attr<bool>("evaluate_difficult", "whether difficult objects count", true)
    .Attr<std::string>("ap_type", "'integral': the area below precision over recall; '11point': its mean at 11 points",
                       "integral",
                       [](const std::string& type) {
                         HR_ENFORCE(type == "integral" || type == "11point", InvalidArgument,
                                    "attribute ap_type: expected 'integral' or '11point', got '", type, "'");
                       })
    .InferShape(InferDetectionMap)
    .KernelTypeFrom("DetectRes")
    .Kernel<float>(DetectionMapKernel<float>)
    .Kernel<double>(DetectionMapKernel<double>);

}  // namespace headrace::ops
