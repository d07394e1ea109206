#include "framework/backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "framework/executor.h"
#include "framework/op_registry.h"
#include "framework/op_role.h"
#include "test_ops.h"

namespace headrace {
namespace {

using test::Append;
using test::Declare;
using test::DeclareParameter;
using test::MakeTensor;
using test::Values;
using testing::HasSubstr;

using Pairs = std::vector<std::pair<std::string, std::string>>;

class BackwardTest : public testing::Test {
 protected:
  // Appends an operator from X (and Y) to `out`.
  void Op(const std::string& type, const std::vector<std::string>& inputs, const std::string& out,
          AttributeMap attrs = {}) {
    VarNameMap slots{{"X", {inputs[0]}}};
    if (inputs.size() > 1) {
      slots["Y"] = {inputs[1]};
    }
    Append(&program_, type, slots, {{"Out", {out}}}, std::move(attrs));
  }

  void Parameter(const std::string& name, const std::vector<float>& values) {
    DeclareParameter(&program_, name, {static_cast<int64_t>(values.size())});
    *scope_.Var(name)->GetMutable<LoDTensor>() = MakeTensor({static_cast<int64_t>(values.size())}, values);
  }

  std::vector<std::vector<float>> Run(const std::vector<std::string>& fetches) {
    std::vector<LoDTensor> fetched;
    Executor().Run(*Executor().Prepare(program_, fetches), &scope_, {}, &fetched);
    std::vector<std::vector<float>> values;
    for (const LoDTensor& tensor : fetched) {
      values.push_back(Values(tensor));
    }
    return values;
  }

  // Compares what AppendBackward computes with central differences of the forward pass.
  void ExpectGradientsAreRight(const std::string& loss, const std::vector<std::string>& parameters = {}) {
    const ProgramDesc forward(program_);
    const Pairs pairs = AppendBackward(&program_, loss, parameters);
    ASSERT_FALSE(pairs.empty());
    for (const auto& [parameter, gradient] : pairs) {
      const std::vector<float> computed = Run({gradient})[0];
      auto* tensor = scope_.GetVar(parameter).GetMutable<LoDTensor>();
      ASSERT_EQ(static_cast<size_t>(tensor->numel()), computed.size());
      const auto loss_with = [&](int64_t i, float value) {
        static_cast<float*>(tensor->raw_mutable_data())[i] = value;
        std::vector<LoDTensor> fetched;
        Executor().Run(*Executor().Prepare(forward, {loss}), &scope_, {}, &fetched);
        return Values(fetched[0])[0];
      };
      for (int64_t i = 0; i < tensor->numel(); ++i) {
        const float value = tensor->data<float>()[i];
        const float step = 1e-2F;
        const float expected = (loss_with(i, value + step) - loss_with(i, value - step)) / (2 * step);
        (void)loss_with(i, value);
        EXPECT_NEAR(computed[static_cast<size_t>(i)], expected, 1e-2F * std::max(1.0F, std::abs(expected)))
            << gradient << "[" << i << "]";
      }
    }
  }

  std::vector<std::string> OpTypes() const {
    std::vector<std::string> types;
    for (const auto& op : program_.block(0).ops()) {
      types.push_back(op->type);
    }
    return types;
  }

