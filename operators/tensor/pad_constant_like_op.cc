// pad_constant_like: a tensor filled up to the dims of another one.
#include <cstdint>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/tensor/index_map_op.h"
#include "operators/tensor/padding.h"

namespace headrace::ops {
namespace {

struct PadLike {
  static constexpr const char* kMoved = "Y";
  static constexpr const char* kOther = "X";
  static constexpr bool kNeedsOther = true;
  static constexpr const char* kSequences = "X";
  PadLike(const OpArgs&, const DDim& dims, const DDim& like) : out(like), y(dims) {
    bool fits = y.size() == like.size();
    for (size_t d = 0; fits && d < y.size(); ++d) {
      fits = y[d] < 0 || like[d] < 0 || y[d] <= like[d];
    }
    HR_ENFORCE(fits, InvalidArgument, "input Y: expected dims no greater than those of X, ", ToString(like), ", got ",
               ToString(y));
  }
  int64_t From(size_t d, int64_t i) const { return i < y[d] ? i : -1; }
  DDim out;
  DDim y;
};

HEADRACE_REGISTER_OPS(pad_constant_like) {
  RegisterMove<PadLike>("pad_constant_like", "Y with more elements after it.", "dims of X", PadValue,
                        "any shape: its dims are those of Out");
}

}  // namespace
}  // namespace headrace::ops
