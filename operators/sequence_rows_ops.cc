// sequence_expand, sequence_expand_as, sequence_reverse, sequence_slice, sequence_pad, sequence_unpad: rows of
// sequences that are moved.
#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/declare.h"
#include "operators/index_map.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

// Which row of the input each row of the result is (-1: none), the dims of the result, and its LoD.
struct Rows {
  PoolVector<int64_t> from;
  DDim dims;
  LoD lod;
};

// A level of the LoD of an input, checked. -1: the deepest.
const LoDOffsets& Level(const ExecutionContext& ctx, const char* slot, int64_t level = -1) {
  const LoDTensor& tensor = ctx.Input(slot);
  const LoD& lod = tensor.lod();
  HR_ENFORCE(!lod.empty(), InvalidArgument, "input ", slot, ": expected a LoD of one level or more, got none (dims ",
             ToString(tensor.dims()), ")");
  HR_ENFORCE(!tensor.dims().empty(), InvalidArgument, "input ", slot, ": expected rows, got a scalar with a LoD");
  CheckLoD(lod, tensor.dims()[0]);
  const auto depth = static_cast<int64_t>(lod.size());
  HR_ENFORCE(-1 <= level && level < depth, InvalidArgument, "attribute ref_level: expected a level of input ", slot,
             ", which has ", depth, ", or -1, got ", level);
  return lod[static_cast<size_t>(level < 0 ? depth - 1 : level)];
}

void Append(PoolVector<int64_t>* rows, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    rows->push_back(row);
  }
}

// The dims of `x` with another number of rows.
DDim WithRows(DDim x, int64_t rows) {
  x[0] = rows;
  return x;
}

Rows ResultOf(const ExecutionContext& ctx, const char* slot, PoolVector<int64_t> from, LoD lod) {
  const auto count = static_cast<int64_t>(from.size());
  return {std::move(from), WithRows(ctx.Input(slot).dims(), count), std::move(lod)};
}

// The lengths that an int64 input [n, 1] or [n] holds, one for each of `n` sequences.
const int64_t* PerSequence(const ExecutionContext& ctx, const char* slot, int64_t n) {
  const LoDTensor& tensor = ctx.Input(slot);
  HR_ENFORCE(tensor.numel() == n, InvalidArgument, "input ", slot, ": expected ", n,
             " elements, one for each sequence, got dims ", ToString(tensor.dims()));
  return tensor.data<int64_t>();
}

// Each operator: its slots, the rank that X must have, and its rows.

struct SequenceExpand {
  static constexpr const char* kOut = "Out";
  static Rows Of(const ExecutionContext& ctx) {
    const LoDTensor& x = ctx.Input("X");
    const LoDOffsets& times = Level(ctx, "Y", ctx.Attr<int32_t>("ref_level"));
    HR_ENFORCE(x.lod().size() <= 1, InvalidArgument, "input X: expected a LoD of at most one level, got ",
               x.lod().size());
    const LoDOffsets* sequences = x.lod().empty() ? nullptr : &Level(ctx, "X");
    const size_t n = sequences == nullptr ? static_cast<size_t>(x.dims()[0]) : sequences->size() - 1;
    HR_ENFORCE(n == times.size() - 1, InvalidArgument, "input X: expected ", times.size() - 1,
               " sequences, as many as the level of Y has, got ", n);
    Rows rows;
    LoDOffsets offsets = {0};
    for (size_t s = 0; s < n; ++s) {
      const auto begin = static_cast<int64_t>(sequences == nullptr ? s : (*sequences)[s]);
      const auto end = static_cast<int64_t>(sequences == nullptr ? s + 1 : (*sequences)[s + 1]);
      for (size_t t = times[s]; t < times[s + 1]; ++t) {
        Append(&rows.from, begin, end);
        offsets.push_back(rows.from.size());
      }
    }
    const bool has_lod = sequences != nullptr && offsets.size() > 1;
    return ResultOf(ctx, "X", std::move(rows.from), has_lod ? LoD{std::move(offsets)} : LoD{});
  }
  static int32_t LoDLevel(const InferShapeContext& ctx) { return ctx.InputLoDLevel("X"); }
};

struct ExpandAs {
  static constexpr const char* kOut = "Out";
  static Rows Of(const ExecutionContext& ctx) {
    const LoDOffsets& lengths = Level(ctx, "Y");
    const LoDTensor& x = ctx.Input("X");
    HR_ENFORCE(x.dims()[0] == static_cast<int64_t>(lengths.size()) - 1, InvalidArgument, "input X: expected ",
               lengths.size() - 1, " rows, one for each sequence of Y, got dims ", ToString(x.dims()));
    PoolVector<int64_t> from;
    for (size_t s = 0; s + 1 < lengths.size(); ++s) {
      from.insert(from.end(), lengths[s + 1] - lengths[s], static_cast<int64_t>(s));
    }
    return ResultOf(ctx, "X", std::move(from), {lengths});
  }
  static int32_t LoDLevel(const InferShapeContext&) { return 1; }
};

