// slice, strided_slice: the part of a tensor between starts and ends, or each nth element of it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "framework/ddim.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/op_args.h"
#include "operators/common/shape_inference.h"
#include "operators/tensor/index_map_op.h"

namespace headrace::ops {
namespace {

constexpr IntsSlots kSliceStarts = {"starts", "StartsTensor", "StartsTensorList"};
constexpr IntsSlots kSliceEnds = {"ends", "EndsTensor", "EndsTensorList"};
constexpr IntsSlots kSliceStrides = {"strides", "StridesTensor", "StridesTensorList"};

template <bool kStrided>
struct Slice {
  static constexpr const char* kMoved = "Input";
  static constexpr const char* kOther = "";
  Slice(const OpArgs& args, const DDim& x, const DDim&) : out(x), begin(x.size(), 0), stride(x.size(), 1) {
    const auto& axes = args.Attr<Ints>("axes");
    const auto& dropped = args.Attr<Ints>("decrease_axis");
    const auto& flags = args.Attr<Ints>("infer_flags");
    const IntsArg starts = args.Ints(kSliceStarts, axes.size(), !flags.empty());
    const IntsArg ends = args.Ints(kSliceEnds, axes.size(), !flags.empty());
    HR_ENFORCE(starts.size() == axes.size() && ends.size() == axes.size(), InvalidArgument,
               "attributes axes, starts and ends: expected as many of each, got ", axes.size(), ", ", starts.size(),
               " and ", ends.size());
    bool from_inputs = args.FromInputs(kSliceStarts) || args.FromInputs(kSliceEnds);
    IntsArg strides("", "", DDim(axes.size(), 1));
    if constexpr (kStrided) {
      strides = args.Ints(kSliceStrides, axes.size(), !flags.empty());
      HR_ENFORCE(strides.size() == axes.size(), InvalidArgument, strides.Name(), ": expected as many as axes, ",
                 axes.size(), ", got ", strides.size());
      from_inputs = from_inputs || args.FromInputs(kSliceStrides);
    }
    HR_ENFORCE(!from_inputs || flags.empty() || flags.size() == axes.size(), InvalidArgument,
               "attribute infer_flags: expected as many numbers as axes, ", axes.size(), ", or none, got ",
               flags.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      const size_t d = FrontAxis(axes[i], x.size(), "axes");
      const bool left_to_kernel = from_inputs && args.InShapeInference() && !flags.empty() && flags[i] == -1;
      HR_ENFORCE(strides[i] != 0, InvalidArgument, strides.Name(), ": expected numbers that are not 0, got ",
                 strides.Values());
      if (x[d] < 0 || starts[i] == kUnknown || ends[i] == kUnknown || strides[i] == kUnknown || left_to_kernel) {
        out[d] = -1;
        continue;
      }
      const int64_t before = strides[i] < 0 ? -1 : 0;  // where there is nothing more on the way back
      const auto place = [&](int64_t p) { return std::clamp<int64_t>(p < 0 ? p + x[d] : p, before, x[d] + before); };
      begin[d] = place(starts[i]);
      // What is to be dropped is the one element at starts: -1 is the last one, although 0 comes before it.
      const bool is_dropped = std::find(dropped.begin(), dropped.end(), axes[i]) != dropped.end();
      const bool last = from_inputs && starts[i] == -1 && ends[i] == 0 && is_dropped;
      stride[d] = strides[i];
      const int64_t end = last ? x[d] : place(ends[i]);
      const int64_t span = stride[d] < 0 ? begin[d] - end : end - begin[d];
      out[d] = span <= 0 ? 0 : (span - 1) / std::abs(stride[d]) + 1;
      HR_ENFORCE(!is_dropped || out[d] > 0, OutOfRange, starts.Name(), " and ", ends.Name(),
                 ": expected an element to take from dimension ", d, " of Input of dims ", ToString(x), ", got ",
                 starts[i], " and ", ends[i]);
    }
    PoolVector<bool> drops(x.size(), false);
    for (const int32_t axis : dropped) {
      const size_t d = FrontAxis(axis, x.size(), "decrease_axis");
      HR_ENFORCE(out[d] == 1 || out[d] < 0, InvalidArgument, "attribute decrease_axis: expected dimension ", d,
                 " to be cut to 1, got dims ", ToString(out), " of Input of dims ", ToString(x));
      drops[d] = true;
    }
    for (size_t d = 0; d < x.size(); ++d) {
      if (!drops[d]) {
        result.push_back(out[d]);
      }
    }
    if (result.empty() && !dropped.empty()) {
      result.push_back(1);
    }
  }
  static bool KeepsRows(const OpArgs& args, size_t rank) {
    const auto& axes = args.Attr<Ints>("axes");
    return rank > 0 &&
           std::all_of(axes.begin(), axes.end(), [rank](int32_t axis) { return FrontAxis(axis, rank, "axes") > 0; });
  }
  int64_t From(size_t d, int64_t i) const { return begin[d] + i * stride[d]; }
  DDim out;
  DDim begin;
  DDim stride;
  DDim result;  // out without the dimensions of decrease_axis
};

OpRegistrar&& SliceAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<Ints>("axes", "the dimensions that are cut; negative ones count from the back")
      .Attr<Ints>("starts", "where each begins; negative: from the end; beyond the end: there", {})
      .Attr<Ints>("ends", "where each ends, exclusive; likewise", {})
      .Attr<Ints>("infer_flags",
                  "for each of axes: -1 where inputs give the range, so that the extent is not known before the run, 1 "
                  "where the attributes say it as well; empty: -1",
                  {})
      .Attr<Ints>("decrease_axis", "dimensions that are 1 then, and are left out; without any other, Out is [1]", {});
}

HEADRACE_REGISTER_OPS(slice) {
  RegisterMove<Slice<false>>("slice", "The part of a tensor between starts and ends.",
                             "dims of Input, less the parts cut off", SliceAttrs, "", {kSliceStarts, kSliceEnds});
  RegisterMove<Slice<true>>("strided_slice", "Each nth element of the part of a tensor between starts and ends.",
                            "dims of Input, less the parts cut off or left out",
                            [](OpRegistrar&& op) -> OpRegistrar&& {
                              return SliceAttrs(std::move(op))
                                  .Attr<Ints>("strides", "how far one element is from the next; negative: backwards",
                                              {});
                            },
                            "", {kSliceStarts, kSliceEnds, kSliceStrides});
}

}  // namespace
}  // namespace headrace::ops
