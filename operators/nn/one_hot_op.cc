// one_hot, one_hot_v2: a row with a single 1 for each number.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/op_args.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// kUnknown in shape inference, if an input holds it.
int64_t Depth(const OpArgs& args) {
  const int64_t depth = args.Int("depth", "depth_tensor");
  HR_ENFORCE(depth > 0 || depth == kUnknown, InvalidArgument,
             args.HasInput("depth_tensor") ? "input depth_tensor" : "attribute depth", ": expected 1 or more, got ",
             depth);
  return depth;
}

// Whether a last dimension of 1 of X becomes that of the places; otherwise they get one of their own.
template <bool kColumn>
DDim OneHotDims(const DDim& x, int64_t depth) {
  DDim dims = x;
  if constexpr (kColumn) {
    dims.pop_back();
  }
  dims.push_back(depth);
  return dims;
}

template <typename T, typename Out, bool kColumn>
void OneHot(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  const int64_t depth = Depth(ctx);
  LoDTensor* out_tensor = ctx.Output("Out");
  out_tensor->Resize(OneHotDims<kColumn>(x_tensor.dims(), depth));
  Out* out = out_tensor->mutable_data<Out>();
  const bool allows_others = ctx.Attr<bool>("allow_out_of_range");
  ParallelFor(x_tensor.numel(), RowsPerBlock(depth), [=](int64_t begin, int64_t end) {
    std::fill(out + begin * depth, out + end * depth, Out(0));
    for (int64_t i = begin; i < end; ++i) {
      const bool inside = 0 <= x[i] && x[i] < depth;
      HR_ENFORCE(inside || allows_others, OutOfRange, "input X: element ", i, " is ", x[i], ", expected one in [0, ",
                 depth, ")");
      if (inside) {
        out[i * depth + x[i]] = Out(1);
      }
    }
  });
}

template <typename T, bool kColumn>
void OneHotKernel(const ExecutionContext& ctx) {
  switch (static_cast<DataType>(ctx.Attr<int32_t>("dtype"))) {
    case DataType::kFloat32:
      return OneHot<T, float, kColumn>(ctx);
    case DataType::kFloat64:
      return OneHot<T, double, kColumn>(ctx);
    case DataType::kInt32:
      return OneHot<T, int32_t, kColumn>(ctx);
    case DataType::kInt64:
      return OneHot<T, int64_t, kColumn>(ctx);
    default:
      return;  // shape inference has refused it
  }
}

template <bool kColumn>
void InferOneHot(InferShapeContext& ctx) {
  EnforceRankAtLeast(ctx, "X", 1);
  const DDim x = ctx.InputDim("X");
  HR_ENFORCE(!kColumn || Fits(x.back(), 1) || MayBeFedOtherwise(ctx, "X"), InvalidArgument,
             "input X: expected dims [..., 1], got ", ToString(x));
  const DDim dims = OneHotDims<kColumn>(x, std::max<int64_t>(Depth(ctx), -1));
  const DataType type = TypeAttr(ctx, "dtype");
  HR_ENFORCE(
      type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kInt32 || type == DataType::kInt64,
      Unimplemented, "attribute dtype: expected float32, float64, int32 or int64, got ", DataTypeName(type));
  SetKnownOutput(ctx, "Out", dims, type);
  ctx.ShareLoD("X", "Out");
}

template <bool kColumn>
OpRegistrar&& OneHotOp(OpRegistrar&& op) {
  return std::move(op)
      .Comment("A row of depth elements for each number: 1 at that place, else 0.")
      .Input("X",
             kColumn ? "int32 or int64 [..., 1], numbers in [0, depth)" : "int32 or int64 [...], numbers in [0, depth)")
      .Input("depth_tensor", "int32 or int64 [1]: the depth, instead of the attribute", kDispensable)
      .Output("Out", "[..., depth], LoD of X")
      .Attr<int32_t>("depth", "how many numbers there are", -1)
      .Attr<int32_t>("dtype", "DataType of Out: float32, float64, int32 or int64",
                     static_cast<int32_t>(DataType::kFloat32))
      .Attr<bool>("allow_out_of_range", "whether other numbers make a row of zeros instead of an error", false)
      .InferShape(InferOneHot<kColumn>)
      .template Kernel<int32_t>(OneHotKernel<int32_t, kColumn>)
      .template Kernel<int64_t>(OneHotKernel<int64_t, kColumn>);
}

}  // namespace

HEADRACE_REGISTER_OP(one_hot).With(OneHotOp<true>);
HEADRACE_REGISTER_OP(one_hot_v2).With(OneHotOp<false>);

}  // namespace headrace::ops
