// print: shows a tensor on standard error whenever it passes.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>

#include "framework/op_registry.h"

namespace headrace::ops {
namespace {

template <typename T>
void ShowElements(const LoDTensor& tensor, int64_t n, std::ostream& out) {
  out.precision(std::numeric_limits<T>::max_digits10);
  for (int64_t i = 0; i < n; ++i) {
    // Unary plus: an 8-bit integer is a number, not a character.
    out << (i == 0 ? "" : ", ") << +tensor.data<T>()[i];
  }
}

// Whether the dtype is one of Ts.
template <typename... Ts>
bool ShowElementsOf(const LoDTensor& tensor, int64_t n, std::ostream& out) {
  return ((tensor.dtype() == DataTypeOf<Ts>::value && (ShowElements<Ts>(tensor, n, out), true)) || ...);
}

class PrintOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const bool sparse = ctx.IsSelectedRows("In");  // a gradient
    const LoDTensor& tensor = sparse ? ctx.InputRows("In").value() : ctx.Input("In");
    const auto first_n = Attr<int32_t>("first_n");
    const HashedName other = Attr<bool>("is_forward") ? HashedName("BACKWARD") : HashedName("FORWARD");
    if (ctx.Text("print_phase") != other && (first_n <= 0 || shown_ < first_n)) {
      ++shown_;
      Show(tensor);
    }
    if (ctx.InputVar("In") == ctx.OutputVar("Out")) {
      return;
    }
    if (sparse) {
      const SelectedRows& from = ctx.InputRows("In");
      SelectedRows* to = ctx.OutputRows("Out");
      *to->mutable_rows() = from.rows();
      to->set_height(from.height());
      to->mutable_value()->CopyFrom(tensor);
    } else {
      LoDTensor* to = ctx.Output("Out");
      to->CopyFrom(tensor);
      to->set_lod(tensor.lod());
    }
  }

  void Show(const LoDTensor& tensor) const {
    // One write, so that lines of several threads do not mix.
    std::ostringstream text;
    text.imbue(std::locale::classic());
    if (const auto& message = Attr<std::string>("message"); !message.empty()) {
      text << message << ' ';
    }
    if (Attr<bool>("print_tensor_name")) {
      text << Input("In") << ": ";
    }
    if (Attr<bool>("print_tensor_type")) {
      text << DataTypeName(tensor.dtype()) << ' ';
    }
    if (Attr<bool>("print_tensor_shape")) {
      text << ToString(tensor.dims()) << ", ";
    }
    if (Attr<bool>("print_tensor_lod") && !tensor.lod().empty()) {
      text << "LoD " << ToString(tensor.lod()) << ", ";
    }
    const auto summarize = Attr<int32_t>("summarize");
    const int64_t shown = summarize < 0 ? tensor.numel() : std::min<int64_t>(summarize, tensor.numel());
    text << '[';
    const bool known =
        ShowElementsOf<bool, uint8_t, int8_t, int16_t, int32_t, int64_t, float, double>(tensor, shown, text);
    HR_ENFORCE(known, Unimplemented, "input In: '", Input("In"), "' has dtype ", DataTypeName(tensor.dtype()),
               ", which cannot be shown");
    text << (shown < tensor.numel() ? ", ...]" : "]") << '\n';
    std::cerr << text.str();
  }

  int32_t shown_ = 0;
};

}  // namespace

HEADRACE_REGISTER_OP(print)
    .Comment(
        "Writes name, dtype, dims, LoD and elements of a tensor to standard error, and passes it on. Out may be In.")
    .Input("In", "any tensor", kSelectedRows)
    .Output("Out", "dims, dtype, LoD and elements of In", kSelectedRows)
    .InPlace("Out", "In")
    .Attr<int32_t>("first_n", "how often it is shown; 0 or less: always", -1)
    .Attr<std::string>("message", "what comes before", "")
    .Attr<int32_t>("summarize", "how many elements are shown; negative: all", 20)
    .Attr<bool>("print_tensor_name", "whether the name is shown", true)
    .Attr<bool>("print_tensor_type", "whether the dtype is shown", true)
    .Attr<bool>("print_tensor_shape", "whether the dims are shown", true)
    .Attr<bool>("print_tensor_lod", "whether the LoD is shown", true)
    .Attr<std::string>("print_phase", "'FORWARD': the tensor is shown; 'BACKWARD': its gradient; 'BOTH'", "BOTH",
                       [](const std::string& phase) {
                         HR_ENFORCE(phase == "FORWARD" || phase == "BACKWARD" || phase == "BOTH", InvalidArgument,
                                    "attribute print_phase: expected 'FORWARD', 'BACKWARD' or 'BOTH', got '", phase,
                                    "'");
                       })
    .Attr<bool>("is_forward", "whether In is not a gradient", true)
    .InferShape([](InferShapeContext& ctx) {
      ctx.ShareAll("In", "Out");
      if (ctx.InputIsSelectedRows("In")) {
        ctx.SetOutputSelectedRows("Out");
      }
    })
    .Gradient([](const OpDesc& op) -> std::vector<OpDesc> {
      OpDesc grad{
          "print", {{"In", {GradVarName(op.Output("Out")[0])}}}, {{"Out", {GradVarName(op.Input("In")[0])}}}, op.attrs};
      grad.attrs["is_forward"] = false;
      return {grad};
    })
    .Operator<PrintOp>();

}  // namespace headrace::ops
