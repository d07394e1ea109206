#include "framework/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <thread>

#include "framework/op_registry.h"
#include "framework/wait_hook.h"
#include "test_ops.h"

namespace headrace {
namespace {

using test::Append;
using test::AppendBlock;
using test::BuildCounter;
using test::BuildDouble;
using test::Declare;
using test::DeclareParameter;
using test::Floats;
using test::MakeTensor;
using test::Put;
using test::Values;
using testing::HasSubstr;

TEST(Executor, WhatIsFetchedIsTheCallersAlone) {
  ProgramDesc program;
  BuildDouble(&program);
  const auto prepared = Executor().Prepare(program, {"y", "y"});
  Scope scope;
  for (const float x : {1.0F, 3.0F, 4.0F}) {
    std::vector<LoDTensor> fetched;
    Executor().Run(*prepared, &scope, {{"x", MakeTensor({2}, {x, 5})}}, &fetched);
    ASSERT_EQ(fetched.size(), 2U);
    for (LoDTensor& y : fetched) {
      EXPECT_TRUE(y.IsSoleHolder());
      float* values = y.mutable_data<float>();  // in place
      EXPECT_EQ(values[0], 2 * x);
      values[0] = -1;
      EXPECT_EQ(values[1], 10);
    }
  }
}

TEST(Executor, WhatABlockMakesIsHandedOut) {
  ProgramDesc program;
  Declare(&program, "x", {1});
  BlockDesc& block = AppendBlock(&program);
  program.block(0).Var("y").tensor.dims = {1};
  block.Append("test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"factor", 2.0F}});
  const auto prepared = Executor().Prepare(program, {"y"});
  Scope scope;
  for (int i = 0; i < 2; ++i) {
    std::vector<LoDTensor> fetched;
    Executor().Run(*prepared, &scope, {{"x", MakeTensor({1}, {3})}}, &fetched);
    EXPECT_TRUE(fetched[0].IsSoleHolder());
    EXPECT_EQ(Values(fetched[0]), Floats({6}));
    fetched[0].mutable_data<float>()[0] = -1;  // in place
  }
}

TEST(Executor, AMissingValueIsExplainedByWhatTheVariableIs) {
  ProgramDesc program;
  BuildCounter(&program);
  Scope scope;
  const auto message = [&scope](const ProgramDesc& of) {
    try {
      Executor().Run(of, &scope);
    } catch (const FailedPrecondition& error) {
      return error.message();
    }
    return std::string();
  };
  EXPECT_THAT(message(program), HasSubstr("'w', in input slot 'X' of 'test_increment', has no value in this scope: run "
                                          "the startup program"));
  ProgramDesc other;
  BuildDouble(&other);
  EXPECT_THAT(message(other), HasSubstr("'x', in input slot 'X' of 'test_scale', has no value: it is not fed"));
  other.block(0).MutableVar("x").attrs["is_data"] = true;
  EXPECT_THAT(message(other), HasSubstr("'x', in input slot 'X' of 'test_scale', is not fed"));
}

TEST(Executor, AMisspeltFetchIsNamedWithWhatIsClose) {
  ProgramDesc program;
  BuildDouble(&program);
  program.block(0).Var("loss_of_all");
  EXPECT_THAT([&] { Executor().Prepare(program, {"loss_of_al"}); },
              testing::ThrowsMessage<NotFound>(HasSubstr("; did you mean 'loss_of_all'?")));
}

TEST(Executor, RunsNothingIfALaterOperatorLacksAnInput) {
  ProgramDesc program;
  BuildCounter(&program);
  BuildDouble(&program);
  const auto prepared = Executor().Prepare(program, {"y"});
  Scope scope;
  Put(&scope, "w", MakeTensor({1}, {5}));
  std::vector<LoDTensor> fetched;
  for (int i = 0; i < 2; ++i) {
    try {
      Executor().Run(*prepared, &scope, {}, &fetched);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const FailedPrecondition& error) {
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("'x'"), HasSubstr("'X'"), HasSubstr("test_scale")));
    }
    EXPECT_EQ(Values(scope.GetVar("w").Get<LoDTensor>()), Floats({5}));
    Executor().Run(*prepared, &scope, {{"x", MakeTensor({1}, {1})}}, &fetched);
    EXPECT_EQ(Values(scope.GetVar("w").Get<LoDTensor>()), Floats({6}));
    Put(&scope, "w", MakeTensor({1}, {5}));
  }
}

TEST(Executor, TakesItsNumberOfThreadsFromTheCallerOrTheEnvironment) {
  EXPECT_EQ(unsetenv("CPU_NUM"), 0);
  EXPECT_EQ(Executor().cpu_num(), 1);
  EXPECT_EQ(Executor({}, 3).cpu_num(), 3);
  EXPECT_EQ(setenv("CPU_NUM", "2", 1), 0);
  EXPECT_EQ(Executor().cpu_num(), 2);
  EXPECT_EQ(Executor({}, 3).cpu_num(), 3);
  for (const char* wrong : {"0", "-1", "2 ", "two", "1025", "99999999999999999999"}) {
    EXPECT_EQ(setenv("CPU_NUM", wrong, 1), 0);
    try {
      (void)Executor();
      ADD_FAILURE() << "nothing was thrown for " << wrong;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("CPU_NUM"), HasSubstr("[1, 1024]"), HasSubstr(wrong)));
    }
  }
  EXPECT_EQ(setenv("CPU_NUM", "", 1), 0);
  EXPECT_EQ(Executor().cpu_num(), 1);
  EXPECT_EQ(unsetenv("CPU_NUM"), 0);
  EXPECT_THROW(Executor({}, -1), InvalidArgument);
}

