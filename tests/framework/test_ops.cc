#include "test_ops.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <new>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "framework/op_registry.h"
#include "framework/operator.h"

namespace headrace::test {
namespace {

void ShareX(InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); }

// Out[i] = fn(X[i]).
template <typename T, typename Fn>
void Map(const ExecutionContext& ctx, Fn fn) {
  const LoDTensor& x = ctx.Input("X");
  LoDTensor* out = ctx.Output("Out");
  T* to = out->mutable_data<T>();
  std::transform(x.data<T>(), x.data<T>() + x.numel(), to, fn);
}

template <typename T>
void Scale(const ExecutionContext& ctx) {
  Map<T>(ctx, [factor = ctx.Attr<float>("factor")](T x) { return x * static_cast<T>(factor); });
}

HEADRACE_REGISTER_OP(test_scale)
    .Input("X", "")
    .Output("Out", "")
    .InPlace("Out", "X")
    .Attr<float>("factor", "", 1.0F,
                 [](const float& factor) {
                   HR_ENFORCE(std::isfinite(factor), InvalidArgument, "factor must be finite, got ", factor);
                 })
    .InferShape(ShareX)
    .Kernel<float>(Scale<float>)
    .Kernel<double>(Scale<double>)
    .Gradient([](const OpDesc& op) {
      OpDesc grad{op.type, {}, {}, op.attrs};
      grad.inputs["X"] = {GradVarName(op.Output("Out")[0])};
      grad.outputs["Out"] = {GradVarName(op.Input("X")[0])};
      return std::vector<OpDesc>{grad};
    });

void Mul(const ExecutionContext& ctx, const LoDTensor& x, const LoDTensor& y, LoDTensor* out) {
  (void)ctx;
  if (out != nullptr) {
    std::transform(x.data<float>(), x.data<float>() + x.numel(), y.data<float>(), out->mutable_data<float>(),
                   std::multiplies<>());
  }
}

HEADRACE_REGISTER_OP(test_mul)
    .Input("X", "")
    .Input("Y", "")
    .Output("Out", "")
    .InferShape([](InferShapeContext& ctx) {
      HR_ENFORCE(ctx.InputDim("X") == ctx.InputDim("Y"), InvalidArgument, "X and Y must have the same shape, got ",
                 ToString(ctx.InputDim("X")), " and ", ToString(ctx.InputDim("Y")));
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>([](const ExecutionContext& ctx) { Mul(ctx, ctx.Input("X"), ctx.Input("Y"), ctx.Output("Out")); })
    .Gradient(DefaultGradient({.inputs = {"X", "Y"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(test_mul_grad)
    .Input("X", "")
    .Input("Y", "")
    .Input("Out@GRAD", "")
    .Output("X@GRAD", "", kDispensable)
    .Output("Y@GRAD", "", kDispensable)
    .InferShape([](InferShapeContext& ctx) {
      ctx.ShareAll("X", "X@GRAD");
      ctx.ShareAll("Y", "Y@GRAD");
    })
    .Kernel<float>([](const ExecutionContext& ctx) {
      Mul(ctx, ctx.Input("Out@GRAD"), ctx.Input("Y"), ctx.OutputOrNull("X@GRAD"));
      Mul(ctx, ctx.Input("Out@GRAD"), ctx.Input("X"), ctx.OutputOrNull("Y@GRAD"));
    });

HEADRACE_REGISTER_OP(test_exp)
    .Input("X", "")
    .Output("Out", "")
    .InferShape(ShareX)
    .Kernel<float>([](const ExecutionContext& ctx) { Map<float>(ctx, [](float x) { return std::exp(x); }); })
    .Gradient(DefaultGradient({.inputs = {}, .outputs = {"Out"}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(test_exp_grad)
    .Input("Out", "")
    .Input("Out@GRAD", "")
    .Output("X@GRAD", "")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("Out", "X@GRAD"); })
    .Kernel<float>([](const ExecutionContext& ctx) {
      Mul(ctx, ctx.Input("Out@GRAD"), ctx.Input("Out"), ctx.Output("X@GRAD"));
    });

HEADRACE_REGISTER_OP(test_mean)
    .Input("X", "")
    .Output("Out", "")
    .InferShape([](InferShapeContext& ctx) {
      ctx.SetOutputDim("Out", {1});
      ctx.SetOutputType("Out", ctx.InputType("X"));
    })
    .Kernel<float>([](const ExecutionContext& ctx) {
      const LoDTensor& x = ctx.Input("X");
      *ctx.Output("Out")->mutable_data<float>() =
          std::accumulate(x.data<float>(), x.data<float>() + x.numel(), 0.0F) / static_cast<float>(x.numel());
    })
    .Gradient(DefaultGradient({.inputs = {"X"}, .outputs = {}, .no_gradient = {}}));

HEADRACE_REGISTER_OP(test_mean_grad)
    .Input("X", "")
    .Input("Out@GRAD", "")
    .Output("X@GRAD", "")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "X@GRAD"); })
    .Kernel<float>([](const ExecutionContext& ctx) {
      LoDTensor* out = ctx.Output("X@GRAD");
      std::fill_n(out->mutable_data<float>(), out->numel(),
                  *ctx.Input("Out@GRAD").data<float>() / static_cast<float>(out->numel()));
    });

HEADRACE_REGISTER_OP(test_split)
    .Input("X", "")
    .Output("A", "")
    .Output("B", "")
    .InferShape([](InferShapeContext& ctx) {
      ctx.ShareAll("X", "A");
      ctx.ShareAll("X", "B");
    })
    .Kernel<float>([](const ExecutionContext& ctx) {
      const LoDTensor& x = ctx.Input("X");
      std::copy_n(x.data<float>(), x.numel(), ctx.Output("A")->mutable_data<float>());
      if (LoDTensor* b = ctx.OutputOrNull("B")) {
        std::transform(x.data<float>(), x.data<float>() + x.numel(), b->mutable_data<float>(),
                       [](float v) { return 2 * v; });
      }
    })
    .Gradient(DefaultGradient({}));

HEADRACE_REGISTER_OP(test_split_grad)
    .Input("A@GRAD", "", kDispensable)
    .Input("B@GRAD", "", kDispensable)
    .Output("X@GRAD", "")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll(ctx.HasInput("A@GRAD") ? "A@GRAD" : "B@GRAD", "X@GRAD"); })
    .Kernel<float>([](const ExecutionContext& ctx) {
      const LoDTensor* a = ctx.InputOrNull("A@GRAD");
      const LoDTensor* b = ctx.InputOrNull("B@GRAD");
      LoDTensor* out = ctx.Output("X@GRAD");
      float* to = out->mutable_data<float>();
      for (int64_t i = 0; i < out->numel(); ++i) {
        to[i] = (a == nullptr ? 0 : a->data<float>()[i]) + (b == nullptr ? 0 : 2 * b->data<float>()[i]);
      }
    });

HEADRACE_REGISTER_OP(test_weighted)
    .Input("X", "")
    .Input("Weight", "")
    .Output("Out", "")
    .InferShape(ShareX)
    .Kernel<float>([](const ExecutionContext& ctx) {
      Mul(ctx, ctx.Input("X"), ctx.Input("Weight"), ctx.Output("Out"));
    })
    .Gradient(DefaultGradient({.inputs = {"Weight"}, .outputs = {}, .no_gradient = {"Weight"}}));

HEADRACE_REGISTER_OP(test_weighted_grad)
    .Input("Weight", "")
    .Input("Out@GRAD", "")
    .Output("X@GRAD", "")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("Out@GRAD", "X@GRAD"); })
    .Kernel<float>([](const ExecutionContext& ctx) {
      Mul(ctx, ctx.Input("Out@GRAD"), ctx.Input("Weight"), ctx.Output("X@GRAD"));
    });

HEADRACE_REGISTER_OP(test_sgd)
    .Input("Param", "")
    .Input("Grad", "")
    .Output("ParamOut", "")
    .InPlace("ParamOut", "Param")
    .Attr<float>("rate", "", 1.0F)
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("Param", "ParamOut"); })
    .Kernel<float>([](const ExecutionContext& ctx) {
      const LoDTensor& grad = ctx.Input("Grad");
      float* to = ctx.Output("ParamOut")->mutable_data<float>();
      const float* from = ctx.Input("Param").data<float>();
      for (int64_t i = 0; i < grad.numel(); ++i) {
        to[i] = from[i] - ctx.Attr<float>("rate") * grad.data<float>()[i];
      }
    });

