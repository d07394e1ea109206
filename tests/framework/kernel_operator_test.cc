#include "framework/kernel_operator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "test_ops.h"

namespace headrace {
namespace {

using test::MakeTensor;
using test::Values;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

std::unique_ptr<OperatorBase> Make(OpDesc op) {
  OpRegistry::Check(op);
  return OpRegistry::Create(op);
}

OpDesc ScaleOp(double factor) { return {"test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"factor", factor}}}; }

void Set(Scope* scope, const std::string& name, LoDTensor value) {
  *scope->Var(name)->GetMutable<LoDTensor>() = std::move(value);
}

const LoDTensor& Get(const Scope& scope, const std::string& name) { return scope.GetVar(name).Get<LoDTensor>(); }

TEST(HashedName, OfAnArrayEndsWithItsText) {
  char text[16] = "X0";
  const char constant[8] = "X0";
  const std::string string = "X0";
  const HashedName literal = "X0";
  for (const HashedName name : {HashedName(text), HashedName(constant), HashedName(string)}) {
    EXPECT_EQ(name, literal);
    EXPECT_EQ(name.ToString(), "X0");
  }
  EXPECT_TRUE(HashedName("").empty());
}

TEST(KernelOperator, InfersShapeAndRunsTheKernelOfTheDtype) {
  Scope scope;
  scope.Var("y");
  Set(&scope, "x", MakeTensor({2, 1}, {1, 2}));
  const auto op = Make(ScaleOp(3));
  op->Run(scope, {});
  EXPECT_EQ(Get(scope, "y").dims(), (DDim{2, 1}));
  EXPECT_EQ(Values(Get(scope, "y")), (std::vector<float>{3, 6}));

  LoDTensor doubles;
  *doubles.Resize({1}).mutable_data<double>() = 0.5;
  Set(&scope, "x", doubles);
  op->Run(scope, {});
  EXPECT_EQ(*Get(scope, "y").data<double>(), 1.5);
}

TEST(KernelOperator, GivesAScalarResultItsMemory) {
  Scope scope;
  scope.Var("y");
  Set(&scope, "x", MakeTensor({}, {4}));
  Make(ScaleOp(2))->Run(scope, {});
  EXPECT_EQ(Get(scope, "y").numel(), 1);
  EXPECT_EQ(Get(scope, "y").nbytes(), sizeof(float));
  EXPECT_GE(Get(scope, "y").allocation()->size(), sizeof(float));
  EXPECT_EQ(Values(Get(scope, "y")), (std::vector<float>{8}));
}

TEST(KernelOperator, SharesTheLoD) {
  Scope scope;
  scope.Var("y");
  LoDTensor x = MakeTensor({3}, {1, 2, 3});
  x.set_lod({{0, 1, 3}});
  Set(&scope, "x", x);
  Make(ScaleOp(1))->Run(scope, {});
  EXPECT_EQ(Get(scope, "y").lod(), x.lod());
}

// test_mean gives its result no LoD; what a former run has left there is not the LoD of this result.
TEST(KernelOperator, DropsTheLoDThatTheResultDoesNotHave) {
  Scope scope;
  Set(&scope, "x", MakeTensor({3}, {1, 2, 3}));
  LoDTensor old = MakeTensor({2}, {1, 2});
  old.set_lod({{0, 1, 2}});
  Set(&scope, "y", old);
  Make({"test_mean", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}})->Run(scope, {});
  EXPECT_TRUE(Get(scope, "y").lod().empty());
}

TEST(KernelOperator, MissingKernelNamesWhatThereIs) {
  Scope scope;
  scope.Var("y");
  LoDTensor x;
  x.Resize({1}).mutable_data<int32_t>();
  Set(&scope, "x", x);
  try {
    Make(ScaleOp(1))->Run(scope, {});
    FAIL() << "nothing was thrown";
  } catch (const Unimplemented& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(HasSubstr("test_scale"), HasSubstr("int32"), HasSubstr("float32, float64")));
  }
}

TEST(KernelOperator, MissingVariableIsNamed) {
  Scope scope;
  Set(&scope, "x", MakeTensor({1}, {1}));
  try {
    Make(ScaleOp(1))->Run(scope, {});
    FAIL() << "nothing was thrown";
  } catch (const NotFound& error) {
    EXPECT_EQ(error.variable(), "y");
    EXPECT_EQ(error.op_type(), "test_scale");
    EXPECT_THAT(error.what(), HasSubstr("'Out'"));
  }
}

TEST(KernelOperator, InputNotWrittenYetIsNamed) {
  for (const bool has_type : {false, true}) {
    Scope scope;
    scope.Var("y");
    Variable* x = scope.Var("x");
    if (has_type) {
      x->GetMutable<LoDTensor>();
    }
    try {
      Make(ScaleOp(1))->Run(scope, {});
      FAIL() << "nothing was thrown";
    } catch (const FailedPrecondition& error) {
      EXPECT_EQ(error.variable(), "x");
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("has no value"), HasSubstr("startup program")));
    }
  }
}

