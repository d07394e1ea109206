// sequence_pad: sequences of one length, filled up with padding.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/tensor_size.h"
#include "operators/sequence/sequence_rows.h"

namespace headrace::ops {
namespace {

struct SequencePad : SequenceRowsOp {
  static constexpr const char* kOut = "Out";
  static SequenceRows Of(const ExecutionContext& ctx) {
    const LoDOffsets& offsets = CheckedLevel(ctx, "X");
    const LoDTensor& x = ctx.Input("X");
    int64_t longest = 0;
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      longest = std::max(longest, static_cast<int64_t>(offsets[s + 1] - offsets[s]));
    }
    const int64_t wanted = ctx.Attr<int32_t>("padded_length");
    HR_ENFORCE(wanted == -1 || wanted >= longest, InvalidArgument, "attribute padded_length: expected -1 or at least ",
               longest, ", the length of the longest sequence, got ", wanted);
    const int64_t length = wanted == -1 ? longest : wanted;
    SequenceRows rows;
    for (size_t s = 0; s + 1 < offsets.size(); ++s) {
      AppendRange(&rows.from, static_cast<int64_t>(offsets[s]), static_cast<int64_t>(offsets[s + 1]));
      rows.from.resize((s + 1) * static_cast<size_t>(length), -1);
    }
    rows.dims = x.dims();
    rows.dims[0] = length;
    rows.dims.insert(rows.dims.begin(), static_cast<int64_t>(offsets.size()) - 1);
    return rows;
  }
  static DDim DeclaredDims(const InferShapeContext& ctx) {
    DDim dims = SequenceRowsOp::DeclaredDims(ctx);
    const int32_t length = ctx.Attr<int32_t>("padded_length");
    dims.insert(dims.begin() + 1, length);
    return dims;
  }
  static int32_t LoDLevel(const InferShapeContext&) { return 0; }
  static void Check(const InferShapeContext& ctx) {
    EnforceSameType(ctx, "PadValue", "X");
    const DDim x = ctx.InputDim("X");
    const DDim pad = ctx.InputDim("PadValue");
    const DDim row(x.begin() + 1, x.end());
    HR_ENFORCE(Fits(Numel(pad), 1) || std::equal(pad.begin(), pad.end(), row.begin(), row.end(), Fits), InvalidArgument,
               "input PadValue: expected a single element or dims ", ToString(row), ", those of a row of X, got dims ",
               ToString(pad));
  }
};

template <typename T>
void SequencePadKernel(const ExecutionContext& ctx) {
  const SequenceRows rows = SequencePad::Of(ctx);
  const LoDTensor& x = ctx.Input("X");
  LoDTensor* out = ctx.Output(SequencePad::kOut);
  out->Resize(rows.dims);
  const T* fill = nullptr;
  const T* fill_row = nullptr;
  const LoDTensor& pad = ctx.Input("PadValue");
  (pad.numel() == 1 ? fill : fill_row) = pad.data<T>();
  const LoDOffsets& offsets = CheckedLevel(ctx, "X");
  LoDTensor* length = ctx.Output("Length");
  int64_t* lengths = length->Resize({static_cast<int64_t>(offsets.size()) - 1}).mutable_data<int64_t>();
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    lengths[s] = static_cast<int64_t>(offsets[s + 1] - offsets[s]);
  }
  RowMap<SequencePad>(ctx, rows).Move(x, out, fill);
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

OpRegistrar&& PaddedLengthAttr(OpRegistrar&& op) {
  return std::move(op).Attr<int32_t>(
      "padded_length", "the length; -1: that of the longest sequence", -1, [](const int32_t& length) {
        HR_ENFORCE(length == -1 || length > 0, InvalidArgument,
                   "attribute padded_length: expected -1 or a positive number, got ", length);
      });
}

}  // namespace

HEADRACE_REGISTER_OP(sequence_pad)
    .Comment("Sequences of one length, filled up with PadValue.")
    .Input("X", "[rows, ...] with LoD")
    .Input("PadValue", "dtype of X: a single element, or a row of X")
    .Output("Out", "[number of sequences, length, ...]")
    .Output("Length", "int64 [number of sequences]: their lengths")
    .With(PaddedLengthAttr)
    .KernelTypeFrom("X")
    .InferShape([](InferShapeContext& ctx) {
      InferSequenceRows<SequencePad>(ctx);
      if (!ctx.IsRuntime()) {
        SetOutput(ctx, "Length", {-1}, DataType::kInt64);
      }
    })
    .Kernel<float>(SequencePadKernel<float>)
    .Kernel<double>(SequencePadKernel<double>)
    .Kernel<int32_t>(SequencePadKernel<int32_t>)
    .Kernel<int64_t>(SequencePadKernel<int64_t>)
    .Gradient(DefaultGradient({.inputs = {"X", "PadValue"}, .outputs = {}, .no_gradient = {"PadValue"}}));

HEADRACE_REGISTER_OP(sequence_pad_grad)
    .Comment("Gradient of sequence_pad.")
    .Input("X", "as in the operator; only its dims and its LoD are used", kShapeOnly)
    .Input("PadValue", "as in the operator")
    .Input("Length@GRAD", "not used", kDispensable)
    .Input("Out@GRAD", "gradient of Out")
    .Output("X@GRAD", "dims of X")
    .With(PaddedLengthAttr)
    .KernelTypeFrom("X")
    .InferShape(InferSequenceRowsGrad<SequencePad>)
    .Kernel<float>(SequenceRowsGradKernel<float, SequencePad>)
    .Kernel<double>(SequenceRowsGradKernel<double, SequencePad>);

}  // namespace headrace::ops
