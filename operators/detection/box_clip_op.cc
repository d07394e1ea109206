// box_clip: boxes within their images.
#include <cstdint>

#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/detection/boxes.h"
#include "operators/math/tensor_size.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

template <typename T>
void BoxClipKernel(const ExecutionContext& ctx) {
  const LoDTensor& boxes_tensor = ctx.Input("Input");
  const LoDOffsets& images = SequencesOf(ctx, "Input");
  const LoDTensor& info_tensor = ctx.Input("ImInfo");
  HR_ENFORCE(SequenceCount(images) == info_tensor.dims()[0], InvalidArgument, "input ImInfo: expected ",
             SequenceCount(images), " rows, one for each sequence of Input, got ", info_tensor.dims()[0]);
  const T* boxes = boxes_tensor.data<T>();
  const T* info = info_tensor.data<T>();
  T* out = ctx.Output("Output")->mutable_data<T>();
  const int64_t boxes_per_row = MatrixSize(boxes_tensor.dims(), 1).cols / kBoxSize;
  ForEachSequenceInParallel(images, 2 * kBoxSize * boxes_per_row, [=](int64_t s, int64_t begin, int64_t end) {
    const T* image = info + s * 3;
    HR_ENFORCE(image[2] > 0, OutOfRange, "input ImInfo: row ", s, " has scale ", image[2],
               ", expected a positive number");
    const T right = LastColumn(image);
    const T bottom = LastRow(image);
    for (int64_t i = begin * boxes_per_row; i < end * boxes_per_row; ++i) {
      ClipBox(boxes + i * kBoxSize, right, bottom, out + i * kBoxSize);
    }
  });
}

}  // namespace

HEADRACE_REGISTER_OP(box_clip)
    .Comment("Moves the corners of boxes into their images.")
    .Input("Input", "[boxes, ..., 4] with LoD, a sequence for each image: xmin, ymin, xmax, ymax in pixels")
    .Input("ImInfo", "[images, 3], dtype of Input: height, width, and scale, by which these two are divided")
    .Output("Output", "dims and LoD of Input")
    .InPlace("Output", "Input")
    .InferShape([](InferShapeContext& ctx) {
      EnforceSequences(ctx, "Input", 2);
      const DDim dims = ctx.InputDim("Input");
      HR_ENFORCE(Fits(dims.back(), kBoxSize), InvalidArgument, "input Input: expected dims [boxes, ..., 4], got ",
                 ToString(dims));
      EnforceDims(ctx, "ImInfo", {-1, 3});
      EnforceSameType(ctx, "ImInfo", "Input");
      ctx.ShareAll("Input", "Output");
    })
    .Kernel<float>(BoxClipKernel<float>)
    .Kernel<double>(BoxClipKernel<double>);

}  // namespace headrace::ops
