#include "framework/memory_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/executor.h"
#include "test_ops.h"

namespace headrace {
namespace {

using test::Append;
using test::Declare;
using test::MakeTensor;
using test::Values;

constexpr int64_t kNumel = 4096;
constexpr size_t kBytes = kNumel * sizeof(float);

LoDTensor Full(float value, int64_t numel = kNumel) {
  return MakeTensor({numel}, std::vector<float>(static_cast<size_t>(numel), value));
}

class MemoryPlanTest : public testing::Test {
 protected:
  MemoryPlanTest() { Declare(&program_, "x", {-1}); }

  void Scale(const std::string& from, const std::string& to, float factor) {
    Append(&program_, "test_scale", {{"X", {from}}}, {{"Out", {to}}}, {{"factor", factor}});
  }

  // What all elements of the fetched variables are, in order.
  std::vector<float> Run(const LoDTensor& x, const std::vector<std::string>& fetches = {"out"}) {
    if (prepared_ == nullptr) {
      prepared_ = Executor().Prepare(program_, fetches);
    }
    Executor().Run(*prepared_, &scope_, {{"x", x}}, &fetched_);
    std::vector<float> values;
    for (const LoDTensor& tensor : fetched_) {
      const std::vector<float> all = Values(tensor);
      EXPECT_EQ(all, std::vector<float>(all.size(), all.at(0)));
      values.push_back(all.at(0));
    }
    return values;
  }

