// An operator library as a user would write it: relu6(x) = min(max(x, 0), 6).
#include <algorithm>

#include "framework/op_registry.h"

namespace {

using headrace::ExecutionContext;
using headrace::InferShapeContext;
using headrace::LoDTensor;

HEADRACE_REGISTER_OP(plugin_relu6)
    .Comment("min(max(x, 0), 6), element by element.")
    .Input("X", "any shape")
    .Output("Out", "shape and dtype of X")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
    .Kernel<float>([](const ExecutionContext& ctx) {
      const LoDTensor& x = ctx.Input("X");
      float* to = ctx.Output("Out")->mutable_data<float>();
      std::transform(x.data<float>(), x.data<float>() + x.numel(), to,
                     [](float v) { return std::clamp(v, 0.0F, 6.0F); });
    });

}  // namespace
