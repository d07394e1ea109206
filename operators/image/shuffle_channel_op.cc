// shuffle_channel: the channels of images, shuffled among groups.
#include <cstdint>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/tensor/index_map_op.h"

namespace headrace::ops {
namespace {

// Group g's channel c becomes channel c * groups + g.
struct ShuffleChannel {
  static constexpr const char* kMoved = "X";
  static constexpr const char* kOther = "";
  ShuffleChannel(const OpArgs& args, const DDim& x, const DDim&) : out(x), groups(args.Attr<int32_t>("group")) {
    HR_ENFORCE(x.size() == 4, InvalidArgument, "input X: expected rank 4, got dims ", ToString(x));
    HR_ENFORCE(x[1] < 0 || x[1] % groups == 0, InvalidArgument, "attribute group: expected a divisor of ", x[1],
               ", the number of channels of X, got ", groups);
  }
  int64_t From(size_t d, int64_t i) const { return d == 1 ? i % groups * (out[1] / groups) + i / groups : i; }
  DDim out;
  int64_t groups;
};

HEADRACE_REGISTER_OPS(shuffle_channel) {
  RegisterMove<ShuffleChannel>(
      "shuffle_channel",
      "The channels of images, the first of each group before the second of each (X. Zhang et al., ShuffleNet, 2017).",
      "dims of X, [N, C, H, W]", [](OpRegistrar&& op) -> OpRegistrar&& {
        return std::move(op).Attr<int32_t>(
            "group", "the number of groups, a divisor of C", 1, [](const int32_t& group) {
              HR_ENFORCE(group > 0, InvalidArgument, "attribute group: expected a positive number, got ", group);
            });
      });
}

}  // namespace
}  // namespace headrace::ops
