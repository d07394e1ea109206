// pad2d: images with more pixels around them.
#include <algorithm>
#include <cstdint>
#include <string>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/math/layout.h"
#include "operators/tensor/index_map_op.h"
#include "operators/tensor/padding.h"

namespace headrace::ops {
namespace {

constexpr IntsSlots kPaddings = {"paddings", "Paddings", ""};

struct Pad2d : Padding {
  static constexpr const char* kMoved = "X";
  static constexpr const char* kOther = "";
  Pad2d(const OpArgs& args, const DDim& dims, const DDim&) : Padding(dims), mode(args.attrs().Text("mode")) {
    HR_ENFORCE(x.size() == 4, InvalidArgument, "input X: expected a tensor of rank 4, got dims ", ToString(x));
    const IntsArg paddings = args.Ints(kPaddings, 4);
    EnforceSize(paddings, 4, x);
    const size_t height = HasChannelsLast(args.attrs()) ? 1 : 2;
    for (size_t d = 0; d < x.size(); ++d) {
      const bool padded = d == height || d == height + 1;
      const int64_t before = padded ? paddings[2 * (d - height)] : 0;
      const int64_t after = padded ? paddings[2 * (d - height) + 1] : 0;
      if (before == kUnknown || after == kUnknown) {
        begin.push_back(0);
        out[d] = -1;
        continue;
      }
      Add(d, before, after, [&paddings] { return paddings.Name(); });
      HR_ENFORCE(mode != "reflect" || x[d] < 0 || !padded || std::max(before, after) < x[d], InvalidArgument,
                 paddings.Name(), ": expected less than the extent of dimension ", d, " of X of dims ", ToString(x),
                 ", which is reflected, got ", paddings.Values());
      HR_ENFORCE(mode != "edge" || x[d] != 0 || !padded || before + after == 0, InvalidArgument,
                 "input X: expected an edge to repeat, got dims ", ToString(x));
    }
  }
  static bool KeepsRows(const OpArgs&, size_t) { return true; }
  int64_t From(size_t d, int64_t i) const {
    const int64_t from = i - begin[d];
    if (mode == "edge") {
      return std::clamp<int64_t>(from, 0, x[d] - 1);
    }
    if (mode == "reflect") {
      return from < 0 ? -from : from >= x[d] ? 2 * (x[d] - 1) - from : from;
    }
    return Inside(d, i);
  }
  HashedName mode;
};

HEADRACE_REGISTER_OPS(pad2d) {
  RegisterMove<Pad2d>(
      "pad2d", "Images with more pixels around them.", "dims of X plus paddings",
      [](OpRegistrar&& op) -> OpRegistrar&& {
        return PadValue(std::move(op))
            .Attr<Ints>("paddings", "top, bottom, left, right", {0, 0, 0, 0})
            .Attr<std::string>(
                "mode", "'constant': pad_value; 'reflect': as in a mirror; 'edge': the nearest pixel", "constant",
                [](const std::string& mode) {
                  HR_ENFORCE(mode == "constant" || mode == "reflect" || mode == "edge", InvalidArgument,
                             "attribute mode: expected 'constant', 'reflect' or 'edge', got '", mode, "'");
                })
            .With(TwoLayoutsAttr, "data_format");
      },
      "", {kPaddings});
}

}  // namespace
}  // namespace headrace::ops
