// expand, expand_as: a tensor repeated along its dimensions.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/tensor/index_map_op.h"

namespace headrace::ops {
namespace {

constexpr IntsSlots kExpandTimes = {"expand_times", "ExpandTimes", "expand_times_tensor"};

struct Expand {
  static constexpr const char* kMoved = "X";
  static constexpr const char* kOther = "";
  Expand(const OpArgs& args, const DDim& dims, const DDim&) : out(dims), x(dims) {
    const IntsArg times = args.Ints(kExpandTimes, x.size());
    EnforceSize(times, x.size(), x);
    for (size_t d = 0; d < x.size(); ++d) {
      HR_ENFORCE(times[d] > 0 || times[d] == kUnknown, InvalidArgument, times.Name(),
                 ": expected numbers of 1 or more, got ", times.Values());
      out[d] = x[d] < 0 || times[d] == kUnknown ? -1 : MultiplyExtents(x[d], times[d]);
    }
  }
  int64_t From(size_t d, int64_t i) const { return i % x[d]; }
  static bool KeepsRows(const OpArgs& args, size_t rank) { return rank > 0 && args.Ints(kExpandTimes, rank)[0] == 1; }
  DDim out;
  DDim x;
};

struct ExpandAs {
  static constexpr const char* kMoved = "X";
  static constexpr const char* kOther = "target_tensor";
  static constexpr bool kNeedsOther = true;
  ExpandAs(const OpArgs&, const DDim& dims, const DDim& target) : out(target), x(dims) {
    bool fits = x.size() == out.size();
    for (size_t d = 0; fits && d < x.size(); ++d) {
      fits = x[d] < 0 || out[d] < 0 || (x[d] == 0 ? out[d] == 0 : out[d] % x[d] == 0);
    }
    HR_ENFORCE(fits, InvalidArgument, "input target_tensor: expected dims that are multiples of those of X, ",
               ToString(x), ", got ", ToString(out));
  }
  int64_t From(size_t d, int64_t i) const { return i % x[d]; }
  DDim out;
  DDim x;
};

OpRegistrar&& ExpandTimesAttr(OpRegistrar&& op) {
  return std::move(op).Attr<Ints>("expand_times", "how often, for each dimension", {});
}

HEADRACE_REGISTER_OPS(expand) {
  RegisterMove<Expand>("expand", "X, repeated.", "dims of X times expand_times", ExpandTimesAttr, "", {kExpandTimes});
  RegisterMove<ExpandAs>(
      "expand_as", "X, repeated to the dims of target_tensor.", "dims of target_tensor",
      [](OpRegistrar&& op) -> OpRegistrar&& { return std::move(op); },
      "any dtype: its dims, which are multiples of those of X, are those of Out");
}

}  // namespace
}  // namespace headrace::ops