  ProgramDesc program_;
  Scope scope_;
};

TEST_F(BackwardTest, ChainOfOperators) {
  Parameter("w", {0.5F, -1, 2});
  Op("test_scale", {"w"}, "a", {{"factor", 0.3F}});
  Op("test_exp", {"a"}, "b");
  Op("test_mean", {"b"}, "loss");
  ExpectGradientsAreRight("loss");
}

TEST_F(BackwardTest, ParameterUsedBySeveralOperatorsIsSummed) {
  Parameter("w", {0.5F, -1});
  Op("test_exp", {"w"}, "a");
  Op("test_mul", {"a", "w"}, "b");
  Op("test_mul", {"b", "w"}, "c");
  Op("test_mean", {"c"}, "loss");
  ExpectGradientsAreRight("loss");
  EXPECT_THAT(OpTypes(), testing::Contains("sum").Times(1));
}

TEST_F(BackwardTest, IntermediateUsedBySeveralOperatorsIsSummedBeforeItsProducer) {
  Parameter("w", {0.5F, -1});
  Op("test_exp", {"w"}, "a");
  Op("test_scale", {"a"}, "b", {{"factor", 3.0F}});
  Op("test_mul", {"a", "b"}, "c");
  Op("test_mean", {"c"}, "loss");
  ExpectGradientsAreRight("loss");
}

TEST_F(BackwardTest, OperatorThatUsesOneVariableTwice) {
  Parameter("w", {0.5F, -3});
  Op("test_mul", {"w", "w"}, "square");
  Op("test_mean", {"square"}, "loss");
  ExpectGradientsAreRight("loss");
}

TEST_F(BackwardTest, ParameterSharedByTwoBranches) {
  Parameter("w", {0.5F, -1});
  Parameter("v", {2, 3});
  Op("test_mul", {"w", "v"}, "a");
  Op("test_exp", {"w"}, "b");
  Op("test_mul", {"a", "b"}, "c");
  Op("test_mean", {"c"}, "loss");
  ExpectGradientsAreRight("loss");
}

TEST_F(BackwardTest, OnlyOneOfTwoOutputsContributes) {
  Parameter("w", {0.5F, -1});
  Append(&program_, "test_split", {{"X", {"w"}}}, {{"A", {"a"}}, {"B", {"b"}}});
  Op("test_exp", {"b"}, "c");
  Op("test_mean", {"c"}, "loss");
  ExpectGradientsAreRight("loss");
}

TEST_F(BackwardTest, BothOutputsContribute) {
  Parameter("w", {0.5F, -1});
  Append(&program_, "test_split", {{"X", {"w"}}}, {{"A", {"a"}}, {"B", {"b"}}});
  Op("test_mul", {"a", "b"}, "c");
  Op("test_mean", {"c"}, "loss");
  ExpectGradientsAreRight("loss");
}

TEST_F(BackwardTest, IntermediateVariableCanBeDifferentiatedBy) {
  Parameter("w", {0.5F, -1});
  Op("test_scale", {"w"}, "a", {{"factor", 2.0F}});
  Op("test_mul", {"a", "a"}, "b");
  Op("test_mean", {"b"}, "loss");
  EXPECT_EQ(AppendBackward(&program_, "loss", {"a", "w"}), (Pairs{{"w", "w@GRAD"}, {"a", "a@GRAD"}}));
  const auto gradients = Run({"a@GRAD", "w@GRAD"});
  EXPECT_EQ(gradients[0], (std::vector<float>{1, -2}));  // d mean(a²) / da = a, a = 2 · w
  EXPECT_EQ(gradients[1], (std::vector<float>{2, -4}));
}

TEST_F(BackwardTest, ResultsThatNobodyWantsAreNotOneVariable) {
  const std::string none(kEmptyVarName);
  Parameter("w", {1, 2});
  Append(&program_, "test_split", {{"X", {"w"}}}, {{"A", {"a"}}, {"B", {none}}});
  Append(&program_, "test_split", {{"X", {"a"}}}, {{"A", {"b"}}, {"B", {none}}});
  Op("test_mean", {"b"}, "loss");
  ExpectGradientsAreRight("loss");
}

TEST_F(BackwardTest, EachValueOfAVariableWrittenTwiceHasItsOwnGradient) {
  Parameter("w", {0.5F});
  Op("test_exp", {"w"}, "a");
  Op("test_mul", {"a", "w"}, "b");
  Op("test_scale", {"w"}, "a", {{"factor", 3.0F}});
  Op("test_mul", {"a", "b"}, "loss");
  ExpectGradientsAreRight("loss");
}

TEST_F(BackwardTest, ValueThatIsOverwrittenInPlaceIsSavedForItsGradient) {
  Parameter("w", {0.5F, -1});
  Op("test_exp", {"w"}, "a");
  Op("test_scale", {"a"}, "a", {{"factor", 2.0F}});
  Op("test_mul", {"a", "w"}, "b");
  Op("test_mean", {"b"}, "loss");
  ExpectGradientsAreRight("loss");
  EXPECT_THAT(OpTypes(), testing::Contains("assign").Times(1));
  EXPECT_EQ(OpTypes()[1], "assign");  // between the operator that writes the value and the one that overwrites it
}

TEST_F(BackwardTest, ReturnsParametersInOrderOfCreation) {
  Parameter("z", {1});
  Parameter("unused", {1});
  Parameter("a", {1});
  Op("test_mul", {"a", "z"}, "loss");
  EXPECT_EQ(AppendBackward(&program_, "loss"), (Pairs{{"z", "z@GRAD"}, {"a", "a@GRAD"}}));
}

TEST_F(BackwardTest, ReferencesToBlocksStayGood) {
  const BlockDesc& block = program_.block(0);
  Parameter("w", {1});
  Op("test_exp", {"w"}, "loss");
  AppendBackward(&program_, "loss");
  EXPECT_EQ(&block, &program_.block(0));
  EXPECT_TRUE(block.HasLocalVar("w@GRAD"));
}

TEST_F(BackwardTest, LeavesOutWhatDoesNotLieBetweenParametersAndLoss) {
  Parameter("w", {1});
  Declare(&program_, "data", {1});
  Op("test_exp", {"data"}, "features");  // depends on no parameter
  Op("test_mul", {"features", "w"}, "loss");
  Op("test_increment", {"w"}, "beside");  // leads to no loss, and has no gradient
  AppendBackward(&program_, "loss");
  EXPECT_EQ(OpTypes(),
            (std::vector<std::string>{"test_exp", "test_mul", "test_increment", "fill_constant", "test_mul_grad"}));
  EXPECT_EQ(program_.block(0).ops().back()->Output("X@GRAD")[0], kEmptyVarName);
}

TEST_F(BackwardTest, GradientVariablesAreDeclaredLikeTheirVariables) {
  Parameter("w", {1, 2});
  Op("test_mean", {"w"}, "loss");
  AppendBackward(&program_, "loss");
  EXPECT_EQ(program_.block(0).GetVar("w@GRAD").tensor, program_.block(0).GetVar("w").tensor);
  EXPECT_FALSE(program_.block(0).GetVar("w@GRAD").persistable);
}

TEST_F(BackwardTest, StopGradientIsNotPassed) {
  Parameter("w", {1});
  Parameter("v", {1});
  Op("test_exp", {"w"}, "a");
  program_.block(0).MutableVar("a").stop_gradient = true;
  Op("test_mul", {"a", "v"}, "loss");
  EXPECT_EQ(AppendBackward(&program_, "loss"), (Pairs{{"v", "v@GRAD"}}));
}

TEST_F(BackwardTest, NoGradIsNotPassed) {
  Parameter("w", {1});
  Parameter("v", {1});
  Op("test_mul", {"w", "v"}, "loss");
  EXPECT_EQ(AppendBackward(&program_, "loss", {}, {"w"}), (Pairs{{"v", "v@GRAD"}}));
}

TEST_F(BackwardTest, LossThatDependsOnNoParameterChangesNothing) {
  Declare(&program_, "x", {1});
  Op("test_exp", {"x"}, "loss");
  const std::string before = program_.Serialize();
  EXPECT_TRUE(AppendBackward(&program_, "loss").empty());
  EXPECT_EQ(program_.Serialize(), before);
}

TEST_F(BackwardTest, InputWithoutGradientStopsTheWay) {
  Parameter("w", {1});
  Parameter("v", {1});
  Op("test_exp", {"w"}, "weight");
  Append(&program_, "test_weighted", {{"X", {"v"}}, {"Weight", {"weight"}}}, {{"Out", {"loss"}}});
  EXPECT_EQ(AppendBackward(&program_, "loss"), (Pairs{{"v", "v@GRAD"}}));
}

TEST_F(BackwardTest, TwoLossesOfOneProgramHaveGradientsOfTheirOwn) {
  Parameter("w", {0.5F, -1});
  Op("test_mul", {"w", "w"}, "a");
  Op("test_mean", {"a"}, "loss");
  Op("test_exp", {"w"}, "b");
  Op("test_mean", {"b"}, "loss2");
  const auto first = AppendBackward(&program_, "loss");
  const auto second = AppendBackward(&program_, "loss2");
  ASSERT_NE(first[0].second, second[0].second);
  const auto gradients = Run({first[0].second, second[0].second});
  EXPECT_EQ(gradients[0], (std::vector<float>{0.5F, -1}));
  EXPECT_NEAR(gradients[1][0], std::exp(0.5F) / 2, 1e-6);
}

TEST_F(BackwardTest, DifferentiatedProgramSurvivesSerialisation) {
  Parameter("w", {0.5F, -1});
  Op("test_mul", {"w", "w"}, "a");
  Op("test_mean", {"a"}, "loss");
  AppendBackward(&program_, "loss");
  const auto parsed = ProgramDesc::Parse(program_.Serialize());
  std::vector<LoDTensor> fetched;
  Executor().Run(*Executor().Prepare(*parsed, {"w@GRAD"}), &scope_, {}, &fetched);
  EXPECT_EQ(Values(fetched[0]), (std::vector<float>{0.5F, -1}));
}

TEST_F(BackwardTest, GradientDescentConverges) {
  Parameter("w", {3});
  Op("test_mul", {"w", "w"}, "a");
  Op("test_mean", {"a"}, "loss");
  AppendBackward(&program_, "loss");
  Append(&program_, "test_sgd", {{"Param", {"w"}}, {"Grad", {"w@GRAD"}}}, {{"ParamOut", {"w"}}}, {{"rate", 0.25F}});
  const auto prepared = Executor().Prepare(program_);
  const void* memory = scope_.GetVar("w").Get<LoDTensor>().raw_data();
  for (int i = 0; i < 40; ++i) {
    Executor().Run(*prepared, &scope_);
  }
  EXPECT_NEAR(Values(scope_.GetVar("w").Get<LoDTensor>())[0], 0, 1e-6);
  EXPECT_EQ(scope_.GetVar("w").Get<LoDTensor>().raw_data(), memory);
}

int32_t RoleAttr(const ProgramDesc& program, const std::string& output) {
  for (const auto& op : program.block(0).ops()) {
    for (const std::string& name : op->OutputNames()) {
      if (name == output) {
        return op->Attr<int32_t>(kOpRoleAttr);
      }
    }
  }
  ADD_FAILURE() << "nothing writes " << output;
  return -1;
}

TEST_F(BackwardTest, WhatIsAppendedHasItsRole) {
  Parameter("w", {3});
  Op("test_exp", {"w"}, "a");
  Op("test_scale", {"a"}, "a", {{"factor", 2.0F}});  // so that the gradient of test_exp needs what is overwritten
  Op("test_mul", {"a", "w"}, "b");
  Op("test_mean", {"b"}, "loss");
  const Pairs pairs = AppendBackward(&program_, "loss");
  EXPECT_EQ(RoleAttr(program_, "a"), kRoleForward);
  EXPECT_EQ(RoleAttr(program_, "loss"), kRoleForward | kRoleLoss);
  EXPECT_EQ(RoleAttr(program_, "loss@GRAD"), kRoleBackward | kRoleLoss);
  EXPECT_EQ(RoleAttr(program_, "b@GRAD"), kRoleBackward);
  EXPECT_EQ(RoleAttr(program_, "w@GRAD"), kRoleBackward);
  int saves = 0;
  for (const auto& op : program_.block(0).ops()) {
    if (op->type == "assign") {
      ++saves;
      EXPECT_EQ(op->Attr<int32_t>(kOpRoleAttr), kRoleBackward);
    }
  }
  EXPECT_EQ(saves, 1);
  const OpDesc& last = *program_.block(0).ops().back();
  EXPECT_EQ(last.Attr<std::vector<std::string>>(kOpRoleVarAttr), (std::vector<std::string>{"w", "w@GRAD"}));
}

TEST_F(BackwardTest, ParametersThatAreNotTrainableAreLeftOut) {
  Parameter("w", {3});
  Parameter("frozen", {2});
  program_.block(0).MutableVar("w").attrs["trainable"] = false;
  Op("test_mul", {"w", "frozen"}, "a");
  Op("test_mean", {"a"}, "loss");
  EXPECT_EQ(AppendBackward(&program_, "loss"), (Pairs{{"frozen", "frozen@GRAD"}}));
}

// As in Fluid: the second backward pass goes by what the first optimizer has made of the parameter.
class TwoOptimizersTest : public BackwardTest, public testing::WithParamInterface<bool> {};

TEST_P(TwoOptimizersTest, GoOneAfterTheOther) {
  const bool second_loss_is_built_later = GetParam();
  Parameter("w", {3});
  const auto build_second = [this] {
    Op("test_mul", {"a", "w"}, "b");  // w³
    Op("test_mean", {"b"}, "loss2");
  };
  Op("test_mul", {"w", "w"}, "a");
  Op("test_mean", {"a"}, "loss1");
  if (!second_loss_is_built_later) {
    build_second();
  }
  const auto update = [this](const std::string& loss) {
    const Pairs pairs = AppendBackward(&program_, loss);
    ASSERT_EQ(pairs.size(), 1U);
    Append(&program_, "test_sgd", {{"Param", {"w"}}, {"Grad", {pairs[0].second}}}, {{"ParamOut", {"w"}}},
           {{"rate", 0.25F}, {"op_role", int32_t{kRoleOptimize}}});
  };
  update("loss1");
  if (second_loss_is_built_later) {
    build_second();
  }
  update("loss2");
  Run({});
  const float w = 3 - 0.25F * 2 * 3;
  // d(a · w), where a was computed before the first update, and the rest is read after it.
  const float expected = w - 0.25F * (9 + 2 * w * w);
  EXPECT_NEAR(Values(scope_.GetVar("w").Get<LoDTensor>())[0], expected, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Either, TwoOptimizersTest, testing::Bool());

// A gradient in two operators, with a variable between them that its maker makes up.
HEADRACE_REGISTER_OP(test_twice)
    .Input("X", "")
    .Output("Out", "")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
    .Kernel<float>([](const ExecutionContext& ctx) {
      const LoDTensor& x = ctx.Input("X");
      float* to = ctx.Output("Out")->mutable_data<float>();
      for (int64_t i = 0; i < x.numel(); ++i) {
        to[i] = 4 * x.data<float>()[i];
      }
    })
    .Gradient([](const OpDesc& op) {
      const std::string between = op.Output("Out")[0] + "@BETWEEN";
      OpDesc first{"test_scale", {{"X", {GradVarName(op.Output("Out")[0])}}}, {{"Out", {between}}}, {{"factor", 2.0F}}};
      OpDesc second{"test_scale", {{"X", {between}}}, {{"Out", {GradVarName(op.Input("X")[0])}}}, {{"factor", 2.0F}}};
      return std::vector<OpDesc>{first, second};
    });

TEST_F(BackwardTest, GradientOfSeveralOperators) {
  Parameter("w", {1, 2});
  Op("test_twice", {"w"}, "a");
  Op("test_mean", {"a"}, "loss");
  const auto first = AppendBackward(&program_, "loss");
  const auto second = AppendBackward(&program_, "loss");
  EXPECT_EQ(Run({first[0].second})[0], (std::vector<float>{2, 2}));
  EXPECT_EQ(Run({second[0].second})[0], (std::vector<float>{2, 2}));
}

class BackwardErrorTest : public BackwardTest {
 protected:
  // Expects E, and the program as it was.
  template <typename E>
  std::string ErrorOf(const std::string& loss, const std::vector<std::string>& parameters = {}) {
    const std::string before = program_.Serialize();
    try {
      AppendBackward(&program_, loss, parameters);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const E& error) {
      EXPECT_EQ(program_.Serialize(), before);
      return error.what();
    }
    return {};
  }
};

TEST_F(BackwardErrorTest, LossMustExist) { EXPECT_THAT(ErrorOf<NotFound>("nothing"), HasSubstr("'nothing'")); }

TEST_F(BackwardErrorTest, LossMustBeASingleElement) {
  Parameter("w", {1, 2});
  Op("test_exp", {"w"}, "a");
  EXPECT_THAT(ErrorOf<InvalidArgument>("a"), HasSubstr("[2]"));
}

TEST_F(BackwardErrorTest, LossMustBeOfAFloatingPointType) {
  Declare(&program_, "loss", {1}).tensor.dtype = DataType::kInt64;
  ErrorOf<TypeMismatch>("loss");
}

TEST_F(BackwardErrorTest, LossMustBeComputed) {
  Parameter("w", {1});
  ErrorOf<InvalidArgument>("w");
}

TEST_F(BackwardErrorTest, NamedParameterMustExist) {
  Parameter("w", {1});
  Op("test_exp", {"w"}, "loss");
  EXPECT_THAT(ErrorOf<NotFound>("loss", {"nothing"}), HasSubstr("'nothing'"));
}

TEST_F(BackwardErrorTest, NamedParameterWithStopGradientIsRefused) {
  Parameter("w", {1});
  program_.block(0).MutableVar("w").stop_gradient = true;
  Op("test_exp", {"w"}, "loss");
  ErrorOf<InvalidArgument>("loss", {"w"});
}

TEST_F(BackwardErrorTest, OperatorOnTheWayWithoutGradientIsNamed) {
  Parameter("w", {1});
  Op("test_increment", {"w"}, "a");
  Op("test_exp", {"a"}, "loss");
  EXPECT_THAT(ErrorOf<Unimplemented>("loss"), HasSubstr("'test_increment'"));
}

TEST_F(BackwardErrorTest, ParameterOverwrittenOnTheWayIsNamed) {
  Parameter("w", {1});
  Op("test_exp", {"w"}, "a");
  Op("test_scale", {"a"}, "w", {{"factor", 2.0F}});
  Op("test_mean", {"w"}, "loss");
  EXPECT_THAT(ErrorOf<InvalidArgument>("loss"), testing::AllOf(HasSubstr("'w'"), HasSubstr("'test_scale'")));
}

TEST_F(BackwardErrorTest, ParameterUpdatedBeforeTheBackwardPassIsNamed) {
  Parameter("w", {1});
  Declare(&program_, "g", {1});
  Op("test_mul", {"w", "w"}, "a");
  Op("test_mean", {"a"}, "loss");
  Append(&program_, "test_sgd", {{"Param", {"w"}}, {"Grad", {"g"}}}, {{"ParamOut", {"w"}}});
  EXPECT_THAT(ErrorOf<InvalidArgument>("loss"), testing::AllOf(HasSubstr("'w'"), HasSubstr("'test_sgd'")));
}

HEADRACE_REGISTER_OP(test_broken_gradient)
    .Input("X", "")
    .Output("Out", "")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
    .Kernel<float>([](const ExecutionContext&) {})
    .Gradient(DefaultGradient({}));  // there is no test_broken_gradient_grad

HEADRACE_REGISTER_OP(test_throwing_gradient)
    .Input("X", "")
    .Output("Out", "")
    .InferShape([](InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })
    .Kernel<float>([](const ExecutionContext&) {})
    .Gradient([](const OpDesc&) -> std::vector<OpDesc> { throw std::runtime_error("not today"); });

TEST_F(BackwardErrorTest, WhatAGradientMakerThrowsIsAnErrorOfTheOperator) {
  Parameter("w", {1});
  Op("test_throwing_gradient", {"w"}, "a");
  Op("test_exp", {"a"}, "loss");
  EXPECT_THAT(ErrorOf<FailedPrecondition>("loss"),
              testing::AllOf(HasSubstr("not today"), HasSubstr("test_throwing_gradient")));
}

TEST_F(BackwardErrorTest, FailureHalfWayLeavesTheProgramAsItWas) {
  Parameter("w", {1});
  Op("test_broken_gradient", {"w"}, "a");
  Op("test_exp", {"a"}, "loss");
  EXPECT_THAT(ErrorOf<NotFound>("loss"), HasSubstr("test_broken_gradient_grad"));
}

}  // namespace
}  // namespace headrace
