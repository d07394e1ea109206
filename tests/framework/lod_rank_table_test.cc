#include "framework/lod_rank_table.h"

#include <gtest/gtest.h>

#include "framework/errors.h"

namespace headrace {
namespace {

std::vector<size_t> Order(const LoDRankTable& table) {
  std::vector<size_t> order;
  for (const auto& item : table.items()) {
    order.push_back(item.index);
  }
  return order;
}

TEST(LoDRankTable, SortsByLengthAndKeepsTheOrderOfEqualOnes) {
  LoDRankTable table;
  table.Reset({{0, 2, 5, 5, 7, 10}}, 0);  // lengths 2, 3, 0, 2, 3
  EXPECT_EQ(Order(table), (std::vector<size_t>{1, 4, 0, 3, 2}));
  EXPECT_EQ(table.max_length(), 3U);
}

TEST(LoDRankTable, CountsTheSequencesThatHaveAStep) {
  LoDRankTable table;
  table.Reset({{0, 2, 5, 5, 7, 10}}, 0);
  EXPECT_EQ(table.ActiveAt(0), 4U);
  EXPECT_EQ(table.ActiveAt(1), 4U);
  EXPECT_EQ(table.ActiveAt(2), 2U);
  EXPECT_EQ(table.ActiveAt(3), 0U);
}

TEST(LoDRankTable, KeepsTheLevelsAbove) {
  LoDRankTable table;
  table.Reset({{0, 2, 3}, {0, 1, 4, 4}}, 1);
  EXPECT_EQ(table.coarse_lod(), (LoD{{0, 2, 3}}));
  EXPECT_EQ(Order(table), (std::vector<size_t>{1, 0, 2}));
}

TEST(LoDRankTable, NeedsTheLevel) {
  LoDRankTable table;
  EXPECT_THROW(table.Reset({}, 0), InvalidArgument);
  EXPECT_THROW(table.Reset({{0, 1}}, 1), InvalidArgument);
}

TEST(LoDRankTable, OfNoSequences) {
  LoDRankTable table;
  table.Reset({{0}}, 0);
  EXPECT_EQ(table.max_length(), 0U);
  EXPECT_EQ(table.ActiveAt(0), 0U);
}

}  // namespace
}  // namespace headrace
