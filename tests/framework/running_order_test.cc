#include "framework/running_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "framework/executor.h"
#include "framework/op_registry.h"
#include "test_ops.h"

namespace headrace {
namespace {

using test::Append;
using test::AppendBlock;
using test::BuildCounter;
using test::Declare;
using test::DeclareParameter;
using test::Floats;
using test::MakeTensor;
using test::Put;
using test::Values;

// A program that counts its runs before, in the text, it takes the data.
class RunningOrderTest : public testing::Test {
 protected:
  RunningOrderTest() {
    BuildCounter(&program_);
    Declare(&program_, "r").kind = VarKind::kRaw;
    program_.block(0).MutableVar("r").persistable = true;
    Append(&program_, "test_take", {{"Reader", {"r"}}}, {{"Out", {"x"}}});
    Put(&scope_, "w", MakeTensor({1}, {0}));
    feed_ = scope_.Var("r")->GetMutable<test::Feed>();
  }

  ProgramDesc program_;
  Scope scope_;
  test::Feed* feed_;
};

TEST_F(RunningOrderTest, EndOfDataLeavesPersistablesUntouched) {
  const auto prepared = Executor().Prepare(program_);
  feed_->push_back(MakeTensor({1}, {1}));
  Executor().Run(*prepared, &scope_);
  try {
    Executor().Run(*prepared, &scope_);
    FAIL() << "nothing was thrown";
  } catch (const EndOfData& error) {
    EXPECT_EQ(error.op_type(), "test_take");
  }
  EXPECT_EQ(Values(scope_.GetVar("w").Get<LoDTensor>()), Floats({1}));
  feed_->push_back(MakeTensor({1}, {1}));
  EXPECT_NO_THROW(Executor().Run(*prepared, &scope_));
}

TEST_F(RunningOrderTest, WhatFeedsTheReadingOperatorRunsBeforeIt) {
  // The reader is made from w by the first operator; the second overwrites what it read.
  ProgramDesc program;
  DeclareParameter(&program, "w", {1});
  Declare(&program, "r").kind = VarKind::kRaw;
  Append(&program, "test_feed_from", {{"X", {"w"}}}, {{"Out", {"r"}}});
  Append(&program, "test_increment", {{"X", {"w"}}}, {{"Out", {"w"}}});
  Append(&program, "test_take", {{"Reader", {"r"}}}, {{"Out", {"x"}}});
  Put(&scope_, "w", MakeTensor({1}, {41}));
  std::vector<LoDTensor> fetched;
  Executor().Run(*Executor().Prepare(program, {"x"}), &scope_, {}, &fetched);
  EXPECT_EQ(Values(fetched[0]), Floats({41}));
}

TEST_F(RunningOrderTest, BlockThatFeedsTheReadingOperatorRunsBeforeIt) {
  // Only the operator within the block says that it writes the reader.
  ProgramDesc program;
  DeclareParameter(&program, "w", {1});
  Declare(&program, "r").kind = VarKind::kRaw;
  AppendBlock(&program).AppendOp({"test_feed_from", {{"X", {"w"}}}, {{"Out", {"r"}}}, {}});
  Append(&program, "test_take", {{"Reader", {"r"}}}, {{"Out", {"x"}}});
  Put(&scope_, "w", MakeTensor({1}, {41}));
  Scope scope(&scope_);
  std::vector<LoDTensor> fetched;
  Executor().Run(*Executor().Prepare(program, {"x"}), &scope, {}, &fetched);
  EXPECT_EQ(Values(fetched[0]), Floats({41}));
}

class FeedFromOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    LoDTensor copy;
    copy.CopyFrom(scope.GetVar(Input("X")).Get<LoDTensor>());
    scope.GetVar(Output("Out")).GetMutable<test::Feed>()->push_back(copy);
  }
};
HEADRACE_REGISTER_OP(test_feed_from).Input("X", "").Output("Out", "").Operator<FeedFromOp>();

TEST_F(RunningOrderTest, OperatorThatUsesTheOldValueOfWhatIsReadStaysBefore) {
  // y = 2 · x with the x of before, then x is read anew.
  ProgramDesc program;
  Declare(&program, "x", {1}).persistable = true;
  Declare(&program, "r").kind = VarKind::kRaw;
  program.block(0).MutableVar("r").persistable = true;
  Append(&program, "test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"factor", 2.0F}});
  Append(&program, "test_take", {{"Reader", {"r"}}}, {{"Out", {"x"}}});
  Put(&scope_, "x", MakeTensor({1}, {3}));
  feed_->push_back(MakeTensor({1}, {50}));
  std::vector<LoDTensor> fetched;
  Executor().Run(*Executor().Prepare(program, {"y", "x"}), &scope_, {}, &fetched);
  EXPECT_EQ(Values(fetched[0]), Floats({6}));
  EXPECT_EQ(Values(fetched[1]), Floats({50}));
}

}  // namespace
}  // namespace headrace