  ProgramDesc program_;
  Scope scope_;
  std::unique_ptr<PreparedProgram> prepared_;
  std::vector<LoDTensor> fetched_;
};

TEST_F(MemoryPlanTest, TemporariesOfDifferentTimesShareMemory) {
  Scale("x", "t0", 2);
  for (int i = 0; i < 20; ++i) {
    Scale("t" + std::to_string(i), "t" + std::to_string(i + 1), 1);
  }
  Scale("t20", "out", 10);
  for (int i = 1; i < 5; ++i) {
    EXPECT_EQ(Run(Full(static_cast<float>(i))), std::vector<float>{20.0F * static_cast<float>(i)});
    EXPECT_LT(prepared_->memory(), 4 * kBytes) << "run " << i;  // two temporaries, the result, and small change
  }
}

TEST_F(MemoryPlanTest, WhatMayBeWrittenInPlaceTakesOverMemory) {
  Scale("x", "a", 2);
  for (const auto* const names : {"ab", "bc", "cd"}) {
    Scale(std::string(1, names[0]), std::string(1, names[1]), 3);
  }
  Append(&program_, "test_mul", {{"X", {"d"}}, {"Y", {"d"}}}, {{"Out", {"out"}}});
  for (int i = 1; i < 5; ++i) {
    const auto x = static_cast<float>(i);
    EXPECT_EQ(Run(Full(x)), std::vector<float>{54 * 54 * x * x});
    if (i > 1) {
      EXPECT_LT(prepared_->memory(), 2.5 * kBytes) << "run " << i;  // the temporaries, the result, and small change
    }
  }
}

// `c` may be written in place of `a`.
TEST_F(MemoryPlanTest, MemoryThatASharerKeepsIsNotTakenOver) {
  Scale("x", "a", 2);
  Append(&program_, "test_share_if_positive", {{"X", {"a"}}}, {{"Out", {"b"}}});
  Scale("a", "c", 3);
  Append(&program_, "test_mul", {{"X", {"c"}}, {"Y", {"b"}}}, {{"Out", {"out"}}});
  for (const float x : {-1.0F, -2.0F, -3.0F, 4.0F, 5.0F, -6.0F, -7.0F, 8.0F}) {
    EXPECT_EQ(Run(Full(x)), std::vector<float>{12 * x * x});
  }
}

// `a` gets other memory while `b` keeps that which it had.
TEST_F(MemoryPlanTest, MemoryOfWhatIsWrittenTwiceStaysASharers) {
  Scale("x", "a", 2);
  Append(&program_, "test_share_if_positive", {{"X", {"a"}}}, {{"Out", {"b"}}});
  Scale("x", "a", 5);
  Append(&program_, "test_mul", {{"X", {"a"}}, {"Y", {"x"}}}, {{"Out", {"c"}}});
  Append(&program_, "test_mul", {{"X", {"c"}}, {"Y", {"x"}}}, {{"Out", {"d"}}});
  Append(&program_, "test_mul", {{"X", {"d"}}, {"Y", {"b"}}}, {{"Out", {"out"}}});
  for (const float x : {-1.0F, -2.0F, -3.0F, 4.0F, 5.0F, -6.0F, -7.0F, 8.0F}) {
    EXPECT_EQ(Run(Full(x)), std::vector<float>{10 * x * x * x * x});
  }
}

TEST_F(MemoryPlanTest, WhatIsReadForItsShapeOnlyKeepsNoMemory) {
  Scale("x", "a", 2);
  Append(&program_, "test_mul", {{"X", {"a"}}, {"Y", {"a"}}}, {{"Out", {"b"}}});
  Append(&program_, "test_mul", {{"X", {"b"}}, {"Y", {"b"}}}, {{"Out", {"c"}}});
  Append(&program_, "test_ones_like", {{"X", {"a"}}}, {{"Out", {"d"}}});
  Append(&program_, "test_mul", {{"X", {"c"}}, {"Y", {"d"}}}, {{"Out", {"out"}}});
  for (const int64_t numel : {kNumel, kNumel, 2 * kNumel, kNumel / 2}) {
    EXPECT_EQ(Run(Full(1, numel)), std::vector<float>{16});
  }
  EXPECT_LT(prepared_->memory(), 3.5 * 2.125 * kBytes);  // two temporaries, the result, and small change
}

TEST_F(MemoryPlanTest, WhatIsReadForItsShapeOnlyHasNoElements) {
  Scale("x", "a", 2);
  Scale("a", "b", 2);
  Append(&program_, "test_read_of_shape_only", {{"X", {"a"}}}, {{"Out", {"c"}}});
  Append(&program_, "test_mul", {{"X", {"b"}}, {"Y", {"c"}}}, {{"Out", {"out"}}});
  EXPECT_THROW(Run(Full(1)), FailedPrecondition);
}

TEST_F(MemoryPlanTest, GrowsWithTheBatch) {
  Scale("x", "a", 2);
  Scale("a", "b", 3);
  Scale("b", "c", 4);
  Append(&program_, "test_mul", {{"X", {"c"}}, {"Y", {"b"}}}, {{"Out", {"out"}}});
  for (const int64_t numel : {kNumel, 10 * kNumel, int64_t{1}, 11 * kNumel, int64_t{400}, 11 * kNumel}) {
    EXPECT_EQ(Run(Full(1, numel)), std::vector<float>{144});
  }
  EXPECT_LT(prepared_->memory(), 5 * 11 * kBytes);
}

TEST_F(MemoryPlanTest, WhatIsFetchedIsNotWrittenAgain) {
  Scale("x", "a", 2);
  Scale("a", "b", 3);
  Scale("b", "c", 4);
  Scale("c", "d", 5);
  std::vector<LoDTensor> kept;
  for (int i = 1; i < 5; ++i) {
    (void)Run(Full(static_cast<float>(i)), {"a", "b", "d"});
    kept.insert(kept.end(), fetched_.begin(), fetched_.end());
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    const float factor = std::vector<float>{2, 6, 120}[i % 3];
    EXPECT_EQ(Values(kept[i]), Values(Full(factor * static_cast<float>(i / 3 + 1))));
  }
}

// `b` holds the memory of `a` beyond the last use of `a`.
TEST_F(MemoryPlanTest, MemoryThatIsSharedWithALaterTemporaryIsNotUsedTwice) {
  Scale("x", "a", 2);
  Append(&program_, "test_share", {{"X", {"a"}}}, {{"Out", {"b"}}});
  Scale("x", "c", 3);
  Scale("c", "d", 3);
  Scale("d", "e", 3);
  Append(&program_, "test_mul", {{"X", {"e"}}, {"Y", {"b"}}}, {{"Out", {"out"}}});
  for (int i = 1; i < 6; ++i) {
    const auto x = static_cast<float>(i);
    EXPECT_EQ(Run(Full(x)), std::vector<float>{54 * x * x});
  }
}

// The operator begins to share when the places are fixed already.
TEST_F(MemoryPlanTest, MemoryThatASharerKeepsIsNotUsedTwice) {
  Scale("x", "a", 2);
  Append(&program_, "test_share_if_positive", {{"X", {"a"}}}, {{"Out", {"b"}}});
  Scale("x", "c", 3);
  Scale("c", "d", 3);
  Scale("d", "e", 3);
  Append(&program_, "test_mul", {{"X", {"e"}}, {"Y", {"b"}}}, {{"Out", {"out"}}});
  for (const float x : {-1.0F, -2.0F, -3.0F, 4.0F, 5.0F, -6.0F, -7.0F, 8.0F}) {
    EXPECT_EQ(Run(Full(x)), std::vector<float>{54 * x * x});
  }
}

TEST_F(MemoryPlanTest, MemoryThatLeavesTheProgramIsNotUsedAgain) {
  Declare(&program_, "kept", {-1}).persistable = true;
  Scale("x", "a", 2);
  Append(&program_, "test_share_if_positive", {{"X", {"a"}}}, {{"Out", {"kept"}}});
  Scale("x", "b", 3);
  Scale("b", "out", 3);
  std::vector<std::pair<float, LoDTensor>> kept;
  for (const float x : {-1.0F, -2.0F, 3.0F, 4.0F, -5.0F, 6.0F}) {
    EXPECT_EQ(Run(Full(x)), std::vector<float>{9 * x});
    kept.emplace_back(x, scope_.GetVar("kept").Get<LoDTensor>());
    for (const auto& [then, tensor] : kept) {
      EXPECT_EQ(Values(tensor), Values(Full(2 * then)));
    }
  }
}

TEST_F(MemoryPlanTest, ARunAfterAnErrorIsRight) {
  Scale("x", "a", 2);
  Append(&program_, "test_share_if_positive", {{"X", {"a"}}}, {{"Out", {"b"}}});
  Append(&program_, "test_fail_if_over_100", {{"X", {"b"}}}, {{"Out", {"c"}}});
  Scale("c", "d", 3);
  Append(&program_, "test_mul", {{"X", {"d"}}, {"Y", {"b"}}}, {{"Out", {"out"}}});
  for (const float x : {-1.0F, -2.0F, 100.0F, 4.0F, -5.0F, 100.0F, 100.0F, -6.0F}) {
    if (x == 100) {
      EXPECT_THROW(Run(Full(x)), OutOfRange);
    } else {
      EXPECT_EQ(Run(Full(x)), std::vector<float>{12 * x * x});
    }
  }
}

TEST_F(MemoryPlanTest, ResetReturnsTheMemory) {
  Scale("x", "a", 2);
  Scale("a", "b", 2);
  Scale("b", "out", 2);
  (void)Run(Full(1));
  (void)Run(Full(1));
  fetched_.clear();
  EXPECT_GT(prepared_->memory(), kBytes);
  prepared_->Reset();
  EXPECT_EQ(prepared_->memory(), 0U);
  EXPECT_EQ(Run(Full(1)), std::vector<float>{8});
}

}  // namespace
}  // namespace headrace
