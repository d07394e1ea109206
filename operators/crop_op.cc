// crop: the part of a tensor from offsets on.
#include <cstdint>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "operators/element_move.h"
#include "operators/op_args.h"

namespace headrace::ops {
namespace {

constexpr IntsSlots kCropOffsets = {"offsets", "Offsets", ""};

struct Crop {
  static constexpr const char* kMoved = "X";
  static constexpr const char* kOther = "Y";
  Crop(const OpArgs& args, const DDim& x, const DDim& y) : out(y), begin(x.size(), 0) {
    const auto& shape = args.Attr<Ints>("shape");
    if (!args.HasInput("Y")) {
      out.assign(shape.begin(), shape.end());
    }
    HR_ENFORCE(out.size() == x.size(), InvalidArgument,
               "attribute shape and input Y: expected as many dimensions as X of dims ", ToString(x), " has, got ",
               ToString(out));
    const IntsArg offsets = args.Ints(kCropOffsets, x.size());
    if (offsets.size() != 0 || args.FromInputs(kCropOffsets)) {
      EnforceSize(offsets, x.size(), x);
      for (size_t d = 0; d < x.size(); ++d) {
        begin[d] = offsets[d];
      }
    }
    for (size_t d = 0; d < x.size(); ++d) {
      HR_ENFORCE(begin[d] == kUnknown || (begin[d] >= 0 && (x[d] < 0 || out[d] < 0 || begin[d] <= x[d] - out[d])),
                 InvalidArgument, offsets.Name(), " and the shape: expected a part of X of dims ", ToString(x),
                 ", got ", ToString(out), " from ", offsets.Values(), " on");
    }
  }
  int64_t From(size_t d, int64_t i) const { return begin[d] + i; }
  DDim out;
  DDim begin;
};

[[maybe_unused]] const bool kCropOp =
    RegisterMove<Crop>("crop", "The part of X from offsets on.", "dims shape, or those of Y",
                       [](OpRegistrar&& op) -> OpRegistrar&& {
                         return std::move(op)
                             .Attr<Ints>("offsets", "where each dimension begins; empty: 0", {})
                             .Attr<Ints>("shape", "dims of Out, unless Y is given", {});
                       },
                       "any dtype: its dims are those of Out", {kCropOffsets});

}  // namespace
}  // namespace headrace::ops
