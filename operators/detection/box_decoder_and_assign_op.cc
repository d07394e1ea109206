// box_decoder_and_assign: where the objects of regions lie, for each class and for the most likely one.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

template <typename T>
void BoxDecoderAndAssignKernel(const ExecutionContext& ctx) {
  const DDim& dims = ctx.Input("BoxScore").dims();
  const int64_t classes = dims[1];
  const auto max_log = static_cast<T>(ctx.Attr<double>("box_clip"));
  const T* priors = ctx.Input("PriorBox").data<T>();
  const T* variances = ctx.Input("PriorBoxVar").data<T>();
  const T* codes = ctx.Input("TargetBox").data<T>();
  const T* scores = ctx.Input("BoxScore").data<T>();
  T* boxes = ctx.Output("DecodeBox")->mutable_data<T>();
  T* assigned = ctx.Output("OutputAssignBox")->mutable_data<T>();
  ParallelFor(dims[0], RowsPerBlock(32 * classes), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const CenteredBox<T> prior(priors + row * kBoxSize, T(1));
      int64_t likely = 0;  // the class of no object
      for (int64_t c = 0; c < classes; ++c) {
        const int64_t at = row * classes + c;
        DecodeBox(codes + at * kBoxSize, prior, variances, T(1), max_log, boxes + at * kBoxSize);
        if (c > 0 && scores[at] > (likely == 0 ? T(-1) : scores[row * classes + likely])) {
          likely = c;
        }
      }
      const T* box = likely == 0 ? priors + row * kBoxSize : boxes + (row * classes + likely) * kBoxSize;
      std::copy_n(box, kBoxSize, assigned + row * kBoxSize);
    }
  });
}

}  // namespace

HEADRACE_REGISTER_OP(box_decoder_and_assign)
    .Comment("Where the objects of regions lie, for each class and for the most likely one.")
    .Input("PriorBox", "[R, 4] (left, upper, right, lower): the regions")
    .Input("PriorBoxVar", "[4]: the variances")
    .Input("TargetBox", "[R, 4 C]: where the object lies as seen from the region, for each class")
    .Input("BoxScore", "[R, C]: how likely each class is; class 0 is no object")
    .Output("DecodeBox", "dims and LoD of TargetBox: where the object lies")
    .Output("OutputAssignBox",
            "dims and LoD of PriorBox: where that of the most likely class lies, class 0 left out;"
            " the region if there is none")
    .Attr<double>("box_clip", "the greatest logarithm of the ratio of the extents of object and region")
    .InferShape([](InferShapeContext& ctx) {
      EnforceDims(ctx, "PriorBox", {-1, kBoxSize});
      EnforceDims(ctx, "PriorBoxVar", {kBoxSize});
      const int64_t regions = ctx.InputDim("PriorBox")[0];
      EnforceDims(ctx, "BoxScore", {regions, -1});
      const int64_t classes = ctx.InputDim("BoxScore")[1];
      HR_ENFORCE(classes != 0, InvalidArgument, "input BoxScore: expected one class or more, got dims ",
                 ToString(ctx.InputDim("BoxScore")));
      EnforceDims(ctx, "TargetBox", {regions, classes < 0 ? -1 : classes * kBoxSize});
      for (const HashedName slot : {HashedName("PriorBoxVar"), HashedName("TargetBox"), HashedName("BoxScore")}) {
        EnforceSameType(ctx, slot, "PriorBox");
      }
      ctx.ShareAll("TargetBox", "DecodeBox");
      ctx.ShareAll("PriorBox", "OutputAssignBox");
    })
    .Kernel<float>(BoxDecoderAndAssignKernel<float>)
    .Kernel<double>(BoxDecoderAndAssignKernel<double>);

}  // namespace headrace::ops