TEST(KernelOperator, InputOfAnotherTypeIsRefused) {
  Scope scope;
  scope.Var("y");
  scope.Var("x")->GetMutable<std::string>();
  EXPECT_THROW(Make(ScaleOp(1))->Run(scope, {}), TypeMismatch);
}

template <typename E>
void ExpectAsError(const char* how, const char* message) {
  Scope scope;
  Set(&scope, "x", MakeTensor({1}, {1}));
  try {
    Make({"test_fail", {{"X", {"x"}}}, {}, {{"how", std::string(how)}}})->Run(scope, {});
    ADD_FAILURE() << how << ": nothing was thrown";
  } catch (const E& error) {
    EXPECT_EQ(error.op_type(), "test_fail");
    EXPECT_EQ(error.variable(), "");  // the message names none
    EXPECT_THAT(error.what(), AllOf(HasSubstr(message), EndsWith("[operator 'test_fail' (X=[x])]")));
  }
}

TEST(KernelOperator, WhatTheStandardLibraryThrowsIsAnErrorOfTheOperator) {
  ExpectAsError<ResourceExhausted>("memory", "out of memory");
  ExpectAsError<ResourceExhausted>("length", "longer than it can be: vector::reserve");
  ExpectAsError<InvalidArgument>("argument", "stoi");
  ExpectAsError<InvalidArgument>("domain", "sqrt");
  ExpectAsError<OutOfRange>("range", "vector::at");
  ExpectAsError<IoError>("system", "open: No such file");
  ExpectAsError<FailedPrecondition>("logic", "no such state");
  ExpectAsError<FailedPrecondition>("runtime", "the device is busy");
  ExpectAsError<FailedPrecondition>("other", "bad optional access");
}

int inferences = 0;  // of test_counted