struct SequenceReverse {
  static constexpr const char* kOut = "Y";
  static Rows Of(const ExecutionContext& ctx) {
    const LoDOffsets& offsets = Level(ctx, "X");
    PoolVector<int64_t> from;
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      Append(&from, static_cast<int64_t>(offsets[s]), static_cast<int64_t>(offsets[s + 1]));
      std::reverse(from.begin() + static_cast<std::ptrdiff_t>(offsets[s]), from.end());
    }
    return ResultOf(ctx, "X", std::move(from), ctx.Input("X").lod());
  }
  static int32_t LoDLevel(const InferShapeContext& ctx) { return ctx.InputLoDLevel("X"); }
};

struct SequenceSlice {
  static constexpr const char* kOut = "Out";
  static Rows Of(const ExecutionContext& ctx) {
    const LoDOffsets& offsets = Level(ctx, "X");
    const auto n = static_cast<int64_t>(offsets.size()) - 1;
    const int64_t* begin = PerSequence(ctx, "Offset", n);
    const int64_t* length = PerSequence(ctx, "Length", n);
    PoolVector<int64_t> from;
    LoDOffsets lod = {0};
    for (int64_t s = 0; s < n; ++s) {
      const auto first = static_cast<int64_t>(offsets[static_cast<size_t>(s)]);
      const auto rows = static_cast<int64_t>(offsets[static_cast<size_t>(s) + 1]) - first;
      HR_ENFORCE(begin[s] >= 0 && length[s] >= 0 && begin[s] <= rows && length[s] <= rows - begin[s], OutOfRange,
                 "inputs Offset and Length: expected a part of sequence ", s, " of ", rows, " rows, got ", length[s],
                 " rows from ", begin[s], " on");
      Append(&from, first + begin[s], first + begin[s] + length[s]);
      lod.push_back(from.size());
    }
    return ResultOf(ctx, "X", std::move(from), {std::move(lod)});
  }
  static int32_t LoDLevel(const InferShapeContext&) { return 1; }
};

struct SequencePad {
  static constexpr const char* kOut = "Out";
  static Rows Of(const ExecutionContext& ctx) {
    const LoDOffsets& offsets = Level(ctx, "X");
    const LoDTensor& x = ctx.Input("X");
    int64_t longest = 0;
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      longest = std::max(longest, static_cast<int64_t>(offsets[s + 1] - offsets[s]));
    }
    const int64_t wanted = ctx.Attr<int32_t>("padded_length");
    HR_ENFORCE(wanted == -1 || wanted >= longest, InvalidArgument, "attribute padded_length: expected -1 or at least ",
               longest, ", the length of the longest sequence, got ", wanted);
    const int64_t length = wanted == -1 ? longest : wanted;
    Rows rows;
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      Append(&rows.from, static_cast<int64_t>(offsets[s]), static_cast<int64_t>(offsets[s + 1]));
      rows.from.resize((s + 1) * static_cast<size_t>(length), -1);
    }
    rows.dims = x.dims();
    rows.dims[0] = length;
    rows.dims.insert(rows.dims.begin(), static_cast<int64_t>(offsets.size()) - 1);
    return rows;
  }
  static int32_t LoDLevel(const InferShapeContext&) { return 0; }
};

// The dims of padded sequences without the first; rows of single elements have a width of 1, as in Fluid.
DDim UnpaddedDims(const DDim& x) {
  DDim dims(x.begin() + 1, x.end());
  if (dims.size() == 1) {
    dims.push_back(1);
  }
  return dims;
}

struct Unpad {
  static constexpr const char* kOut = "Out";
  static Rows Of(const ExecutionContext& ctx) {
    const DDim& x = ctx.Input("X").dims();
    const int64_t* length = PerSequence(ctx, "Length", x[0]);
    Rows rows;
    LoDOffsets lod = {0};
    for (int64_t s = 0; s < x[0]; ++s) {
      HR_ENFORCE(0 <= length[s] && length[s] <= x[1], OutOfRange, "input Length: sequence ", s, " has length ",
                 length[s], ", expected one in [0, ", x[1], "]");
      Append(&rows.from, s * x[1], s * x[1] + length[s]);
      lod.push_back(rows.from.size());
    }
    rows.dims = UnpaddedDims(x);
    rows.dims[0] = static_cast<int64_t>(rows.from.size());
    rows.lod = {std::move(lod)};
    return rows;
  }
  static int32_t LoDLevel(const InferShapeContext&) { return 1; }
};

