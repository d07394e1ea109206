// crop, crop_tensor: the part of a tensor from offsets on.
#include <algorithm>
#include <cstdint>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/tensor/index_map_op.h"

namespace headrace::ops {
namespace {

constexpr IntsSlots kCropOffsets = {"offsets", "Offsets", ""};

constexpr IntsSlots kCropTensorOffsets = {"offsets", "Offsets", "OffsetsTensor"};
constexpr IntsSlots kCropTensorShape = {"shape", "Shape", "ShapeTensor"};

// Where a part of X begins: at `offsets`; by default at 0.
DDim BeginOfPart(const DDim& x, const IntsArg& offsets, bool given) {
  DDim begin(x.size(), 0);
  if (offsets.size() != 0 || given) {
    EnforceSize(offsets, x.size(), x);
    for (size_t d = 0; d < x.size(); ++d) {
      begin[d] = offsets[d];
    }
  }
  return begin;
}

void EnforcePart(const DDim& x, const DDim& out, const DDim& begin, const IntsArg& offsets) {
  for (size_t d = 0; d < x.size(); ++d) {
    const int64_t least = begin[d] == kUnknown ? 0 : begin[d];
    HR_ENFORCE(least >= 0 && (x[d] < 0 || least <= x[d] - std::max<int64_t>(out[d], 0)), InvalidArgument,
               offsets.Name(), " and the shape: expected a part of X of dims ", ToString(x), ", got ", ToString(out),
               " from ", offsets.Values(), " on");
  }
}

struct Crop {
  static constexpr const char* kMoved = "X";
  static constexpr const char* kOther = "Y";
  Crop(const OpArgs& args, const DDim& x, const DDim& y) : out(y) {
    const auto& shape = args.Attr<Ints>("shape");
    if (!args.HasInput("Y")) {
      out.assign(shape.begin(), shape.end());
    }
    HR_ENFORCE(out.size() == x.size(), InvalidArgument,
               "attribute shape and input Y: expected as many dimensions as X of dims ", ToString(x), " has, got ",
               ToString(out));
    if (!args.HasInput("Y") && !out.empty()) {
      HR_ENFORCE(out[0] >= -1 && std::all_of(out.begin() + 1, out.end(), [](int64_t extent) { return extent >= 0; }),
                 InvalidArgument, "attribute shape: expected numbers of 0 or more, of which the first may be -1, got ",
                 ToString(Attribute(shape)));
      out[0] = out[0] < 0 ? x[0] : out[0];
    }
    const IntsArg offsets = args.Ints(kCropOffsets, x.size());
    begin = BeginOfPart(x, offsets, args.FromInputs(kCropOffsets));
    EnforcePart(x, out, begin, offsets);
  }
  int64_t From(size_t d, int64_t i) const { return begin[d] + i; }
  DDim out;
  DDim begin;
};

struct CropTensor {
  static constexpr const char* kMoved = "X";
  static constexpr const char* kOther = "";
  CropTensor(const OpArgs& args, const DDim& x, const DDim&) {
    // Of single variables, layers write into the attribute what they know.
    const IntsArg shape = args.Ints(kCropTensorShape, x.size(), args.HasInput(kCropTensorShape.list));
    EnforceSize(shape, x.size(), x);
    const IntsArg offsets = args.Ints(kCropTensorOffsets, x.size());
    begin = BeginOfPart(x, offsets, args.FromInputs(kCropTensorOffsets));
    for (size_t d = 0; d < x.size(); ++d) {
      HR_ENFORCE(shape[d] >= -1 || shape[d] == kUnknown, InvalidArgument, shape.Name(),
                 ": expected numbers of 0 or more, or -1 for all from the offset on, got ", shape.Values());
      const bool rest = shape[d] == -1 && x[d] >= 0 && begin[d] != kUnknown;
      out.push_back(rest ? x[d] - begin[d] : shape[d] == kUnknown ? -1 : shape[d]);
    }
    EnforcePart(x, out, begin, offsets);
  }
  // Before the run, also rows that an offset from an input may leave.
  static bool KeepsRows(const OpArgs& args, size_t rank) {
    if (rank == 0 || args.Ints(kCropTensorShape, rank, args.HasInput(kCropTensorShape.list))[0] != -1) {
      return false;
    }
    const IntsArg offsets = args.Ints(kCropTensorOffsets, rank);
    return offsets.size() == 0 || offsets[0] == 0 || offsets[0] == kUnknown;
  }
  int64_t From(size_t d, int64_t i) const { return begin[d] + i; }
  DDim out;
  DDim begin;
};

HEADRACE_REGISTER_OPS(crop) {
  RegisterMove<Crop>("crop", "The part of X from offsets on.", "dims shape, or those of Y",
                     [](OpRegistrar&& op) -> OpRegistrar&& {
                       return std::move(op)
                           .Attr<Ints>("offsets", "where each dimension begins; empty: 0", {})
                           .Attr<Ints>("shape", "dims of Out, unless Y is given; the first may be -1: that of X", {});
                     },
                     "any dtype: its dims are those of Out", {kCropOffsets});
  RegisterMove<CropTensor>("crop_tensor", "The part of X from offsets on.", "dims shape",
                           [](OpRegistrar&& op) -> OpRegistrar&& {
                             return std::move(op)
                                 .Attr<Ints>("offsets", "where each dimension begins; empty: 0", {})
                                 .Attr<Ints>("shape", "dims of Out; -1: all from the offset on", {});
                           },
                           "", {kCropTensorShape, kCropTensorOffsets});
}

}  // namespace
}  // namespace headrace::ops
