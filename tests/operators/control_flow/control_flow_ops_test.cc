#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "framework/backward.h"
#include "framework/errors.h"
#include "framework/executor.h"
#include "framework/program_desc.h"
#include "framework/scope.h"
#include "framework/selected_rows.h"
#include "framework/wait_hook.h"
#include "operators/control_flow/array_gradient.h"
#include "tests/operators/net.h"

namespace headrace {
namespace {

using testing::HasSubstr;

int32_t Number(DataType type) { return static_cast<int32_t>(type); }

void Fill(BlockDesc* block, const std::string& name, double value, DataType type = DataType::kInt64,
          int64_t elements = 1) {
  block->Append("fill_constant", {}, {{"Out", {name}}},
                {{"shape", std::vector<int64_t>{elements}}, {"dtype", Number(type)}, {"value", value}});
}

// i = 0; while (i < n) { ++i; }, with the block of the loop.
BlockDesc& BuildLoop(ProgramDesc* program, int64_t n) {
  BlockDesc& root = program->block(0);
  Fill(&root, "i", 0);
  Fill(&root, "n", static_cast<double>(n));
  root.Append("less_than", {{"X", {"i"}}, {"Y", {"n"}}}, {{"Out", {"cond"}}});
  BlockDesc& body = program->AppendBlock(0);
  body.Append("increment", {{"X", {"i"}}}, {{"Out", {"i"}}}, {{"step", 1.0}});
  body.Append("less_than", {{"X", {"i"}}, {"Y", {"n"}}}, {{"Out", {"cond"}}});
  return body;
}

void AppendWhile(BlockDesc* block, int32_t body) {
  block->Append("while", {{"X", {"i", "n"}}, {"Condition", {"cond"}}}, {{"Out", {"i", "cond"}}},
                {{"sub_block", BlockRef{body}}});
}

void ExpectRefused(const ProgramDesc& program, const std::string& text) {
  try {
    (void)Executor().Prepare(program);
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(While, RunsItsBlockAsLongAsTheConditionHolds) {
  ProgramDesc program;
  BuildLoop(&program, 5);
  AppendWhile(&program.block(0), 1);
  Scope scope;
  std::vector<LoDTensor> fetched;
  Executor().Run(*Executor().Prepare(program, {"i"}), &scope, {}, &fetched);
  EXPECT_EQ(*fetched[0].data<int64_t>(), 5);
}

TEST(While, ABlockCannotRunItself) {
  ProgramDesc program;
  BlockDesc& body = BuildLoop(&program, 5);
  AppendWhile(&body, 1);
  AppendWhile(&program.block(0), 1);
  ExpectRefused(program, "belongs to two operators");

  ProgramDesc itself;
  BuildLoop(&itself, 5);
  AppendWhile(&itself.block(0), 0);
  ExpectRefused(itself, "block 0 lies within block -1; an operator of block 0 cannot run it [operator 'while'");
}

TEST(While, ABlockBelongsToOneOperator) {
  ProgramDesc program;
  BuildLoop(&program, 5);
  AppendWhile(&program.block(0), 1);
  AppendWhile(&program.block(0), 1);
  ExpectRefused(program, "block 1 belongs to two operators");
}

TEST(While, AnEndlessLoopEndsWhenTheHookThrows) {
  ProgramDesc program;
  BlockDesc& body = BuildLoop(&program, 5);
  Fill(&body, "i", 0);
  body.Append("less_than", {{"X", {"i"}}, {"Y", {"n"}}}, {{"Out", {"cond"}}});
  AppendWhile(&program.block(0), 1);
  int steps = 0;
  const ScopedWaitHook hook([&steps] { HR_ENFORCE(++steps < 100, OutOfRange, "enough"); },
                            std::chrono::milliseconds(0));
  Scope scope;
  EXPECT_THROW(Executor().Run(program, &scope), OutOfRange);
  EXPECT_EQ(steps, 100);
}

TEST(While, TheConditionIsASingleBool) {
  ProgramDesc program;
  BuildLoop(&program, 5);
  Fill(&program.block(0), "cond", 1, DataType::kBool, 2);
  EXPECT_THROW(AppendWhile(&program.block(0), 1), InvalidArgument);
  Fill(&program.block(0), "cond", 1, DataType::kInt64, 1);
  EXPECT_THROW(AppendWhile(&program.block(0), 1), TypeMismatch);
  Fill(&program.block(0), "cond", 1, DataType::kBool, 2);
  program.block(0).MutableVar("cond").tensor.dims = {-1};
  AppendWhile(&program.block(0), 1);
  Scope scope;
  EXPECT_THROW(Executor().Run(program, &scope), InvalidArgument);
}

// conditional_block operators within one another, the innermost with no operators.
ProgramDesc Nested(int32_t depth) {
  ProgramDesc program;
  Fill(&program.block(0), "cond", 1, DataType::kBool);
  for (int32_t outer = 0; outer < depth; ++outer) {
    program.AppendBlock(outer);
    program.block(static_cast<size_t>(outer))
        .Append("conditional_block", {{"Cond", {"cond"}}}, {},
                {{"sub_block", BlockRef{outer + 1}}, {"is_scalar_condition", true}});
  }
  return program;
}

TEST(ConditionalBlock, ItsConditionsAreSingleBools) {
  ProgramDesc program = Nested(1);
  Fill(&program.block(0), "cond", 1, DataType::kInt64);
  const OpDesc& op = *program.block(0).ops()[1];
  EXPECT_THROW(program.block(0).Append(op.type, op.inputs, op.outputs, op.attrs), TypeMismatch);
  Fill(&program.block(0), "cond", 1, DataType::kBool, 2);
  EXPECT_THROW(program.block(0).Append(op.type, op.inputs, op.outputs, op.attrs), InvalidArgument);
}

TEST(ConditionalBlock, DepthIsLimited) {
  Scope scope;
  EXPECT_NO_THROW(Executor().Run(Nested(64), &scope));
  ExpectRefused(Nested(65), "64 blocks deep");
  ExpectRefused(Nested(1000), "64 blocks deep");
}

TEST(ConditionalBlock, NothingInItOutlivesTheRun) {
  ProgramDesc program = Nested(1);
  Fill(&program.block(1), "w", 1);
  EXPECT_NO_THROW((void)Executor().Prepare(program));
  program.block(1).MutableVar("w").persistable = true;
  ExpectRefused(program, "variable 'w' of block 1");
}

class ArrayTest : public testing::TestWithParam<double> {};

TEST_P(ArrayTest, PlacesOutsideOfTheRangeAreRefused) {
  ProgramDesc program;
  BlockDesc& root = program.block(0);
  root.Var("array").kind = VarKind::kLoDTensorArray;
  Fill(&root, "x", 1, DataType::kFloat32);
  Fill(&root, "at", GetParam());
  root.Append("write_to_array", {{"X", {"x"}}, {"I", {"at"}}}, {{"Out", {"array"}}});
  Scope scope;
  EXPECT_THROW(Executor().Run(program, &scope), OutOfRange);
}
INSTANTIATE_TEST_SUITE_P(Places, ArrayTest, testing::Values(-1.0, 1048576.0, 4611686018427387904.0));

// w and 3w side by side; later, all of it is written to `place` of the same array.
ProgramDesc JoinedThenWritten(double place, bool has_index) {
  ProgramDesc program;
  BlockDesc& root = program.block(0);
  VarDesc& w = root.Var("w");
  w.tensor.dims = {2};
  w.persistable = w.is_parameter = true;
  root.Var("factors").tensor.dims = {4};
  root.Var("array").kind = VarKind::kLoDTensorArray;
  Fill(&root, "zero", 0);
  Fill(&root, "one", 1);
  Fill(&root, "place", place);
  root.Append("scale", {{"X", {"w"}}}, {{"Out", {"w3"}}}, {{"scale", 3.0F}});
  root.Append("write_to_array", {{"X", {"w"}}, {"I", {"zero"}}}, {{"Out", {"array"}}});
  root.Append("write_to_array", {{"X", {"w3"}}, {"I", {"one"}}}, {{"Out", {"array"}}});
  VarNameMap outputs{{"Out", {"joined"}}};
  if (has_index) {
    outputs["OutIndex"] = {"extents"};
  }
  root.Append("tensor_array_to_tensor", {{"X", {"array"}}}, outputs);
  root.Append("write_to_array", {{"X", {"joined"}}, {"I", {"place"}}}, {{"Out", {"array"}}});
  root.Append("elementwise_mul", {{"X", {"joined"}}, {"Y", {"factors"}}}, {{"Out", {"product"}}});
  root.Append("reduce_sum", {{"X", {"product"}}}, {{"Out", {"loss"}}}, {{"reduce_all", true}});
  AppendBackward(&program, "loss");
  return program;
}

std::vector<float> GradientOfJoined(const ProgramDesc& program) {
  Scope scope;
  LoDTensor* w = scope.Var("w")->GetMutable<LoDTensor>();
  w->Resize({2});
  std::fill_n(w->mutable_data<float>(), 2, 1.0F);
  LoDTensor factors;
  factors.Resize({4});
  std::iota(factors.mutable_data<float>(), factors.mutable_data<float>() + 4, 1.0F);
  std::vector<LoDTensor> fetched;
  Executor().Run(*Executor().Prepare(program, {"w@GRAD"}), &scope, {{"factors", factors}}, &fetched);
  return {fetched[0].data<float>(), fetched[0].data<float>() + fetched[0].numel()};
}

TEST(TensorArrayToTensor, TheGradientIsOfTheArrayAsItWas) {
  for (const double place : {0.0, 1.0, 2.0}) {
    EXPECT_EQ(GradientOfJoined(JoinedThenWritten(place, true)), (std::vector<float>{1 + 3 * 3, 2 + 3 * 4})) << place;
  }
}

TEST(TensorArrayToTensor, WithoutOutIndexAnArrayThatNoLongerFitsIsRefused) {
  for (const double place : {0.0, 2.0}) {
    EXPECT_THROW(GradientOfJoined(JoinedThenWritten(place, false)), InvalidArgument) << place;
  }
}

TEST(AppendRows, TheStepsMustHaveOneDtype) {
  SelectedRows floats;
  *floats.mutable_rows() = {0};
  floats.set_height(2);
  floats.mutable_value()->Resize({1, 3}).mutable_data<float>();
  SelectedRows doubles;
  *doubles.mutable_rows() = {1};
  doubles.set_height(2);
  doubles.mutable_value()->Resize({1, 3}).mutable_data<double>();
  EXPECT_THROW(ops::AppendRows(doubles, &floats), InvalidArgument);
  EXPECT_EQ(floats.rows().size(), 1U);
}

}  // namespace
}  // namespace headrace