// The input as a list of rows of the width that those of the result have.
DDim RowDims(const DDim& x, bool is_padded) {
  DDim dims = is_padded ? UnpaddedDims(x) : x;
  dims[0] = is_padded ? MultiplyExtents(x[0], x[1]) : x[0];
  return dims;
}

template <typename Op>
IndexMap MapOf(const ExecutionContext& ctx, const Rows& rows) {
  return IndexMap::OfRows(RowDims(ctx.Input("X").dims(), std::is_same_v<Op, Unpad>), rows.from);
}

template <typename T, typename Op>
void RowsKernel(const ExecutionContext& ctx) {
  const Rows rows = Op::Of(ctx);
  const LoDTensor& x = ctx.Input("X");
  LoDTensor* out = ctx.Output(Op::kOut);
  out->Resize(rows.dims);
  const T* fill = nullptr;
  const T* fill_row = nullptr;
  if constexpr (std::is_same_v<Op, SequencePad>) {
    const LoDTensor& pad = ctx.Input("PadValue");
    const DDim row(x.dims().begin() + 1, x.dims().end());
    HR_ENFORCE(pad.numel() == 1 || pad.dims() == row, InvalidArgument,
               "input PadValue: expected a single element or dims ", ToString(row), ", those of a row of X, got dims ",
               ToString(pad.dims()));
    (pad.numel() == 1 ? fill : fill_row) = pad.data<T>();
    const LoDOffsets& offsets = Level(ctx, "X");
    LoDTensor* length = ctx.Output("Length");
    int64_t* to = length->Resize({static_cast<int64_t>(offsets.size()) - 1}).template mutable_data<int64_t>();
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      to[s] = static_cast<int64_t>(offsets[s + 1] - offsets[s]);
    }
  }
  MapOf<Op>(ctx, rows).Move(x, out, fill);
  if (fill_row != nullptr) {
    const int64_t width = Numel(x.dims(), 1, x.dims().size());
    T* to = out->mutable_data<T>();
    for (size_t r = 0; r < rows.from.size(); ++r) {
      if (rows.from[r] < 0) {
        std::copy_n(fill_row, width, to + static_cast<int64_t>(r) * width);
      }
    }
  }
  out->set_lod(rows.lod);
}

template <typename T, typename Op>
void RowsGradKernel(const ExecutionContext& ctx) {
  const Rows rows = Op::Of(ctx);
  const LoDTensor& out_grad = ctx.Input(Grad(Op::kOut));
  HR_ENFORCE(out_grad.dims() == rows.dims, InvalidArgument, "input ", Grad(Op::kOut), ": expected dims ",
             ToString(rows.dims), ", got ", ToString(out_grad.dims()));
  MapOf<Op>(ctx, rows).template AddBack<T>(out_grad, ctx.Output("X@GRAD"));
}

// The dims of the result as far as the program knows them.
template <typename Op>
DDim DeclaredDims(const InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  DDim dims = std::is_same_v<Op, Unpad> ? UnpaddedDims(x) : x;
  dims[0] = -1;
  if constexpr (std::is_same_v<Op, SequencePad>) {
    const int32_t length = ctx.Attr<int32_t>("padded_length");
    dims.insert(dims.begin() + 1, length);
  }
  return dims;
}

template <typename Op>
void CheckInputs(const InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 2);
  if (ctx.HasInput("PadValue")) {
    EnforceSameType(ctx, "PadValue", "X");
  }
  for (const char* slot : {"Offset", "Length"}) {
    if (ctx.HasInput(slot)) {
      EnforceType(ctx, slot, DataType::kInt64);
    }
  }
}