HEADRACE_REGISTER_OP(test_increment)
    .Input("X", "")
    .Output("Out", "")
    .InPlace("Out", "X")
    .InferShape(ShareX)
    .Kernel<float>([](const ExecutionContext& ctx) { Map<float>(ctx, [](float x) { return x + 1; }); });

HEADRACE_REGISTER_OP(test_share)
    .Input("X", "")
    .Output("Out", "")
    .InferShape(ShareX)
    .Kernel<float>([](const ExecutionContext& ctx) { *ctx.Output("Out") = ctx.Input("X"); });

HEADRACE_REGISTER_OP(test_share_if_positive)
    .Input("X", "")
    .Output("Out", "")
    .InferShape(ShareX)
    .Kernel<float>([](const ExecutionContext& ctx) {
      const LoDTensor& x = ctx.Input("X");
      if (*x.data<float>() > 0) {
        *ctx.Output("Out") = x;
      } else {
        ctx.Output("Out")->CopyFrom(x);
      }
    });

HEADRACE_REGISTER_OP(test_ones_like)
    .Input("X", "", kShapeOnly)
    .Output("Out", "")
    .InferShape(ShareX)
    .Kernel<float>([](const ExecutionContext& ctx) {
      LoDTensor* out = ctx.Output("Out");
      std::fill_n(out->mutable_data<float>(), out->numel(), 1.0F);
    });

