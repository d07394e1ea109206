#include "framework/scope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "framework/errors.h"
#include "framework/scope_bindings.h"

namespace headrace {
namespace {

TEST(Scope, VarIsCreatedOnceAndNamed) {
  Scope scope;
  Variable* first = scope.Var("x");
  EXPECT_EQ(scope.Var("x"), first);
  EXPECT_EQ(first->name(), "x");
}

TEST(Scope, LookUpGoesOnInTheParent) {
  Scope scope;
  Variable* outer = scope.Var("x");
  Scope& kid = scope.NewScope();
  EXPECT_EQ(kid.FindVar("x"), outer);
  EXPECT_EQ(kid.FindLocalVar("x"), nullptr);
  EXPECT_EQ(scope.FindVar("y"), nullptr);
}

TEST(Scope, InnerVariableHidesTheOuterOne) {
  Scope scope;
  scope.Var("x");
  Scope& kid = scope.NewScope();
  Variable* inner = kid.Var("x");
  EXPECT_EQ(kid.FindVar("x"), inner);
  EXPECT_NE(scope.FindVar("x"), inner);
}

TEST(Scope, GetVarNamesWhatIsMissing) {
  Scope scope;
  try {
    scope.GetVar("absent");
    FAIL() << "nothing was thrown";
  } catch (const NotFound& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("absent"));
  }
}

TEST(Scope, LocalVarNamesAreSorted) {
  Scope scope;
  for (const char* name : {"b", "c", "a"}) {
    scope.Var(name);
  }
  EXPECT_EQ(scope.LocalVarNames(), (std::vector<std::string>{"a", "b", "c"}));
}

TEST(Scope, EraseIgnoresUnknownNames) {
  Scope scope;
  scope.Var("a");
  scope.EraseVars({"a", "never"});
  EXPECT_EQ(scope.FindVar("a"), nullptr);
}

TEST(Scope, DeletesOnlyItsOwnKids) {
  Scope scope;
  Scope other;
  Scope& kid = scope.NewScope();
  EXPECT_THROW(other.DeleteScope(&kid), NotFound);
  EXPECT_NO_THROW(scope.DeleteScope(&kid));
  EXPECT_THROW(scope.DeleteScope(nullptr), NotFound);
}

TEST(Scope, IdsAreUniqueEvenAtOneAddress) {
  std::optional<Scope> scope(std::in_place);
  const uint64_t before = scope->id();
  scope.emplace();
  EXPECT_NE(scope->id(), before);
  EXPECT_NE(scope->NewScope().id(), scope->id());
}

TEST(Scope, RevisionStaysWhileNothingChanges) {
  Scope scope;
  scope.Var("a");
  const uint64_t before = scope.revision();
  scope.Var("a");
  scope.FindVar("b");
  scope.EraseVars({"b"});
  EXPECT_EQ(scope.revision(), before);
}

TEST(Scope, RevisionGrowsWithChangesHereAndInAncestors) {
  Scope scope;
  Scope& kid = scope.NewScope();
  uint64_t before = kid.revision();
  scope.Var("a");
  EXPECT_GT(kid.revision(), before);
  before = kid.revision();
  scope.EraseVars({"a"});
  EXPECT_GT(kid.revision(), before);
  before = kid.revision();
  kid.Var("b");
  EXPECT_GT(kid.revision(), before);
}

TEST(Scope, RevisionTellsAScopeFromItsSuccessorAtTheSameAddress) {
  std::optional<Scope> scope(std::in_place);
  const Scope* address = &*scope;
  const uint64_t before = scope->revision();
  scope.emplace();
  ASSERT_EQ(&*scope, address);
  EXPECT_NE(scope->revision(), before);
}

TEST(Scope, ThreadsMayCreateAndFindAtOnce) {
  Scope scope;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&scope] {
      for (int i = 0; i < 500; ++i) {
        const std::string name = std::to_string(i);
        const Variable* created = scope.Var(name);
        EXPECT_EQ(scope.FindVar(name), created);
        scope.NewScope().Var("local");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(scope.LocalVarNames().size(), 500U);
}

TEST(ScopeBindings, ABindingThatCannotBeMadeLeavesNoOldOnes) {
  constexpr int kMaxEntries = 2048;
  std::vector<Scope> scopes(kMaxEntries + 1);
  ScopeBindings<int> bindings;
  for (int i = 0; i < kMaxEntries; ++i) {
    bindings.At(scopes[static_cast<size_t>(i)], [i] { return i; });
  }
  EXPECT_EQ(bindings.At(scopes[0], [] { return -1; }), 0);
  EXPECT_THROW(bindings.At(scopes.back(), []() -> int { throw NotFound("no variable"); }), NotFound);
  EXPECT_EQ(bindings.At(scopes[1], [] { return -1; }), -1);
}

}  // namespace
}  // namespace headrace
