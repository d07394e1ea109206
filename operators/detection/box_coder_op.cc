// box_coder: boxes as seen from prior boxes, and back.
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

bool EncodesBoxes(const AttributeIndex& op) { return op.Attr<std::string>("code_type") == "encode_center_size"; }

// The variances of each prior box: all the same, or rows of a matrix.
template <typename T>
class PriorVariances {
 public:
  explicit PriorVariances(const ExecutionContext& ctx) {
    if (const LoDTensor* tensor = ctx.InputOrNull("PriorBoxVar")) {
      rows_ = tensor->data<T>();
      stride_ = tensor->dims().size() == 2 ? kBoxSize : 0;
      return;
    }
    const auto& variance = ctx.Attr<std::vector<float>>("variance");
    for (size_t i = 0; i < variance.size(); ++i) {
      same_[i] = static_cast<T>(variance[i]);
    }
  }
  const T* operator[](int64_t prior) const { return rows_ == nullptr ? same_.data() : rows_ + prior * stride_; }

 private:
  std::array<T, kBoxSize> same_ = {1, 1, 1, 1};
  const T* rows_ = nullptr;
  int64_t stride_ = 0;
};

template <typename T>
void BoxCoderKernel(const ExecutionContext& ctx) {
  const T* priors = ctx.Input("PriorBox").data<T>();
  const T* targets = ctx.Input("TargetBox").data<T>();
  const PriorVariances<T> variances(ctx);
  LoDTensor* out_tensor = ctx.Output("OutputBox");
  T* out = out_tensor->mutable_data<T>();
  const T pixel = PixelOf<T>(ctx.Attr<bool>("box_normalized"));
  const bool encodes = EncodesBoxes(ctx.attrs());
  const bool along_rows = !encodes && ctx.Attr<int32_t>("axis") == 1;
  const int64_t cols = out_tensor->dims()[1];
  ParallelFor(out_tensor->numel() == 0 ? 0 : out_tensor->dims()[0], RowsPerBlock(64 * cols),
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin * cols; i < end * cols; ++i) {
                  const int64_t p = along_rows ? i / cols : i % cols;
                  const CenteredBox<T> prior(priors + p * kBoxSize, pixel);
                  if (!encodes) {
                    DecodeBox(targets + i * kBoxSize, prior, variances[p], pixel, std::numeric_limits<T>::infinity(),
                              out + i * kBoxSize);
                    continue;
                  }
                  CenteredBox<T> target(targets + i / cols * kBoxSize, pixel);
                  target.x -= pixel / 2;  // Fluid's: between the corners, also of pixels
                  target.y -= pixel / 2;
                  EncodeBox(target, prior, variances[p], out + i * kBoxSize);
                }
              });
}

void InferBoxCoder(InferShapeContext& ctx) {
  EnforceDims(ctx, "PriorBox", {-1, kBoxSize});
  const int64_t priors = ctx.InputDim("PriorBox")[0];
  const auto& variance = ctx.Attr<std::vector<float>>("variance");
  HR_ENFORCE(variance.empty() || variance.size() == kBoxSize, InvalidArgument,
             "attribute variance: expected 4 numbers or none, got ", variance.size());
  for (const float value : variance) {
    HR_ENFORCE(value > 0, InvalidArgument, "attribute variance: expected positive numbers, got ", value);
  }
  if (ctx.HasInput("PriorBoxVar")) {
    HR_ENFORCE(variance.empty(), InvalidArgument, "input PriorBoxVar and attribute variance: expected one of them");
    EnforceDims(ctx, "PriorBoxVar", ctx.InputDim("PriorBoxVar").size() == 1 ? DDim{kBoxSize} : DDim{priors, kBoxSize});
    EnforceSameType(ctx, "PriorBoxVar", "PriorBox");
  }
  EnforceSameType(ctx, "TargetBox", "PriorBox");
  if (EncodesBoxes(ctx.attrs())) {
    EnforceDims(ctx, "TargetBox", {-1, kBoxSize});
    SetOutput(ctx, "OutputBox", {ctx.InputDim("TargetBox")[0], priors, kBoxSize}, ctx.InputType("PriorBox"));
  } else {
    EnforceDims(ctx, "TargetBox",
                ctx.Attr<int32_t>("axis") == 0 ? DDim{-1, priors, kBoxSize} : DDim{priors, -1, kBoxSize});
    DDim dims = ctx.InputDim("TargetBox");
    int64_t& along = dims[ctx.Attr<int32_t>("axis") == 0 ? 1 : 0];
    along = along < 0 ? priors : along;
    dims[2] = kBoxSize;
    SetOutput(ctx, "OutputBox", dims, ctx.InputType("PriorBox"));
  }
  // The rows of the result are those of whichever makes its first dimension.
  const bool by_prior = !EncodesBoxes(ctx.attrs()) && ctx.Attr<int32_t>("axis") == 1;
  ctx.ShareLoD(by_prior ? "PriorBox" : "TargetBox", "OutputBox");
}

}  // namespace

HEADRACE_REGISTER_OP(box_coder)
    .Comment(
        "Encodes each target box by each prior box: the distance of the centres in extents of the prior box, and the "
        "logarithms of the ratios of the extents, all over variances. Or decodes such boxes.")
    .Input("PriorBox", "[M, 4]: xmin, ymin, xmax, ymax of each box")
    .Input("PriorBoxVar", "[M, 4] or [4], dtype of PriorBox: variances", kDispensable)
    .Input("TargetBox", "dtype of PriorBox; to encode [N, 4], to decode [N, M, 4], or [M, N, 4] if axis is 1")
    .Output("OutputBox", "[N, M, 4] with the LoD of TargetBox, or [M, N, 4] with that of PriorBox if axis is 1")
    .Attr<std::string>("code_type", "'encode_center_size' or 'decode_center_size'", "encode_center_size",
                       [](const std::string& type) {
                         HR_ENFORCE(type == "encode_center_size" || type == "decode_center_size", InvalidArgument,
                                    "attribute code_type: expected 'encode_center_size' or 'decode_center_size', got '",
                                    type, "'");
                       })
    .Attr<bool>("box_normalized", "false: boxes are made of pixels, of which the last one counts", true)
    .Attr<int32_t>("axis", "to decode: the dimension of TargetBox that is not that of the prior boxes, 0 or 1", 0,
                   [](const int32_t& axis) {
                     HR_ENFORCE(axis == 0 || axis == 1, InvalidArgument, "attribute axis: expected 0 or 1, got ", axis);
                   })
    .Attr<std::vector<float>>("variance", "4 variances of all prior boxes; 1 without them and PriorBoxVar", {})
    .InferShape(InferBoxCoder)
    .Kernel<float>(BoxCoderKernel<float>)
    .Kernel<double>(BoxCoderKernel<double>);

}  // namespace headrace::ops