template <typename Op, typename Declare>
bool Register(const std::string& type, const std::string& comment, const std::string& x, const std::string& out,
              Declare declare, const std::vector<std::pair<std::string, std::string>>& others) {
  GradientUses uses{.inputs = {"X"}, .outputs = {}, .no_gradient = {}};
  OpRegistrar forward(type);
  OpRegistrar backward(type + "_grad");
  (void)More(forward).Comment(comment).Input("X", x);
  (void)More(backward)
      .Comment("Gradient of " + type + ".")
      .Input("X", "as in the operator; only its dims and its LoD are used");
  for (const auto& [slot, text] : others) {
    uses.inputs.push_back(slot);
    uses.no_gradient.push_back(slot);
    (void)More(forward).Input(slot, text);
    (void)More(backward).Input(slot, "as in the operator");
  }
  (void)More(forward).Output(Op::kOut, out);
  if (std::is_same_v<Op, SequencePad>) {
    (void)More(forward).Output("Length", "int64 [number of sequences]: their lengths");
    (void)More(backward).Input("Length@GRAD", "not used", kDispensable);
  }
  More(forward)
      .With(declare)
      .KernelTypeFrom("X")
      .InferShape([](InferShapeContext& ctx) {
        CheckInputs<Op>(ctx);
        if (ctx.IsRuntime()) {
          return;  // the kernel knows how many rows there are
        }
        SetOutput(ctx, Op::kOut, DeclaredDims<Op>(ctx), ctx.InputType("X"));
        ctx.SetOutputLoDLevel(Op::kOut, Op::LoDLevel(ctx));
        if (std::is_same_v<Op, SequencePad>) {
          SetOutput(ctx, "Length", {-1}, DataType::kInt64);
        }
      })
      .template Kernel<float>(RowsKernel<float, Op>)
      .template Kernel<double>(RowsKernel<double, Op>)
      .template Kernel<int32_t>(RowsKernel<int32_t, Op>)
      .template Kernel<int64_t>(RowsKernel<int64_t, Op>)
      .Gradient(DefaultGradient(uses))
      .Register();
  More(backward)
      .Input(Grad(Op::kOut), std::string("gradient of ") + Op::kOut)
      .Output("X@GRAD", "dims of X")
      .With(declare)
      .KernelTypeFrom("X")
      .InferShape([](InferShapeContext& ctx) {
        CheckInputs<Op>(ctx);
        EnforceSameType(ctx, Grad(Op::kOut), "X");
        InferGradients(ctx, {"X"});
        ctx.ShareLoD("X", "X@GRAD");
      })
      .template Kernel<float>(RowsGradKernel<float, Op>)
      .template Kernel<double>(RowsGradKernel<double, Op>)
      .Register();
  return true;
}

OpRegistrar&& NoAttrs(OpRegistrar&& op) { return std::move(op); }

[[maybe_unused]] const bool kSequenceRowsOps =
    Register<SequenceExpand>(
        "sequence_expand", "Each sequence of X as often as the sequence of Y at its place is long.",
        "[rows, ...], with a LoD of one level; without, each row is a sequence", "[..., ...], with a LoD if X has one",
        [](OpRegistrar&& op) -> OpRegistrar&& {
          return std::move(op).Attr<int32_t>("ref_level", "which level of the LoD of Y counts; -1: the deepest", -1);
        },
        {{"Y", "any tensor with a LoD; only that is used"}}) &&
    Register<ExpandAs>("sequence_expand_as", "Each row of X as often as the sequence of Y at its place is long.",
                       "[number of sequences of Y, ...]", "[rows of Y, ...], with the deepest level of Y's LoD",
                       NoAttrs, {{"Y", "any tensor with a LoD; only that is used"}}) &&
    Register<SequenceReverse>("sequence_reverse", "The rows of each sequence in the reverse order.",
                              "[rows, ...] with LoD", "dims, dtype and LoD of X", NoAttrs, {}) &&
    Register<SequenceSlice>("sequence_slice", "A part of each sequence.", "[rows, ...] with LoD",
                            "[..., ...], with LoD", NoAttrs,
                            {{"Offset", "int64 [number of sequences, 1]: where each part begins"},
                             {"Length", "int64 [number of sequences, 1]: how long it is"}}) &&
    Register<SequencePad>("sequence_pad", "Sequences of one length, filled up with PadValue.", "[rows, ...] with LoD",
                          "[number of sequences, length, ...]",
                          [](OpRegistrar&& op) -> OpRegistrar&& {
                            return std::move(op).Attr<int32_t>(
                                "padded_length", "the length; -1: that of the longest sequence", -1,
                                [](const int32_t& length) {
                                  HR_ENFORCE(length == -1 || length > 0, InvalidArgument,
                                             "attribute padded_length: expected -1 or a positive number, "
                                             "got ",
                                             length);
                                });
                          },
                          {{"PadValue", "dtype of X: a single element, or a row of X"}}) &&
    Register<Unpad>("sequence_unpad", "The rows of padded sequences without the padding.",
                    "[number of sequences, length, ...]", "[rows, ...], with LoD; [rows, 1] if X has rank 2", NoAttrs,
                    {{"Length", "int64 [number of sequences]: their lengths"}});

}  // namespace
}  // namespace headrace::ops
