// print: shows a tensor on standard error whenever it passes.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

template <typename T>
void PrintKernel(const ExecutionContext& ctx) {
  const LoDTensor& in = ctx.Input("In");
  const auto& message = ctx.Attr<std::string>("message");
  const int32_t summarize = ctx.Attr<int32_t>("summarize");
  const int64_t shown = summarize < 0 ? in.numel() : std::min<int64_t>(summarize, in.numel());

  // One write, so that lines of several threads do not mix.
  std::ostringstream text;
  text.precision(std::numeric_limits<T>::max_digits10);
  if (!message.empty()) {
    text << message << ' ';
  }
  text << ctx.op().Input("In")[0] << ": " << DataTypeName(in.dtype()) << ' ' << ToString(in.dims());
  if (!in.lod().empty()) {
    text << ", LoD " << ToString(in.lod());
  }
  text << ", [";
  for (int64_t i = 0; i < shown; ++i) {
    // Unary plus: an 8-bit integer is a number, not a character.
    text << (i == 0 ? "" : ", ") << +in.data<T>()[i];
  }
  text << (shown < in.numel() ? ", ...]" : "]") << '\n';
  std::cerr << text.str();

  LoDTensor* out = ctx.Output("Out");
  if (out != &in) {
    out->CopyFrom(in);
  }
}

}  // namespace

HEADRACE_REGISTER_OP(print)
    .Comment(
        "Writes name, dtype, dims, LoD and elements of a tensor to standard error, and passes it on. Out may be In.")
    .Input("In", "any tensor")
    .Output("Out", "dims, dtype, LoD and elements of In")
    .InPlace("Out", "In")
    .Attr<std::string>("message", "what comes before", "")
    .Attr<int32_t>("summarize", "how many elements are shown; negative: all", 20)
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("In", "Out"); })
    .Kernel<bool>(PrintKernel<bool>)
    .Kernel<uint8_t>(PrintKernel<uint8_t>)
    .Kernel<int8_t>(PrintKernel<int8_t>)
    .Kernel<int32_t>(PrintKernel<int32_t>)
    .Kernel<int64_t>(PrintKernel<int64_t>)
    .Kernel<float>(PrintKernel<float>)
    .Kernel<double>(PrintKernel<double>)
    .Gradient([](const OpDesc& op) -> std::vector<OpDesc> {
      return {OpDesc{
          "assign", {{"X", {GradVarName(op.Output("Out")[0])}}}, {{"Out", {GradVarName(op.Input("In")[0])}}}, {}}};
    });

}  // namespace headrace::ops
