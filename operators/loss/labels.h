// Numbers of classes: labels of losses, and what else names rows of a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"

namespace headrace::ops {

// Checks numbers of classes or of rows: int64. Declared they may be as what may be fed int64 all the same: other
// integers, or float32, the dtype of layers.data unless a program says another.
inline void EnforceNumbers(const InferShapeContext& ctx, HashedName slot) {
  const DataType declared = ctx.InputType(slot);
  if (ctx.IsRuntime() || declared == DataType::kFloat64 || !MayBeGivenAs(declared, DataType::kInt64)) {
    EnforceType(ctx, slot, DataType::kInt64);
  }
}

// The classes of the rows, from a label tensor of int64 [..., 1] or [...].
class HardLabels {
 public:
  HardLabels(const ExecutionContext& ctx, int64_t classes)
      : data_(ctx.Input("Label").data<int64_t>()), classes_(classes), ignored_(ctx.Attr<int32_t>("ignore_index")) {}

  // The class of row `r`, -1 if it is the one to be ignored. Throws OutOfRange naming row and value.
  int64_t operator[](int64_t r) const {
    const int64_t label = data_[r];
    if (label == ignored_) {
      return -1;
    }
    HR_ENFORCE(0 <= label && label < classes_, OutOfRange, "input Label: row ", r, " has class ", label,
               ", expected one in [0, ", classes_, ")");
    return label;
  }

 private:
  const int64_t* data_;
  int64_t classes_;
  int64_t ignored_;
};

// Checks labels of hard classes; `losses` are the dims of predictions with a 1 in dimension `classes`. Returns the dims
// of the losses: those, or without the 1 where Label `may_lack_axis` and does.
inline DDim CheckHardLabels(const InferShapeContext& ctx, DDim losses, size_t classes, bool may_lack_axis) {
  if (may_lack_axis && ctx.InputDim("Label").size() + 1 == losses.size()) {
    losses.erase(losses.begin() + static_cast<std::ptrdiff_t>(classes));
  }
  EnforceDims(ctx, "Label", losses);
  EnforceNumbers(ctx, "Label");
  return losses;
}

// Checks the labels of predictions, whose classes lie along `axis`, and returns the dims of the losses: those of the
// predictions with a 1 there, or without it where numbers of classes `may_lack_axis` and do. Without an attribute
// soft_label, they are hard.
inline DDim CheckLabels(const InferShapeContext& ctx, std::string_view predictions, int32_t axis = -1,
                        bool may_lack_axis = false) {
  EnforceRankAtLeast(ctx, predictions, 2);
  const DDim dims = ctx.InputDim(predictions);
  const size_t classes = FrontAxis(axis, dims.size(), "axis");
  HR_ENFORCE(dims[classes] != 0, InvalidArgument, "input ", predictions, ": expected at least one class, got dims ",
             ToString(dims));
  DDim losses = dims;
  losses[classes] = 1;
  if (!ctx.attrs().Has("soft_label") || !ctx.Attr<bool>("soft_label")) {
    return CheckHardLabels(ctx, losses, classes, may_lack_axis);
  }
  EnforceDims(ctx, "Label", dims);
  EnforceSameType(ctx, "Label", predictions);
  return losses;
}

inline OpRegistrar&& IgnoreIndexAttr(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>("ignore_index", "the class whose rows have loss 0, unless soft_label", -100);
}

inline OpRegistrar&& LabelAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<bool>("soft_label", "whether Label holds a probability for each class, instead of the number of a class",
                  false)
      .With(IgnoreIndexAttr);
}

}  // namespace headrace::ops
