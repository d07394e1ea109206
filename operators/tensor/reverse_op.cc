// reverse: the elements in the reverse order along some dimensions.
#include <cstdint>

#include "framework/ddim.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/common/shape_inference.h"
#include "operators/tensor/index_map_op.h"

namespace headrace::ops {
namespace {

struct Reverse {
  static constexpr const char* kMoved = "X";
  static constexpr const char* kOther = "";
  Reverse(const OpArgs& args, const DDim& x, const DDim&) : out(x), turned(x.size(), false) {
    for (const int32_t axis : args.Attr<Ints>("axis")) {
      turned[FrontAxis(axis, x.size(), "axis")] = true;
    }
  }
  int64_t From(size_t d, int64_t i) const { return turned[d] ? out[d] - 1 - i : i; }
  DDim out;
  PoolVector<bool> turned;
};

HEADRACE_REGISTER_OPS(reverse) {
  RegisterMove<Reverse>(
      "reverse", "The elements in the reverse order.", "dims of X", [](OpRegistrar&& op) -> OpRegistrar&& {
        return std::move(op).Attr<Ints>("axis", "the dimensions that are reversed; negative ones count from the back");
      });
}

}  // namespace
}  // namespace headrace::ops
