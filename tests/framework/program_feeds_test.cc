#include "framework/program_feeds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "framework/executor.h"
#include "test_ops.h"

namespace headrace {
namespace {

using test::Append;
using test::BuildDouble;
using test::Declare;
using test::DeclareParameter;
using test::Floats;
using test::MakeTensor;
using test::Values;
using testing::HasSubstr;

class ProgramFeedsTest : public testing::Test {
 protected:
  ProgramFeedsTest() { BuildDouble(&program_, {-1, 2}); }

  template <typename E>
  std::string ErrorOf(const std::string& name, const LoDTensor& value) {
    const auto prepared = Executor().Prepare(program_);
    try {
      Executor().Run(*prepared, &scope_, {{name, value}});
    } catch (const E& error) {
      EXPECT_EQ(error.variable(), name);
      return error.what();
    }
    ADD_FAILURE() << "the expected error was not thrown";
    return {};
  }

  ProgramDesc program_;
  Scope scope_;
};

TEST_F(ProgramFeedsTest, UnknownDimensionTakesAnyExtent) {
  const auto prepared = Executor().Prepare(program_);
  for (const int64_t rows : {3, 0, 1}) {
    EXPECT_NO_THROW(Executor().Run(*prepared, &scope_,
                                   {{"x", MakeTensor({rows, 2}, std::vector<float>(static_cast<size_t>(rows) * 2))}}));
  }
}

TEST_F(ProgramFeedsTest, OtherDimsAreTaken) {
  const auto prepared = Executor().Prepare(program_, {"y"});
  for (const DDim& dims : {DDim{1, 3}, DDim{2, 2, 2}, DDim{5}}) {
    const std::vector<float> values(static_cast<size_t>(Product(dims)), 2);
    std::vector<LoDTensor> fetched;
    Executor().Run(*prepared, &scope_, {{"x", MakeTensor(dims, values)}}, &fetched);
    EXPECT_EQ(fetched[0].dims(), dims);
    EXPECT_EQ(Values(fetched[0])[0], 4);
  }
}

TEST_F(ProgramFeedsTest, WrongShapeIsRefusedWithBothShapesIfTheVariableAsksForIt) {
  program_.block(0).Var("x").attrs["need_check_feed"] = true;
  EXPECT_THAT(ErrorOf<InvalidArgument>("x", MakeTensor({1, 3}, {1, 2, 3})),
              testing::AllOf(HasSubstr("[-1, 2]"), HasSubstr("[1, 3]")));
}

TEST_F(ProgramFeedsTest, WrongDtypeIsRefusedWithBothTypes) {
  LoDTensor doubles;
  doubles.Resize({1, 2}).mutable_data<double>();
  EXPECT_THAT(ErrorOf<TypeMismatch>("x", doubles), testing::AllOf(HasSubstr("float32"), HasSubstr("float64")));
  LoDTensor ints;
  ints.Resize({1, 2}).mutable_data<int64_t>();
  program_.block(0).Var("x").attrs["need_check_feed"] = true;
  EXPECT_THAT(ErrorOf<TypeMismatch>("x", ints), testing::AllOf(HasSubstr("float32"), HasSubstr("int64")));
}

TEST_F(ProgramFeedsTest, WhatPersistsMayBeFedAsAnythingIfItIsData) {
  VarDesc& x = program_.block(0).Var("x");
  x.persistable = true;
  EXPECT_THAT(ErrorOf<InvalidArgument>("x", MakeTensor({1, 3}, {1, 2, 3})), HasSubstr("[1, 3]"));
  x.attrs["is_data"] = true;
  const auto prepared = Executor().Prepare(program_, {"y"});
  std::vector<LoDTensor> fetched;
  Executor().Run(*prepared, &scope_, {{"x", MakeTensor({1, 3}, {1, 2, 3})}}, &fetched);
  EXPECT_EQ(Values(fetched[0])[2], 6);
  x.is_parameter = true;
  EXPECT_THAT(ErrorOf<InvalidArgument>("x", MakeTensor({1, 3}, {1, 2, 3})), HasSubstr("[1, 3]"));
}

TEST_F(ProgramFeedsTest, AnOperatorsErrorSaysHowTheFeedDiffersFromItsDeclaration) {
  LoDTensor ints;
  ints.Resize({1, 3}).mutable_data<int64_t>();
  const auto prepared = Executor().Prepare(program_);
  try {
    Executor().Run(*prepared, &scope_, {{"x", ints}});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("'x' is declared as float32 [-1, 2], but was given as int64 [1, 3]"));
    EXPECT_NE(error.op_type(), "");
  }
}

TEST_F(ProgramFeedsTest, UndeclaredVariableIsNotFound) { ErrorOf<NotFound>("nothing", MakeTensor({1}, {1})); }

TEST_F(ProgramFeedsTest, EmptyTensorIsRefused) { ErrorOf<InvalidArgument>("x", LoDTensor()); }

TEST_F(ProgramFeedsTest, WhatIsRefusedIsTakenOnceItIsRight) {
  const auto prepared = Executor().Prepare(program_, {"y"});
  EXPECT_THROW(Executor().Run(*prepared, &scope_, {{"x", LoDTensor()}}), InvalidArgument);
  std::vector<LoDTensor> fetched;
  Executor().Run(*prepared, &scope_, {{"x", MakeTensor({1, 2}, {1, 2})}}, &fetched);
  EXPECT_EQ(Values(fetched[0]), Floats({2, 4}));
}

TEST_F(ProgramFeedsTest, ReaderCannotBeFed) {
  Declare(&program_, "r").kind = VarKind::kReader;
  ErrorOf<TypeMismatch>("r", MakeTensor({1}, {1}));
}

TEST_F(ProgramFeedsTest, LoDMayHaveAnyDepthAndMustFitTheRows) {
  LoDTensor value = MakeTensor({3, 2}, std::vector<float>(6));
  const auto run = [&] { Executor().Run(*Executor().Prepare(program_), &scope_, {{"x", value}}); };
  for (const int level : {0, 1}) {
    program_.block(0).MutableVar("x").tensor.lod_level = level;
    value.set_lod({{0, 3}});
    EXPECT_NO_THROW(run());
    value.set_lod({{0, 2}});
    ErrorOf<InvalidArgument>("x", value);
  }
  for (const LoD& lod : {LoD(), LoD{{0, 1}, {0, 3}}}) {
    value.set_lod(lod);
    EXPECT_NO_THROW(run());
  }
}

TEST_F(ProgramFeedsTest, ForgottenFeedIsNoticedEvenAfterARunThatHadIt) {
  const auto prepared = Executor().Prepare(program_);
  Executor().Run(*prepared, &scope_, {{"x", MakeTensor({1, 2}, {1, 2})}});
  try {
    Executor().Run(*prepared, &scope_);
    FAIL() << "nothing was thrown";
  } catch (const FailedPrecondition& error) {
    EXPECT_EQ(error.variable(), "x");
  }
}

TEST_F(ProgramFeedsTest, MemoryIsSharedDuringTheRunAndReleasedAfterIt) {
  int released = 0;
  float memory[2] = {1, 2};
  const auto prepared = Executor().Prepare(program_, {"y"});
  std::vector<LoDTensor> fetched;
  {
    LoDTensor foreign(Tensor(Allocation::Foreign(memory, sizeof(memory), [&released](void*) { ++released; }),
                             DataType::kFloat32, {1, 2}));
    Executor().Run(*prepared, &scope_, {{"x", foreign}}, &fetched);
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
  EXPECT_EQ(Values(fetched[0]), Floats({2, 4}));
}

TEST(ProgramFeeds, WhatIsFedToAPersistableIsCopied) {
  ProgramDesc program;
  DeclareParameter(&program, "w", {2});
  Append(&program, "test_scale", {{"X", {"w"}}}, {{"Out", {"y"}}});
  float memory[2] = {1, 2};
  const LoDTensor fed(Tensor(Allocation::Foreign(memory, sizeof(memory), nullptr), DataType::kFloat32, {2}));
  Scope scope;
  const Executor executor;
  const auto prepared = executor.Prepare(program, {"y"});
  std::vector<LoDTensor> fetched;
  executor.Run(*prepared, &scope, {{"w", fed}}, &fetched);
  EXPECT_EQ(Values(fetched[0]), Floats({1, 2}));
  memory[0] = 99;
  executor.Run(*prepared, &scope, {}, &fetched);
  EXPECT_EQ(Values(fetched[0]), Floats({1, 2}));
}

TEST(ProgramFeeds, AFedVariableMayHoldSomethingElseAfterTheRun) {
  ProgramDesc program;
  Declare(&program, "x", {1});
  Append(&program, "test_replace", {{"X", {"x"}}}, {});
  Scope scope;
  const Executor executor;
  const auto prepared = executor.Prepare(program);
  EXPECT_NO_THROW(executor.Run(*prepared, &scope, {{"x", MakeTensor({1}, {1})}}));
}

}  // namespace
}  // namespace headrace