// Against its declaration.
HEADRACE_REGISTER_OP(test_read_of_shape_only)
    .Input("X", "", kShapeOnly)
    .Output("Out", "")
    .InferShape(ShareX)
    .Kernel<float>([](const ExecutionContext& ctx) { Map<float>(ctx, [](float x) { return x; }); });

HEADRACE_REGISTER_OP(test_fail_if_over_100)
    .Input("X", "")
    .Output("Out", "")
    .InferShape(ShareX)
    .Kernel<float>([](const ExecutionContext& ctx) {
      HR_ENFORCE(*ctx.Input("X").data<float>() <= 100, OutOfRange, "too large");
      Map<float>(ctx, [](float x) { return x; });
    });

void Fill(const ExecutionContext& ctx) {
  LoDTensor* out = ctx.Output("Out");
  std::fill_n(out->mutable_data<float>(), out->numel(), ctx.Attr<float>("value"));
}

HEADRACE_REGISTER_OP(test_fill)
    .Output("Out", "")
    .Attr<std::vector<int64_t>>("shape", "")
    .Attr<float>("value", "")
    .InferShape([](InferShapeContext& ctx) { ctx.SetOutputDim("Out", ctx.Attr<std::vector<int64_t>>("shape")); })
    .Kernel<float>(Fill);

HEADRACE_REGISTER_OP(test_fail).Input("X", "").Attr<std::string>("how", "").Kernel<float>(
    [](const ExecutionContext& ctx) {
      const auto& how = ctx.Attr<std::string>("how");
      if (how == "memory") {
        throw std::bad_alloc();
      }
      if (how == "length") {
        throw std::length_error("vector::reserve");
      }
      if (how == "argument") {
        throw std::invalid_argument("stoi");
      }
      if (how == "domain") {
        throw std::domain_error("sqrt");
      }
      if (how == "range") {
        throw std::out_of_range("vector::at");
      }
      if (how == "system") {
        throw std::system_error(ENOENT, std::generic_category(), "open");
      }
      if (how == "logic") {
        throw std::logic_error("no such state");
      }
      if (how == "runtime") {
        throw std::runtime_error("the device is busy");
      }
      if (how == "other") {
        throw std::bad_optional_access();
      }
      Throw<InvalidArgument>("failed as told");
    });

class TakeOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    auto* feed = scope.GetVar(Input("Reader")).GetMutable<Feed>();
    HR_ENFORCE(!feed->empty(), EndOfData, "there is no next data");
    *scope.GetVar(Output("Out")).GetMutable<LoDTensor>() = std::move(feed->front());
    feed->pop_front();
  }
};

HEADRACE_REGISTER_OP(test_take).Input("Reader", "").Output("Out", "").Operator<TakeOp>().ReadsData();

class ReplaceOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    Variable& x = scope.GetVar(Input("X"));
    x.Clear();
    x.GetMutable<std::string>();
  }
};

HEADRACE_REGISTER_OP(test_replace).Input("X", "").Operator<ReplaceOp>();

class TouchOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    scope.GetVar(Output("Out")).GetMutable<LoDTensor>()->CopyFrom(scope.GetVar(Input("X")).Get<LoDTensor>());
  }
};

HEADRACE_REGISTER_OP(test_touch).Input("X", "").Output("Out", "").InferShape(ShareX).Operator<TouchOp>();

// AppendBackward uses these two, which belong to operators/; where that folder is not linked, the tests bring their
// own.
[[maybe_unused]] const bool registered_stand_ins = [] {
  if (OpRegistry::Find("fill_constant") == nullptr) {
    OpRegistrar("fill_constant")
        .Output("Out", "")
        .Attr<std::vector<int64_t>>("shape", "")
        .Attr<int32_t>("dtype", "")
        .Attr<float>("value", "")
        .InferShape([](InferShapeContext& ctx) { ctx.SetOutputDim("Out", ctx.Attr<std::vector<int64_t>>("shape")); })
        .Kernel<float>(Fill)
        .Register();
  }
  if (OpRegistry::Find("sum") == nullptr) {
    OpRegistrar("sum")
        .Input("X", "", kDuplicable)
        .Output("Out", "")
        .InferShape(ShareX)
        .Kernel<float>([](const ExecutionContext& ctx) {
          LoDTensor* out = ctx.Output("Out");
          float* to = out->mutable_data<float>();
          std::fill_n(to, out->numel(), 0.0F);
          for (size_t i = 0; i < ctx.InputSize("X"); ++i) {
            std::transform(to, to + out->numel(), ctx.Input("X", i).data<float>(), to, std::plus<>());
          }
        })
        .Register();
  }
  return true;
}();

}  // namespace

LoDTensor MakeTensor(const DDim& dims, const std::vector<float>& values) {
  LoDTensor tensor;
  tensor.Resize(dims);
  HR_ENFORCE(static_cast<size_t>(tensor.numel()) == values.size(), InvalidArgument, "the test gives ", values.size(),
             " values for ", ToString(dims));
  std::copy(values.begin(), values.end(), tensor.mutable_data<float>());
  return tensor;
}

std::vector<float> Values(const Tensor& tensor) {
  return std::vector<float>(tensor.data<float>(), tensor.data<float>() + tensor.numel());
}

VarDesc& Declare(ProgramDesc* program, const std::string& name, DDim dims) {
  VarDesc& var = program->block(0).Var(name);
  var.tensor.dims = std::move(dims);
  return var;
}

VarDesc& DeclareParameter(ProgramDesc* program, const std::string& name, DDim dims) {
  VarDesc& var = Declare(program, name, std::move(dims));
  var.persistable = true;
  var.is_parameter = true;
  return var;
}

const OpDesc& Append(ProgramDesc* program, const std::string& type, VarNameMap inputs, VarNameMap outputs,
                     AttributeMap attrs) {
  return program->block(0).Append(type, std::move(inputs), std::move(outputs), std::move(attrs));
}

void BuildDouble(ProgramDesc* program, const DDim& dims) {
  Declare(program, "x", dims);
  Append(program, "test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"factor", 2.0F}});
}

void BuildCounter(ProgramDesc* program) {
  DeclareParameter(program, "w", {1});
  Append(program, "test_increment", {{"X", {"w"}}}, {{"Out", {"w"}}});
}

BlockDesc& AppendBlock(ProgramDesc* program) {
  BlockDesc& block = program->AppendBlock(0);
  Append(program, "fill_constant", {}, {{"Out", {"always"}}},
         {{"shape", std::vector<int64_t>{1}}, {"dtype", static_cast<int32_t>(DataType::kBool)}, {"value", 1.0}});
  Append(program, "conditional_block", {{"Cond", {"always"}}}, {},
         {{"sub_block", BlockRef{block.index()}}, {"is_scalar_condition", true}});
  return block;
}

void Put(Scope* scope, const std::string& name, LoDTensor value) {
  *scope->Var(name)->GetMutable<LoDTensor>() = std::move(value);
}

}  // namespace headrace::test