TEST(Executor, RefusesAProgramWhoseVariablesAreOfAnotherKindThanItsOperatorsTake) {
  ProgramDesc program;
  BuildDouble(&program);
  program.block(0).MutableVar("x").kind = VarKind::kSelectedRows;
  try {
    (void)Executor().Prepare(program);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const TypeMismatch& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("'x'"), HasSubstr("SelectedRows"), HasSubstr("test_scale")));
  }
}

TEST(Executor, RefusesAProgramWhoseTypesDoNotFit) {
  ProgramDesc program;
  Declare(&program, "x", {1});
  Declare(&program, "table", {3, 2});
  Declare(&program, "ids", {1, 1}).tensor.dtype = DataType::kInt64;
  Append(&program, "lookup_table", {{"W", {"table"}}, {"Ids", {"ids"}}}, {{"Out", {"out"}}});
  program.block(0).MutableVar("ids").tensor.dtype = DataType::kFloat64;
  try {
    (void)Executor().Prepare(program);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const TypeMismatch& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("Ids"), HasSubstr("int64"), HasSubstr("lookup_table")));
  }
}

TEST(Executor, RunsOperatorsInOrderAndFetches) {
  ProgramDesc program;
  BuildDouble(&program);
  Append(&program, "test_scale", {{"X", {"y"}}}, {{"Out", {"z"}}}, {{"factor", 10.0F}});
  const Executor executor;
  const auto prepared = executor.Prepare(program, {"z", "y"});
  Scope scope;
  std::vector<LoDTensor> fetched;
  executor.Run(*prepared, &scope, {{"x", MakeTensor({2}, {1, 2})}}, &fetched);
  ASSERT_EQ(fetched.size(), 2U);
  EXPECT_EQ(Values(fetched[0]), Floats({20, 40}));
  EXPECT_EQ(Values(fetched[1]), Floats({2, 4}));
}

TEST(Executor, StartupProgramLeavesPersistablesInTheScope) {
  ProgramDesc startup;
  DeclareParameter(&startup, "w", {2});
  Append(&startup, "test_fill", {}, {{"Out", {"w"}}}, {{"shape", std::vector<int64_t>{2}}, {"value", 3.0F}});
  Append(&startup, "test_fill", {}, {{"Out", {"temporary"}}}, {{"shape", std::vector<int64_t>{2}}, {"value", 3.0F}});
  Scope scope;
  Executor().Run(startup, &scope);
  EXPECT_EQ(Values(scope.GetVar("w").Get<LoDTensor>()), Floats({3, 3}));
  EXPECT_EQ(scope.LocalVarNames(), (std::vector<std::string>{"w"}));
}