HEADRACE_REGISTER_OP(test_counted)
    .Input("X", "")
    .Output("Out", "")
    .InferShape([](InferShapeContext& ctx) {
      ++inferences;
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>([](const ExecutionContext& ctx) {
      const LoDTensor& x = ctx.Input("X");
      std::copy_n(x.data<float>(), x.numel(), ctx.Output("Out")->mutable_data<float>());
    })
    .Kernel<double>([](const ExecutionContext& ctx) { ctx.Output("Out")->mutable_data<double>(); });

TEST(KernelOperator, InfersShapesAgainOnlyWhenWhatTheyDependOnHasChanged) {
  Scope scope;
  scope.Var("y");
  LoDTensor x = MakeTensor({3}, {1, 2, 3});
  x.set_lod({{0, 1, 3}});
  Set(&scope, "x", x);
  const auto op = Make({"test_counted", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}});
  inferences = 0;
  const auto infers = [&] {
    const int before = inferences;
    op->Run(scope, {});
    return inferences > before;
  };
  EXPECT_TRUE(infers());
  EXPECT_FALSE(infers());

  // Other sequences of the same depth are passed on all the same.
  x.set_lod({{0, 2, 3}});
  Set(&scope, "x", x);
  EXPECT_FALSE(infers());
  EXPECT_EQ(Get(scope, "y").lod(), (LoD{{0, 2, 3}}));
  x.set_lod({});
  Set(&scope, "x", x);
  EXPECT_TRUE(infers());
  EXPECT_TRUE(Get(scope, "y").lod().empty());

  Set(&scope, "x", MakeTensor({2}, {4, 5}));
  EXPECT_TRUE(infers());
  EXPECT_EQ(Values(Get(scope, "y")), (std::vector<float>{4, 5}));
  // Another operator may have used the result's variable.
  Set(&scope, "y", MakeTensor({4}, {0, 0, 0, 0}));
  EXPECT_TRUE(infers());
  EXPECT_EQ(Values(Get(scope, "y")), (std::vector<float>{4, 5}));
  LoDTensor doubles;
  doubles.Resize({2}).mutable_data<double>();
  Set(&scope, "x", doubles);
  EXPECT_TRUE(infers());
  EXPECT_EQ(Get(scope, "y").dtype(), DataType::kFloat64);
  scope.Var("another");
  EXPECT_TRUE(infers());
}

TEST(KernelOperator, FailedInferenceIsTriedAgain) {
  Scope scope;
  scope.Var("out");
  Set(&scope, "x", MakeTensor({2}, {1, 2}));
  Set(&scope, "y", MakeTensor({1}, {3}));
  const auto op = Make({"test_mul", {{"X", {"x"}}, {"Y", {"y"}}}, {{"Out", {"out"}}}, {}});
  EXPECT_THROW(op->Run(scope, {}), InvalidArgument);
  EXPECT_THROW(op->Run(scope, {}), InvalidArgument);
  Set(&scope, "y", MakeTensor({2}, {3, 4}));
  op->Run(scope, {});
  EXPECT_EQ(Values(Get(scope, "out")), (std::vector<float>{3, 8}));
}

TEST(KernelOperator, FindsVariablesAgainWhenTheScopeHasChanged) {
  Scope scope;
  scope.Var("y");
  Set(&scope, "x", MakeTensor({1}, {1}));
  const auto op = Make(ScaleOp(2));
  op->Run(scope, {});
  scope.EraseVars({"x", "y"});
  EXPECT_THROW(op->Run(scope, {}), NotFound);
  scope.Var("y");
  Set(&scope, "x", MakeTensor({1}, {5}));
  op->Run(scope, {});
  EXPECT_EQ(Values(Get(scope, "y")), (std::vector<float>{10}));
}

TEST(KernelOperator, FindsVariablesAgainInAScopeAtTheSameAddress) {
  std::optional<Scope> scope;
  const auto op = Make(ScaleOp(2));
  for (const float value : {1.0F, 2.0F}) {
    scope.emplace();
    scope->Var("y");
    Set(&*scope, "x", MakeTensor({1}, {value}));
    op->Run(*scope, {});
    EXPECT_EQ(Values(Get(*scope, "y")), (std::vector<float>{2 * value}));
  }
}

TEST(KernelOperator, NewInnerVariableHidesTheOneFoundBefore) {
  Scope scope;
  scope.Var("y");
  Set(&scope, "x", MakeTensor({1}, {1}));
  Scope& kid = scope.NewScope();
  const auto op = Make(ScaleOp(2));
  op->Run(kid, {});
  Set(&kid, "x", MakeTensor({1}, {7}));
  op->Run(kid, {});
  EXPECT_EQ(Values(Get(scope, "y")), (std::vector<float>{14}));
}

OpDesc InPlaceSgd() { return {"test_sgd", {{"Param", {"w"}}, {"Grad", {"g"}}}, {{"ParamOut", {"w"}}}, {}}; }

TEST(KernelOperator, UpdatesInPlaceWhereTheMemoryIsTheVariablesAlone) {
  Scope scope;
  Set(&scope, "w", MakeTensor({2}, {5, 6}));
  Set(&scope, "g", MakeTensor({2}, {1, 1}));
  const void* memory = Get(scope, "w").raw_data();
  Make(InPlaceSgd())->Run(scope, {});
  EXPECT_EQ(Get(scope, "w").raw_data(), memory);
  EXPECT_EQ(Values(Get(scope, "w")), (std::vector<float>{4, 5}));
}

TEST(KernelOperator, UpdateInPlaceOfSharedMemoryCopiesFirst) {
  Scope scope;
  const LoDTensor kept = MakeTensor({2}, {5, 6});
  Set(&scope, "w", kept);
  Set(&scope, "g", MakeTensor({2}, {1, 1}));
  Make(InPlaceSgd())->Run(scope, {});
  EXPECT_EQ(Values(Get(scope, "w")), (std::vector<float>{4, 5}));
  EXPECT_EQ(Values(kept), (std::vector<float>{5, 6}));
}

TEST(KernelOperator, UpdateInPlaceOfForeignMemoryCopiesFirst) {
  float memory[2] = {5, 6};
  Scope scope;
  Set(&scope, "w", LoDTensor(Tensor(Allocation::Foreign(memory, sizeof(memory), nullptr), DataType::kFloat32, {2})));
  Set(&scope, "g", MakeTensor({2}, {1, 1}));
  Make(InPlaceSgd())->Run(scope, {});
  EXPECT_EQ(Values(Get(scope, "w")), (std::vector<float>{4, 5}));
  EXPECT_EQ(memory[0], 5);
}

HEADRACE_REGISTER_OP(test_shrink)
    .Input("X", "")
    .Output("Out", "")
    .InPlace("Out", "X")
    .InferShape([](InferShapeContext& ctx) { ctx.SetOutputDim("Out", {1}); })
    .Kernel<float>([](const ExecutionContext&) { FAIL() << "the kernel must not run"; });

TEST(KernelOperator, ResultOfAnotherSizeCannotReplaceItsInput) {
  Scope scope;
  Set(&scope, "x", MakeTensor({3}, {1, 2, 3}));
  try {
    Make({"test_shrink", {{"X", {"x"}}}, {{"Out", {"x"}}}, {}})->Run(scope, {});
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("'x'"), HasSubstr("[3]"), HasSubstr("[1]")));
  }
  EXPECT_EQ(Values(Get(scope, "x")), (std::vector<float>{1, 2, 3}));
}

TEST(OperatorBase, SlotOfOneMustHoldOne) {
  class Probe : public OperatorBase {
   public:
    using OperatorBase::OperatorBase;

   private:
    void RunImpl(const Scope&, const Place&) override { (void)Input("X"); }
  };
  Probe probe({"probe", {{"X", {"a", "b"}}}, {}, {}});
  EXPECT_THROW(probe.Run(Scope(), {}), InvalidArgument);
}

}  // namespace
}  // namespace headrace
