// slice, crop, reverse, shuffle_channel, expand, pad, pad2d, pad_constant_like: elements that are moved, dimension by
// dimension.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/declare.h"
#include "operators/index_map.h"
#include "operators/kernel_util.h"
#include "operators/layout.h"
#include "operators/op_args.h"

namespace headrace::ops {
namespace {

using Ints = std::vector<int32_t>;

void EnforceSize(const Ints& values, const char* attr, size_t expected, const DDim& x) {
  HR_ENFORCE(values.size() == expected, InvalidArgument, "attribute ", attr, ": expected ", expected,
             " numbers for a tensor of dims ", ToString(x), ", got ", ToString(Attribute(values)));
}

constexpr IntsSlots kSliceStarts = {"starts", "StartsTensor", "StartsTensorList"};
constexpr IntsSlots kSliceEnds = {"ends", "EndsTensor", "EndsTensorList"};
constexpr IntsSlots kCropOffsets = {"offsets", "Offsets", ""};
constexpr IntsSlots kExpandTimes = {"expand_times", "ExpandTimes", "expand_times_tensor"};

void EnforceSize(const IntsArg& values, size_t expected, const DDim& x) {
  HR_ENFORCE(values.size() == expected, InvalidArgument, values.Name(), ": expected ", expected,
             " numbers for a tensor of dims ", ToString(x), ", got ", values.Values());
}

// Each move is made from the arguments of the operator, the dims of what is moved, and those of the other input, if it
// has one. `out` are the dims of the result; -1 where they are not known yet. From(d, i): see IndexMap.

struct Slice {
  static constexpr const char* kMoved = "Input";
  static constexpr const char* kOther = "";
  Slice(const OpArgs& args, const DDim& x, const DDim&) : out(x), begin(x.size(), 0) {
    const auto& axes = args.Attr<Ints>("axes");
    const auto& dropped = args.Attr<Ints>("decrease_axis");
    const auto& flags = args.Attr<Ints>("infer_flags");
    const IntsArg starts = args.Ints(kSliceStarts, axes.size());
    const IntsArg ends = args.Ints(kSliceEnds, axes.size());
    HR_ENFORCE(starts.size() == axes.size() && ends.size() == axes.size(), InvalidArgument,
               "attributes axes, starts and ends: expected as many of each, got ", axes.size(), ", ", starts.size(),
               " and ", ends.size());
    const bool from_inputs = args.FromInputs(kSliceStarts) || args.FromInputs(kSliceEnds);
    HR_ENFORCE(!from_inputs || flags.empty() || flags.size() == axes.size(), InvalidArgument,
               "attribute infer_flags: expected as many numbers as axes, ", axes.size(), ", or none, got ",
               flags.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      const size_t d = FrontAxis(axes[i], x.size(), "axes");
      const bool left_to_kernel = from_inputs && args.InShapeInference() && !flags.empty() && flags[i] == -1;
      if (x[d] < 0 || starts[i] == kUnknown || ends[i] == kUnknown || left_to_kernel) {
        out[d] = -1;
        continue;
      }
      const auto place = [&](int64_t p) { return std::clamp<int64_t>(p < 0 ? p + x[d] : p, 0, x[d]); };
      begin[d] = place(starts[i]);
      // What is to be dropped is the one element at starts: -1 is the last one, although 0 comes before it.
      const bool last = from_inputs && starts[i] == -1 && ends[i] == 0 &&
                        std::find(dropped.begin(), dropped.end(), axes[i]) != dropped.end();
      out[d] = std::max<int64_t>((last ? x[d] : place(ends[i])) - begin[d], 0);
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
  int64_t From(size_t d, int64_t i) const { return begin[d] + i; }
  DDim out;
  DDim begin;
  DDim result;  // out without the dimensions of decrease_axis
};

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
  DDim out;
  DDim x;
};

// The dims of what is padded and how many elements come before those of X.
struct Padding {
  explicit Padding(const DDim& dims) : out(dims), x(dims) {}
  void Add(size_t d, int32_t before, int32_t after) {
    HR_ENFORCE(before >= 0 && after >= 0, InvalidArgument, "attribute paddings: expected numbers of 0 or more, got ",
               before, " and ", after);
    begin.push_back(before);
    out[d] = x[d] < 0 ? -1 : AddExtents(x[d], int64_t{before} + after);
  }
  // The element of X that element `i` along dimension `d` is; -1: none.
  int64_t Inside(size_t d, int64_t i) const { return begin[d] <= i && i < begin[d] + x[d] ? i - begin[d] : -1; }
  DDim out;
  DDim x;
  DDim begin{};
};

struct Pad : Padding {
  static constexpr const char* kMoved = "X";
  static constexpr const char* kOther = "";
  Pad(const OpArgs& args, const DDim& dims, const DDim&) : Padding(dims) {
    const auto& paddings = args.Attr<Ints>("paddings");
    EnforceSize(paddings, "paddings", 2 * x.size(), x);
    for (size_t d = 0; d < x.size(); ++d) {
      Add(d, paddings[2 * d], paddings[2 * d + 1]);
    }
  }
  int64_t From(size_t d, int64_t i) const { return Inside(d, i); }
};

struct Pad2d : Padding {
  static constexpr const char* kMoved = "X";
  static constexpr const char* kOther = "";
  Pad2d(const OpArgs& args, const DDim& dims, const DDim&) : Padding(dims), mode(args.Attr<std::string>("mode")) {
    HR_ENFORCE(x.size() == 4, InvalidArgument, "input X: expected a tensor of rank 4, got dims ", ToString(x));
    const auto& paddings = args.Attr<Ints>("paddings");
    EnforceSize(paddings, "paddings", 4, x);
    const size_t height = HasChannelsLast(args.op()) ? 1 : 2;
    for (size_t d = 0; d < x.size(); ++d) {
      const bool padded = d == height || d == height + 1;
      const int32_t before = padded ? paddings[2 * (d - height)] : 0;
      const int32_t after = padded ? paddings[2 * (d - height) + 1] : 0;
      Add(d, before, after);
      HR_ENFORCE(mode != "reflect" || x[d] < 0 || !padded || std::max(before, after) < x[d], InvalidArgument,
                 "attribute paddings: expected less than the extent of dimension ", d, " of X of dims ", ToString(x),
                 ", which is reflected, got ", ToString(Attribute(paddings)));
      HR_ENFORCE(mode != "edge" || x[d] != 0 || !padded || before + after == 0, InvalidArgument,
                 "input X: expected an edge to repeat, got dims ", ToString(x));
    }
  }
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
  std::string mode;
};

struct PadLike {
  static constexpr const char* kMoved = "Y";
  static constexpr const char* kOther = "X";
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

template <typename Move>
Move MoveOf(const InferShapeContext& ctx) {
  return Move(ctx, ctx.InputDim(Move::kMoved), ctx.HasInput(Move::kOther) ? ctx.InputDim(Move::kOther) : DDim{});
}
template <typename Move>
Move MoveOf(const ExecutionContext& ctx) {
  const LoDTensor* other = ctx.InputOrNull(Move::kOther);
  return Move(ctx, ctx.Input(Move::kMoved).dims(), other == nullptr ? DDim{} : other->dims());
}

// The dims of Out. Those that a move has for the elements have as many dimensions as the input.
template <typename Move>
const DDim& ResultOf(const Move& move) {
  if constexpr (requires { move.result; }) {
    return move.result;
  } else {
    return move.out;
  }
}

// Whether the rows stay, and their sequences with them.
template <typename Move>
bool KeepsRows([[maybe_unused]] const OpArgs& args, [[maybe_unused]] size_t rank) {
  if constexpr (std::is_same_v<Move, Slice>) {
    const auto& axes = args.Attr<Ints>("axes");
    return rank > 0 &&
           std::all_of(axes.begin(), axes.end(), [rank](int32_t axis) { return FrontAxis(axis, rank, "axes") > 0; });
  }
  return false;
}

// `x`: the dims of what is moved.
template <typename Move>
IndexMap MapOf(const Move& move, const DDim& x) {
  return IndexMap(x, move.out, [&move](size_t d, int64_t i) { return move.From(d, i); });
}

// The attribute pad_value as an element.
template <typename T>
T PadValueOf(const ExecutionContext& ctx) {
  const double value = ctx.Attr<double>("pad_value");
  if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else if constexpr (std::is_integral_v<T>) {
    // The bounds are powers of two, hence exact.
    const double high = 2.0 * static_cast<double>(std::numeric_limits<T>::max() / 2 + 1);
    HR_ENFORCE(value >= static_cast<double>(std::numeric_limits<T>::min()) && value < high, InvalidArgument,
               "attribute pad_value: expected a number that fits ", DataTypeName(DataTypeOf<T>::value), ", got ",
               value);
  }
  return static_cast<T>(value);
}

template <typename T, typename Move>
void MoveKernel(const ExecutionContext& ctx) {
  T fill{};
  if (ctx.op().attrs.contains("pad_value")) {
    fill = PadValueOf<T>(ctx);
  }
  const LoDTensor& x = ctx.Input(Move::kMoved);
  const Move move = MoveOf<Move>(ctx);
  LoDTensor* out = ctx.Output("Out");
  out->Resize(ResultOf(move));  // as shape inference did, unless inputs say which dims they are
  MapOf(move, x.dims()).Move(x, out, &fill);
}

template <typename T, typename Move>
void MoveGradKernel(const ExecutionContext& ctx) {
  const LoDTensor& out_grad = ctx.Input("Out@GRAD");
  const Move move = MoveOf<Move>(ctx);
  HR_ENFORCE(out_grad.dims() == ResultOf(move), InvalidArgument, "input Out@GRAD: expected dims ",
             ToString(ResultOf(move)), ", got ", ToString(out_grad.dims()));
  MapOf(move, ctx.Input(Move::kMoved).dims()).template AddBack<T>(out_grad, ctx.Output(Grad(Move::kMoved)));
}

OpRegistrar&& AllIntsInputs(OpRegistrar&& op, std::initializer_list<IntsSlots> ints) {
  for (const IntsSlots& slots : ints) {
    (void)IntsInputs(More(op), slots);
  }
  return More(op);
}

template <typename Move>
OpRegistrar&& OtherInput(OpRegistrar&& op, const char* comment) {
  if (*Move::kOther == 0) {
    return std::move(op);
  }
  const bool given = std::string_view(Move::kMoved) == "Y";  // or else attributes take its place
  return std::move(op).Input(Move::kOther, comment, given ? kPlain : kDispensable);
}

// `ints`: what inputs may say in place of attributes.
template <typename Move, typename Attrs>
bool Register(const std::string& type, const std::string& comment, const std::string& out, Attrs attrs,
              const char* other = "", std::initializer_list<IntsSlots> ints = {}) {
  GradientUses uses = WithInts({.inputs = {Move::kMoved}, .outputs = {}, .no_gradient = {}}, ints, true);
  if (*Move::kOther != 0) {
    uses.inputs.emplace_back(Move::kOther);
    uses.no_gradient.emplace_back(Move::kOther);
  }
  OpRegistrar(type)
      .Comment(comment)
      .Input(Move::kMoved, "any shape")
      .With(OtherInput<Move>, other)
      .With(AllIntsInputs, ints)
      .Output("Out", out)
      .With(attrs)
      .KernelTypeFrom(Move::kMoved)
      .InferShape([](InferShapeContext& ctx) {
        SetKnownOutput(ctx, "Out", ResultOf(MoveOf<Move>(ctx)), ctx.InputType(Move::kMoved));
        if (KeepsRows<Move>(ctx, ctx.InputDim(Move::kMoved).size())) {
          ctx.ShareLoD(Move::kMoved, "Out");
        }
      })
      .template Kernel<bool>(MoveKernel<bool, Move>)
      .template Kernel<uint8_t>(MoveKernel<uint8_t, Move>)
      .template Kernel<int32_t>(MoveKernel<int32_t, Move>)
      .template Kernel<int64_t>(MoveKernel<int64_t, Move>)
      .template Kernel<float>(MoveKernel<float, Move>)
      .template Kernel<double>(MoveKernel<double, Move>)
      .Gradient(DefaultGradient(uses))
      .Register();
  OpRegistrar(type + "_grad")
      .Comment("Gradient of " + type + ".")
      .Input(Move::kMoved, "as in the operator; only its dims are used")
      .With(OtherInput<Move>, "as in the operator; only its dims are used")
      .With(AllIntsInputs, ints)
      .Input("Out@GRAD", "gradient of Out")
      .Output(Grad(Move::kMoved), std::string("dims of ") + Move::kMoved)
      .With(attrs)
      .KernelTypeFrom(Move::kMoved)
      .InferShape([](InferShapeContext& ctx) {
        EnforceDims(ctx, "Out@GRAD", ResultOf(MoveOf<Move>(ctx)));
        EnforceSameType(ctx, "Out@GRAD", Move::kMoved);
        InferGradients(ctx, {Move::kMoved});
      })
      .template Kernel<float>(MoveGradKernel<float, Move>)
      .template Kernel<double>(MoveGradKernel<double, Move>)
      .Register();
  return true;
}

OpRegistrar&& PadValue(OpRegistrar&& op) {
  return std::move(op).Attr<double>("pad_value", "what the new elements are", 0.0);
}

[[maybe_unused]] const bool kSlicePadOps =
    Register<Slice>("slice", "The part of a tensor between starts and ends.", "dims of Input, less what is cut off",
                    [](OpRegistrar&& op) -> OpRegistrar&& {
                      return std::move(op)
                          .Attr<Ints>("axes", "the dimensions that are cut; negative ones count from the back")
                          .Attr<Ints>("starts", "where each begins; negative: from the end; beyond the end: there", {})
                          .Attr<Ints>("ends", "where each ends, exclusive; likewise", {})
                          .Attr<Ints>("infer_flags",
                                      "for each of axes: -1 where inputs say what is cut, so that the extent is not "
                                      "known before the run; empty: nowhere",
                                      {})
                          .Attr<Ints>("decrease_axis",
                                      "dimensions that are 1 then, and are left out; without any other, Out is [1]",
                                      {});
                    },
                    "", {kSliceStarts, kSliceEnds}) &&
    Register<Crop>("crop", "The part of X from offsets on.", "dims shape, or those of Y",
                   [](OpRegistrar&& op) -> OpRegistrar&& {
                     return std::move(op)
                         .Attr<Ints>("offsets", "where each dimension begins; empty: 0", {})
                         .Attr<Ints>("shape", "dims of Out, unless Y is given", {});
                   },
                   "any dtype: its dims are those of Out", {kCropOffsets}) &&
    Register<Reverse>("reverse", "The elements in the reverse order.", "dims of X",
                      [](OpRegistrar&& op) -> OpRegistrar&& {
                        return std::move(op).Attr<Ints>(
                            "axis", "the dimensions that are reversed; negative ones count from the back");
                      }) &&
    Register<ShuffleChannel>("shuffle_channel",
                             "The channels of images, the first of each group before the second of each (X. Zhang et "
                             "al., ShuffleNet, 2017).",
                             "dims of X, [N, C, H, W]",
                             [](OpRegistrar&& op) -> OpRegistrar&& {
                               return std::move(op).Attr<int32_t>(
                                   "group", "the number of groups, a divisor of C", 1, [](const int32_t& group) {
                                     HR_ENFORCE(group > 0, InvalidArgument,
                                                "attribute group: expected a positive number, got ", group);
                                   });
                             }) &&
    Register<Expand>("expand", "X, repeated.", "dims of X times expand_times",
                     [](OpRegistrar&& op) -> OpRegistrar&& {
                       return std::move(op).Attr<Ints>("expand_times", "how often, for each dimension", {});
                     },
                     "", {kExpandTimes}) &&
    Register<Pad>("pad", "X with more elements around it.", "dims of X plus paddings",
                  [](OpRegistrar&& op) -> OpRegistrar&& {
                    return PadValue(std::move(op))
                        .Attr<Ints>("paddings", "for each dimension, how many before and how many after");
                  }) &&
    Register<Pad2d>(
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
        }) &&
    Register<PadLike>("pad_constant_like", "Y with more elements after it.", "dims of X", PadValue,
                      "any shape: its dims are those of Out");

}  // namespace
}  // namespace headrace::ops
