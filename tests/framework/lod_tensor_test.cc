#include "framework/lod_tensor.h"

#include <gtest/gtest.h>

#include <numeric>

#include "framework/errors.h"

namespace headrace {
namespace {

TEST(LoD, LengthsAndOffsetsConvertBothWays) {
  const LoD lengths = {{2, 1}, {3, 2, 4}};
  const LoD offsets = {{0, 2, 3}, {0, 3, 5, 9}};
  EXPECT_EQ(LengthsToOffsets(lengths), offsets);
  EXPECT_EQ(OffsetsToLengths(offsets), lengths);
}

TEST(LoD, WellFormedIsAccepted) {
  EXPECT_NO_THROW(CheckLoD({}, 5));
  EXPECT_NO_THROW(CheckLoD({{0, 2, 3}, {0, 3, 5, 9}}, 9));
  EXPECT_NO_THROW(CheckLoD({{0, 0, 4, 4}}, 4));
}

TEST(LoD, MustStartWithZero) { EXPECT_THROW(CheckLoD({{1, 4}}, 4), InvalidArgument); }
TEST(LoD, MustNotDecrease) { EXPECT_THROW(CheckLoD({{0, 3, 2, 4}}, 4), InvalidArgument); }
TEST(LoD, MustEndWithTheRows) { EXPECT_THROW(CheckLoD({{0, 3}}, 4), InvalidArgument); }
TEST(LoD, LevelMustEndWithTheSequencesOfTheNext) {
  EXPECT_THROW(CheckLoD({{0, 2}, {0, 3, 5, 9}}, 9), InvalidArgument);
  EXPECT_THROW(CheckLoD({{0, 1}, {}}, 9), InvalidArgument);
}
TEST(LoD, LevelNeedsAStartAndAnEnd) {
  EXPECT_THROW(CheckLoD({{}}, 0), InvalidArgument);
  EXPECT_THROW(CheckLoD({{0}}, 0), InvalidArgument);
}
TEST(LoD, OverflowingLengthsAreRefused) { EXPECT_THROW(LengthsToOffsets({{SIZE_MAX, 1}}), InvalidArgument); }
TEST(LoD, DecreasingOffsetsHaveNoLengths) { EXPECT_THROW(OffsetsToLengths({{0, 2, 1}}), InvalidArgument); }
TEST(LoD, ToStringNests) { EXPECT_EQ(ToString(LoD{{0, 1}, {0, 4}}), "[[0, 1], [0, 4]]"); }

TEST(LoD, ToStringLeavesTheMiddleOfLongLevelsOut) {
  LoDOffsets offsets(20);
  std::iota(offsets.begin(), offsets.end(), size_t{0});
  EXPECT_EQ(ToString(LoD{offsets}), "[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]]");
  offsets.push_back(20);
  EXPECT_EQ(ToString(LoD{offsets}), "[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..., 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]]");
}

}  // namespace
}  // namespace headrace