TEST(Executor, PersistableIsFoundInAnOuterScope) {
  ProgramDesc program;
  BuildCounter(&program);
  Scope outer;
  Put(&outer, "w", MakeTensor({1}, {5}));
  Scope& inner = outer.NewScope();
  Executor().Run(program, &inner);
  EXPECT_EQ(Values(outer.GetVar("w").Get<LoDTensor>()), Floats({6}));
  EXPECT_TRUE(inner.LocalVarNames().empty());
}

TEST(Executor, PreparedProgramIsACopy) {
  ProgramDesc program;
  BuildDouble(&program);
  const Executor executor;
  const auto prepared = executor.Prepare(program, {"y"});
  program.block(0).RemoveOps(0, 1);
  Scope scope;
  std::vector<LoDTensor> fetched;
  executor.Run(*prepared, &scope, {{"x", MakeTensor({1}, {4})}}, &fetched);
  EXPECT_EQ(Values(fetched[0]), Floats({8}));
}

TEST(Executor, RunsAnInnerBlockWithTheVariablesOfTheOuter) {
  ProgramDesc program;
  DeclareParameter(&program, "x", {1});
  BlockDesc& inner = program.AppendBlock(0);
  inner.Var("y");
  inner.AppendOp({"test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"factor", 5.0F}}});
  const Executor executor;
  const auto prepared = executor.Prepare(program, {"y"}, 1);
  Scope scope;
  Put(&scope, "x", MakeTensor({1}, {1}));
  std::vector<LoDTensor> fetched;
  executor.Run(*prepared, &scope, {}, &fetched);
  EXPECT_EQ(Values(fetched[0]), Floats({5}));
}

TEST(ExecutorPrepare, UnknownOperatorIsNotFound) {
  ProgramDesc program;
  BuildDouble(&program);
  program.block(0).MutableOp(0).type = "no_such_operator";
  EXPECT_THROW(Executor().Prepare(program), NotFound);
}

TEST(ExecutorPrepare, VariableRemovedFromTheProgramIsNotFound) {
  ProgramDesc program;
  BuildDouble(&program);
  program.block(0).RemoveVar("y");
  try {
    Executor().Prepare(program);
    FAIL() << "nothing was thrown";
  } catch (const NotFound& error) {
    EXPECT_EQ(error.variable(), "y");
    EXPECT_EQ(error.op_type(), "test_scale");
  }
}

TEST(ExecutorPrepare, FetchMustBeADeclaredTensor) {
  ProgramDesc program;
  BuildDouble(&program);
  Declare(&program, "r").kind = VarKind::kReader;
  EXPECT_THROW(Executor().Prepare(program, {"nothing"}), NotFound);
  EXPECT_THROW(Executor().Prepare(program, {"r"}), TypeMismatch);
}

TEST(ExecutorPrepare, BlockMustExist) { EXPECT_THROW(Executor().Prepare(ProgramDesc(), {}, 1), OutOfRange); }

TEST(Executor, InPlaceOperatorDoesNotWriteIntoTheFedMemory) {
  ProgramDesc program;
  Declare(&program, "x", {1});
  Append(&program, "test_increment", {{"X", {"x"}}}, {{"Out", {"x"}}});
  Scope scope;
  const LoDTensor fed = MakeTensor({1}, {1});
  const auto prepared = Executor().Prepare(program, {"x"});
  std::vector<LoDTensor> fetched;
  Executor().Run(*prepared, &scope, {{"x", fed}}, &fetched);
  EXPECT_EQ(Values(fetched[0]), Floats({2}));
  EXPECT_EQ(Values(fed), Floats({1}));
}

TEST(Executor, NextRunDoesNotWriteIntoWhatWasFetched) {
  ProgramDesc program;
  BuildDouble(&program);
  BuildCounter(&program);
  Scope scope;
  Put(&scope, "w", MakeTensor({1}, {0}));
  const auto prepared = Executor().Prepare(program, {"y", "w"});
  std::vector<LoDTensor> first;
  std::vector<LoDTensor> second;
  Executor().Run(*prepared, &scope, {{"x", MakeTensor({1}, {1})}}, &first);
  Executor().Run(*prepared, &scope, {{"x", MakeTensor({1}, {2})}}, &second);
  EXPECT_EQ(Values(first[0]), Floats({2}));
  EXPECT_EQ(Values(first[1]), Floats({1}));
  EXPECT_EQ(Values(second[0]), Floats({4}));
  EXPECT_EQ(Values(second[1]), Floats({2}));
}

// Whether the caller fed a tensor or memory of its own, and whether it fetches that or what shares it.
TEST(Executor, WhatIsFetchedIsNotWhatWasFed) {
  ProgramDesc program;
  Declare(&program, "x", {2});
  Append(&program, "test_share", {{"X", {"x"}}}, {{"Out", {"y"}}});
  float memory[2] = {1, 2};
  LoDTensor on_heap = MakeTensor({2}, {1, 2});
  const LoDTensor foreign(Tensor(Allocation::Foreign(memory, sizeof(memory), nullptr), DataType::kFloat32, {2}));
  Scope scope;
  const Executor executor;
  const auto prepared = executor.Prepare(program, {"x", "y", "y"});
  for (const LoDTensor& fed : {on_heap, foreign}) {
    std::vector<LoDTensor> fetched;
    executor.Run(*prepared, &scope, {{"x", fed}}, &fetched);
    memory[0] = static_cast<float*>(on_heap.raw_mutable_data())[0] = 9;
    for (const LoDTensor& tensor : fetched) {
      EXPECT_EQ(Values(tensor), Floats({1, 2}));
    }
    memory[0] = static_cast<float*>(on_heap.raw_mutable_data())[0] = 1;
    *static_cast<float*>(fetched[1].raw_mutable_data()) = 5;
    EXPECT_EQ(Values(fetched[2]), Floats({1, 2}));
  }
}

TEST(Executor, AllFetchListsShareTheTemporaries) {
  constexpr int64_t kNumel = 10'000;
  ProgramDesc program;
  Declare(&program, "t0", {-1});
  for (int i = 0; i < 20; ++i) {
    Append(&program, "test_scale", {{"X", {"t" + std::to_string(i)}}}, {{"Out", {"t" + std::to_string(i + 1)}}},
           {{"factor", 1.0F}});
  }
  Scope scope;
  const Executor executor;
  const auto prepared = executor.Prepare(program, {"t20"});
  const LoDTensor fed = MakeTensor({kNumel}, std::vector<float>(kNumel, 3));
  std::vector<LoDTensor> fetched;
  const auto run = [&](const std::vector<std::string>& names) {
    prepared->SetFetches(names);
    for (int i = 0; i < 3; ++i) {
      executor.Run(*prepared, &scope, {{"t0", fed}}, &fetched);
      ASSERT_EQ(fetched.size(), names.size());
      for (const LoDTensor& tensor : fetched) {
        EXPECT_EQ(Values(tensor), std::vector<float>(kNumel, 3));
      }
      fetched.clear();
    }
  };
  run({"t20"});
  const size_t least = prepared->memory();
  for (const int i : {5, 10, 15}) {
    run({"t20", "t" + std::to_string(i)});
    run({"t" + std::to_string(i)});
  }
  run({});
  constexpr size_t kBytes = kNumel * sizeof(float);
  EXPECT_LT(prepared->memory(), least + 5 * kBytes);  // the fetched ones have memory of their own
  EXPECT_THROW(prepared->SetFetches({"t20", "nothing"}), NotFound);
  executor.Run(*prepared, &scope, {{"t0", fed}}, &fetched);
  EXPECT_TRUE(fetched.empty());
}

TEST(Executor, TheWaitHookIsCalledBetweenOperators) {
  ProgramDesc program;
  BuildCounter(&program);
  Append(&program, "test_increment", {{"X", {"w"}}}, {{"Out", {"w"}}});
  Append(&program, "test_increment", {{"X", {"w"}}}, {{"Out", {"w"}}});
  Scope scope;
  Put(&scope, "w", MakeTensor({1}, {0}));
  const Executor executor;
  const auto prepared = executor.Prepare(program);
  {
    int calls = 0;
    const ScopedWaitHook hook([&calls] { HR_ENFORCE(++calls < 3, OutOfRange, "interrupted"); },
                              std::chrono::milliseconds(0));
    EXPECT_THROW(executor.Run(*prepared, &scope), OutOfRange);
  }
  EXPECT_EQ(Values(scope.GetVar("w").Get<LoDTensor>()), Floats({2}));
  executor.Run(*prepared, &scope);
  EXPECT_EQ(Values(scope.GetVar("w").Get<LoDTensor>()), Floats({5}));
}

TEST(Executor, WritingIntoAFetchedParameterDoesNotChangeTheParameter) {
  ProgramDesc program;
  BuildCounter(&program);
  Scope scope;
  Put(&scope, "w", MakeTensor({1}, {0}));
  std::vector<LoDTensor> fetched;
  Executor().Run(*Executor().Prepare(program, {"w"}), &scope, {}, &fetched);
  *static_cast<float*>(fetched[0].raw_mutable_data()) = 99;
  EXPECT_EQ(Values(scope.GetVar("w").Get<LoDTensor>()), Floats({1}));
}

TEST(Executor, FetchOfSomethingNeverWrittenIsRefused) {
  ProgramDesc program;
  Declare(&program, "never", {1});
  Scope scope;
  std::vector<LoDTensor> fetched;
  EXPECT_THROW(Executor().Run(*Executor().Prepare(program, {"never"}), &scope, {}, &fetched), FailedPrecondition);
}

// Addresses of temporaries, as seen from within a run.
std::vector<const void*> seen_addresses;
HEADRACE_REGISTER_OP(test_probe).Input("X", "").Kernel<float>([](const ExecutionContext& ctx) {
  seen_addresses.push_back(ctx.Input("X").raw_data());
});

TEST(Executor, WarmRunKeepsTheMemoryOfTemporaries) {
  ProgramDesc program;
  BuildDouble(&program);
  Append(&program, "test_exp", {{"X", {"y"}}}, {{"Out", {"z"}}});
  for (const char* name : {"y", "z"}) {
    Append(&program, "test_probe", {{"X", {name}}}, {});
  }
  Scope scope;
  const auto prepared = Executor().Prepare(program);
  seen_addresses.clear();
  for (const int64_t rows : {8, 8, 3, 8}) {
    Executor().Run(*prepared, &scope, {{"x", MakeTensor({rows}, std::vector<float>(static_cast<size_t>(rows)))}});
  }
  ASSERT_EQ(seen_addresses.size(), 8U);
  for (size_t i = 2; i < seen_addresses.size(); ++i) {
    EXPECT_EQ(seen_addresses[i], seen_addresses[i % 2]);
  }
}

TEST(Executor, WarmRunThatRefillsTheSameFetchesKeepsTheirMemory) {
  ProgramDesc program;
  BuildDouble(&program);
  Append(&program, "test_probe", {{"X", {"y"}}}, {});
  Scope scope;
  const auto prepared = Executor().Prepare(program, {"y"});
  std::vector<LoDTensor> fetched;
  seen_addresses.clear();
  for (int i = 0; i < 3; ++i) {
    Executor().Run(*prepared, &scope, {{"x", MakeTensor({1}, {1})}}, &fetched);
  }
  EXPECT_THAT(seen_addresses, testing::Each(seen_addresses.front()));
}

TEST(Executor, ErrorCarriesTheOperatorAndTheProgramRunsAgain) {
  ProgramDesc program;
  BuildDouble(&program);
  Declare(&program, "other", {-1});
  Append(&program, "test_mul", {{"X", {"y"}}, {"Y", {"other"}}}, {{"Out", {"z"}}});
  Scope scope;
  const auto prepared = Executor().Prepare(program, {"z"});
  std::vector<LoDTensor> fetched;
  try {
    Executor().Run(*prepared, &scope, {{"x", MakeTensor({1}, {1})}, {"other", MakeTensor({2}, {1, 1})}}, &fetched);
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.op_type(), "test_mul");
  }
  Executor().Run(*prepared, &scope, {{"x", MakeTensor({1}, {1})}, {"other", MakeTensor({1}, {7})}}, &fetched);
  EXPECT_EQ(Values(fetched[0]), Floats({14}));
}

TEST(Executor, SeveralScopesKeepTheirStateApart) {
  ProgramDesc program;
  BuildCounter(&program);
  Scope a;
  Scope b;
  Put(&a, "w", MakeTensor({1}, {0}));
  Put(&b, "w", MakeTensor({1}, {100}));
  const auto prepared = Executor().Prepare(program);
  for (Scope* scope : {&a, &b, &a}) {
    Executor().Run(*prepared, scope);
  }
  EXPECT_EQ(Values(a.GetVar("w").Get<LoDTensor>()), Floats({2}));
  EXPECT_EQ(Values(b.GetVar("w").Get<LoDTensor>()), Floats({101}));
}

TEST(Executor, PreparedProgramOutlivesItsScopes) {
  ProgramDesc program;
  BuildCounter(&program);
  const auto prepared = Executor().Prepare(program, {"w"});
  std::optional<Scope> scope;
  std::vector<LoDTensor> fetched;
  for (const float start : {1.0F, 5.0F}) {
    scope.emplace();  // at the same address
    Put(&*scope, "w", MakeTensor({1}, {start}));
    Executor().Run(*prepared, &*scope, {}, &fetched);
    EXPECT_EQ(Values(fetched[0]), Floats({start + 1}));
  }
  scope.reset();
  EXPECT_NO_THROW(prepared->Reset());
}

TEST(Executor, VariableErasedFromTheScopeIsMissedNotDangling) {
  ProgramDesc program;
  BuildCounter(&program);
  const auto prepared = Executor().Prepare(program);
  Scope scope;
  Put(&scope, "w", MakeTensor({1}, {0}));
  Executor().Run(*prepared, &scope);
  scope.EraseVars({"w"});
  scope.DropKids();
  EXPECT_THROW(Executor().Run(*prepared, &scope), FailedPrecondition);
}

TEST(Executor, NullScopeIsRefused) {
  const auto prepared = Executor().Prepare(ProgramDesc());
  EXPECT_THROW(Executor().Run(*prepared, nullptr), InvalidArgument);
}

TEST(Executor, ResetReleasesTemporaries) {
  ProgramDesc program;
  Declare(&program, "r").kind = VarKind::kRaw;
  program.block(0).MutableVar("r").persistable = true;
  Append(&program, "test_take", {{"Reader", {"r"}}}, {{"Out", {"x"}}});
  Scope scope;
  int released = 0;
  float memory = 1;
  scope.Var("r")->GetMutable<test::Feed>()->emplace_back(Tensor(
      Allocation::Foreign(&memory, sizeof(memory), [&released](void*) { ++released; }), DataType::kFloat32, {1}));
  const auto prepared = Executor().Prepare(program);
  Executor().Run(*prepared, &scope);
  EXPECT_EQ(released, 0);
  prepared->Reset();
  EXPECT_EQ(released, 1);
}

TEST(Executor, ResetReleasesTheVariablesOfInnerBlocks) {
  ProgramDesc program;
  Declare(&program, "r").kind = VarKind::kRaw;
  program.block(0).MutableVar("r").persistable = true;
  BlockDesc& block = AppendBlock(&program);
  block.Var("x");
  block.AppendOp({"test_take", {{"Reader", {"r"}}}, {{"Out", {"x"}}}, {}});
  Scope scope;
  int released = 0;
  float memory = 1;
  const auto feed = [&] {
    scope.Var("r")->GetMutable<test::Feed>()->emplace_back(Tensor(
        Allocation::Foreign(&memory, sizeof(memory), [&released](void*) { ++released; }), DataType::kFloat32, {1}));
  };
  const auto prepared = Executor().Prepare(program);
  feed();
  Executor().Run(*prepared, &scope);
  EXPECT_EQ(released, 0);
  prepared->Reset();
  EXPECT_EQ(released, 1);
  feed();
  EXPECT_NO_THROW(Executor().Run(*prepared, &scope));
}

TEST(Executor, ReaderKeepsWhatItHoldsWhenTheScopeChangesAndAcrossPreparedPrograms) {
  ProgramDesc program;
  Declare(&program, "r").kind = VarKind::kReader;  // not persistable
  Append(&program, "test_take", {{"Reader", {"r"}}}, {{"Out", {"x"}}});
  Scope scope;
  auto* feed = scope.Var("r")->GetMutable<test::Feed>();
  for (const float value : {1.0F, 2.0F, 3.0F}) {
    feed->push_back(MakeTensor({1}, {value}));
  }
  const auto prepared = Executor().Prepare(program, {"x"});
  std::vector<LoDTensor> fetched;
  Executor().Run(*prepared, &scope, {}, &fetched);
  scope.Var("something else");
  Executor().Run(*prepared, &scope, {}, &fetched);
  EXPECT_EQ(Values(fetched[0]), Floats({2}));
  Executor().Run(*Executor().Prepare(program, {"x"}), &scope, {}, &fetched);
  EXPECT_EQ(Values(fetched[0]), Floats({3}));
}

TEST(Executor, TemporariesStayWarmWhenTheScopeChanges) {
  ProgramDesc program;
  BuildDouble(&program);
  Append(&program, "test_probe", {{"X", {"y"}}}, {});
  Scope scope;
  const auto prepared = Executor().Prepare(program);
  seen_addresses.clear();
  for (const char* name : {"a", "b"}) {
    Executor().Run(*prepared, &scope, {{"x", MakeTensor({1}, {1})}});
    scope.Var(name);
  }
  EXPECT_EQ(seen_addresses[0], seen_addresses[1]);
}

TEST(Executor, ThreadsRunProgramsOfTheirOwnOnOneScope) {
  ProgramDesc program;
  BuildDouble(&program, {1});
  DeclareParameter(&program, "w", {1});
  Append(&program, "test_mul", {{"X", {"y"}}, {"Y", {"w"}}}, {{"Out", {"z"}}});
  Scope scope;
  Put(&scope, "w", MakeTensor({1}, {10}));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto prepared = Executor().Prepare(program, {"z"});
      std::vector<LoDTensor> fetched;
      for (int i = 0; i < 50; ++i) {
        const auto x = static_cast<float>(t * 1000 + i);
        Executor().Run(*prepared, &scope, {{"x", MakeTensor({1}, {x})}}, &fetched);
        EXPECT_EQ(Values(fetched[0]), Floats({20 * x}));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Runs what the test puts here while the program runs.
std::function<void()> during_run;
HEADRACE_REGISTER_OP(test_callback).Input("X", "").Kernel<float>([](const ExecutionContext&) { during_run(); });

TEST(Executor, RunningAPreparedProgramTwiceAtOnceIsRefused) {
  ProgramDesc program;
  BuildDouble(&program);
  Append(&program, "test_callback", {{"X", {"y"}}}, {});
  Scope scope;
  const auto prepared = Executor().Prepare(program);
  const std::map<std::string, LoDTensor> feeds = {{"x", MakeTensor({1}, {1})}};
  int refused = 0;
  during_run = [&] {
    try {
      Executor().Run(*prepared, &scope, feeds);
    } catch (const FailedPrecondition&) {
      ++refused;
    }
  };
  Executor().Run(*prepared, &scope, feeds);
  EXPECT_EQ(refused, 1);
  during_run = [] {};
  EXPECT_NO_THROW(Executor().Run(*prepared, &scope, feeds));
}

}  // namespace
}  // namespace headrace
