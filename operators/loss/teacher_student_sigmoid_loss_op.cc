// teacher_student_sigmoid_loss: the logistic loss of clicks, and of what a teacher predicts of them.
#include <cstdint>
#include <utility>

#include "framework/op_registry.h"
#include "framework/thread_pool.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/sigmoid.h"

namespace headrace::ops {
namespace {

constexpr int64_t kLogisticRowsPerBlock = kElementsPerBlock / 4;

// Each label stands for losses log(1 + exp(x)) - target · x: that of a click, and that of the teacher if it is known.
template <typename T>
struct LogisticTerms {
  explicit LogisticTerms(T label) : count(label < 0 ? 1 : 2), targets(label < -1 ? 0 : label < 0 ? 1 : label) {}
  T count;
  T targets;  // their sum
};

template <typename T>
void TeacherStudentKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  const T* label = ctx.Input("Label").data<T>();
  T* y = ctx.Output("Y")->mutable_data<T>();
  ParallelFor(x_tensor.numel(), kLogisticRowsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const LogisticTerms<T> terms(label[i]);
      y[i] = terms.count * Softplus(x[i]) - terms.targets * x[i];
    }
  });
}

template <typename T>
void TeacherStudentGradKernel(const ExecutionContext& ctx) {
  const auto most = static_cast<T>(ctx.Attr<double>("soft_max_up_bound"));
  const auto least = static_cast<T>(ctx.Attr<double>("soft_max_lower_bound"));
  const LoDTensor& x_tensor = ctx.Input("X");
  const T* x = x_tensor.data<T>();
  const T* label = ctx.Input("Label").data<T>();
  const T* d = ctx.Input("Y@GRAD").data<T>();
  T* dx = ctx.Output("X@GRAD")->mutable_data<T>();
  ParallelFor(x_tensor.numel(), kLogisticRowsPerBlock, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const LogisticTerms<T> terms(label[i]);
      const bool beyond = x[i] >= most || x[i] <= least;
      dx[i] = beyond ? T(0) : d[i] * (terms.count * Sigmoid(x[i]) - terms.targets);
    }
  });
}

void CheckTeacherStudent(const InferShapeContext& ctx) {
  const DDim x = ctx.InputDim("X");
  EnforceDims(ctx, "X", {x.empty() ? -1 : x[0], 1});
  EnforceDims(ctx, "Label", {x[0], 1});
  EnforceSameType(ctx, "Label", "X");
}

OpRegistrar&& BoundAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<double>("soft_max_up_bound", "from which score on there is no gradient", 15.0)
      .Attr<double>("soft_max_lower_bound", "down from which score there is no gradient", -15.0);
}

}  // namespace

HEADRACE_REGISTER_OP(teacher_student_sigmoid_loss)
    .Comment(
        "The logistic loss log(1 + exp(X)) - click * X of clicks, 0 or 1, plus that of a teacher's prediction in place "
        "of the click where it is known.")
    .Input("X", "[N, 1], scores")
    .Input("Label",
           "[N, 1], dtype of X. -2: no click; -1: a click; from 0 to below 1: the teacher's prediction, without a "
           "click; from 1 to 2: that plus 1, with a click")
    .Output("Y", "[N, 1]")
    .With(BoundAttrs)
    .InferShape([](InferShapeContext& ctx) {
      CheckTeacherStudent(ctx);
      ctx.ShareAll("X", "Y");
    })
    .Kernel<float>(TeacherStudentKernel<float>)
    .Kernel<double>(TeacherStudentKernel<double>)
    .Gradient(DefaultGradient({.inputs = {"X", "Label"}, .outputs = {}, .no_gradient = {"Label"}}));

HEADRACE_REGISTER_OP(teacher_student_sigmoid_loss_grad)
    .Comment("Gradient of teacher_student_sigmoid_loss.")
    .Input("X", "as in the operator")
    .Input("Label", "as in the operator")
    .Input("Y@GRAD", "gradient of Y")
    .Output("X@GRAD", "dims of X")
    .With(BoundAttrs)
    .InferShape([](InferShapeContext& ctx) {
      CheckTeacherStudent(ctx);
      EnforceDims(ctx, "Y@GRAD", ctx.InputDim("X"));
      EnforceSameType(ctx, "Y@GRAD", "X");
      InferGradients(ctx, {"X"});
    })
    .Kernel<float>(TeacherStudentGradKernel<float>)
    .Kernel<double>(TeacherStudentGradKernel<double>);

}  // namespace headrace::ops
