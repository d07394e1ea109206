// pad: a tensor with more elements around it.
#include <cstdint>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/tensor/index_map_op.h"
#include "operators/tensor/padding.h"

namespace headrace::ops {
namespace {

struct Pad : Padding {
  static constexpr const char* kMoved = "X";
  static constexpr const char* kOther = "";
  Pad(const OpArgs& args, const DDim& dims, const DDim&) : Padding(dims) {
    const auto& paddings = args.Attr<Ints>("paddings");
    EnforceSize(paddings, "paddings", 2 * x.size(), x);
    for (size_t d = 0; d < x.size(); ++d) {
      Add(d, paddings[2 * d], paddings[2 * d + 1], [] { return "attribute paddings"; });
    }
  }
  int64_t From(size_t d, int64_t i) const { return Inside(d, i); }
  static bool KeepsRows(const OpArgs& args, size_t rank) {
    const auto& paddings = args.Attr<Ints>("paddings");
    return rank > 0 && paddings[0] == 0 && paddings[1] == 0;
  }
};

HEADRACE_REGISTER_OPS(pad) {
  RegisterMove<Pad>(
      "pad", "X with more elements around it.", "dims of X plus paddings", [](OpRegistrar&& op) -> OpRegistrar&& {
        return PadValue(std::move(op)).Attr<Ints>("paddings", "for each dimension, how many before and how many after");
      });
}

}  // namespace
}  // namespace headrace::ops
