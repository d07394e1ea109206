#include "reader/index_permutation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <unordered_set>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"

namespace headrace {
namespace {

std::vector<uint64_t> Values(uint64_t length, uint64_t seed, uint64_t epoch) {
  const IndexPermutation permutation(length, seed, epoch);
  std::vector<uint64_t> values(length);
  for (uint64_t i = 0; i < length; ++i) {
    values[i] = permutation(i);
  }
  return values;
}

void ExpectPermutation(uint64_t length, uint64_t seed, uint64_t epoch) {
  std::vector<uint64_t> values = Values(length, seed, epoch);
  std::sort(values.begin(), values.end());
  for (uint64_t i = 0; i < length; ++i) {
    ASSERT_EQ(values[i], i) << "length " << length << " seed " << seed << " epoch " << epoch;
  }
}

// Sum of (observed - expected)² / expected over equally likely cells.
double ChiSquare(const std::vector<uint64_t>& counts) {
  uint64_t total = 0;
  for (const uint64_t count : counts) {
    total += count;
  }
  const double expected = static_cast<double>(total) / static_cast<double>(counts.size());
  double sum = 0;
  for (const uint64_t count : counts) {
    const double difference = static_cast<double>(count) - expected;
    sum += difference * difference / expected;
  }
  return sum;
}

// Six standard deviations above the mean of chi-square: the seeds are fixed, so that the test gives the same every
// time.
double Bound(double degrees) { return degrees + 6 * std::sqrt(2 * degrees); }

TEST(IndexPermutationTest, ManyPositionsMapAsOneByOne) {
  for (const uint64_t length : {uint64_t{1}, uint64_t{65}, uint64_t{1000}, uint64_t{1} << 40}) {
    const IndexPermutation permutation(length, 7, 3);
    for (const uint64_t count : {0, 1, 64, 65, 500}) {
      std::vector<uint64_t> positions(count);
      for (uint64_t i = 0; i < count; ++i) {
        positions[i] = (i * 0x9E3779B97F4A7C15ULL) % length;
      }
      std::vector<uint64_t> expected(count);
      std::transform(positions.begin(), positions.end(), expected.begin(), permutation);
      permutation.Map(positions);
      EXPECT_EQ(positions, expected) << "length " << length;
    }
  }
  std::vector<uint64_t> beyond{0, 10};
  EXPECT_THROW(IndexPermutation(10, 7, 3).Map(beyond), OutOfRange);
}

TEST(IndexPermutationTest, SmallLengthsArePermuted) {
  for (uint64_t length = 1; length <= 300; ++length) {
    ExpectPermutation(length, 7, 0);
    ExpectPermutation(length, ~uint64_t{0}, ~uint64_t{0});
  }
}

TEST(IndexPermutationTest, LengthsAroundPowersOfFourArePermuted) {
  for (uint64_t power = 4; power <= (uint64_t{1} << 16); power *= 4) {
    for (const uint64_t length : {power - 1, power, power + 1}) {
      ExpectPermutation(length, 3, 5);
    }
  }
}

TEST(IndexPermutationTest, HugeLengthsGiveDistinctIndicesInRange) {
  for (const uint64_t length : {uint64_t{1} << 33, (uint64_t{1} << 33) + 1, uint64_t{1} << 62}) {
    const IndexPermutation permutation(length, 11, 2);
    std::unordered_set<uint64_t> seen;
    const uint64_t stride = length / 50'000;
    for (uint64_t i = 0; i < 50'000; ++i) {
      const uint64_t index = permutation(i * stride);
      ASSERT_LT(index, length);
      ASSERT_TRUE(seen.insert(index).second);
    }
  }
}

TEST(IndexPermutationTest, PositionOutsideIsAnErrorRatherThanAnEndlessWalk) {
  const IndexPermutation permutation(5, 0, 0);
  EXPECT_THROW(permutation(5), OutOfRange);
  EXPECT_THROW(permutation(~uint64_t{0}), OutOfRange);
}

TEST(IndexPermutationTest, LengthOutsideIsAnError) {
  EXPECT_THROW(IndexPermutation(0, 0, 0), InvalidArgument);
  EXPECT_THROW(IndexPermutation((uint64_t{1} << 62) + 1, 0, 0), InvalidArgument);
}

TEST(IndexPermutationTest, SameSeedAndEpochGiveTheSame) { EXPECT_EQ(Values(1000, 4, 9), Values(1000, 4, 9)); }

// Two independent permutations agree at one position on the average, whatever their length.
TEST(IndexPermutationTest, NeighbouringSeedsAndEpochsAreIndependent) {
  uint64_t agreements = 0;
  uint64_t pairs = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (uint64_t epoch = 0; epoch < 5; ++epoch) {
      const std::vector<uint64_t> one = Values(1000, seed, epoch + 1);
      for (const auto& [other_seed, other_epoch] :
           {std::pair{seed + 1, epoch}, {seed, epoch}, {seed + 1, epoch + 1}, {epoch + 1, seed}}) {
        if (other_seed == seed && other_epoch == epoch + 1) {
          continue;
        }
        const std::vector<uint64_t> other = Values(1000, other_seed, other_epoch);
        uint64_t same = 0;
        for (size_t i = 0; i < one.size(); ++i) {
          same += one[i] == other[i] ? 1 : 0;
        }
        ASSERT_LE(same, 10U) << "seed " << seed << " epoch " << epoch + 1 << " against seed " << other_seed << " epoch "
                             << other_epoch;
        agreements += same;
        ++pairs;
      }
    }
  }
  const double mean = static_cast<double>(agreements) / static_cast<double>(pairs);
  EXPECT_NEAR(mean, 1.0, 6 / std::sqrt(static_cast<double>(pairs)));
}

TEST(IndexPermutationTest, AllOrdersOfFewElementsAreEquallyLikely) {
  for (const auto& [length, orders] : {std::pair<uint64_t, size_t>{2, 2}, {3, 6}, {4, 24}, {5, 120}, {6, 720}}) {
    std::map<std::vector<uint64_t>, uint64_t> seen;
    const uint64_t trials = orders * 100;
    for (uint64_t seed = 0; seed < trials; ++seed) {
      ++seen[Values(length, seed, 0)];
    }
    ASSERT_EQ(seen.size(), orders) << "length " << length;
    std::vector<uint64_t> counts;
    for (const auto& [order, count] : seen) {
      counts.push_back(count);
    }
    EXPECT_LT(ChiSquare(counts), Bound(static_cast<double>(orders - 1))) << "length " << length;
  }
}

TEST(IndexPermutationTest, EveryIndexIsEquallyLikelyAtEveryPosition) {
  for (const uint64_t length : {7, 10, 16, 17, 31, 64}) {
    std::vector<std::vector<uint64_t>> counts(length, std::vector<uint64_t>(length));
    for (uint64_t epoch = 0; epoch < 100 * length; ++epoch) {
      const std::vector<uint64_t> values = Values(length, 1, epoch);
      for (uint64_t i = 0; i < length; ++i) {
        ++counts[i][values[i]];
      }
    }
    for (uint64_t i = 0; i < length; ++i) {
      EXPECT_LT(ChiSquare(counts[i]), Bound(static_cast<double>(length - 1)))
          << "length " << length << " position " << i;
    }
  }
}

// What a shuffle must not do: leave neighbours together.
TEST(IndexPermutationTest, DistanceOfNeighboursIsThatOfRandomPairs) {
  const uint64_t length = 10'000;
  const std::vector<uint64_t> values = Values(length, 5, 0);
  double sum = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    sum += std::abs(static_cast<double>(values[i]) - static_cast<double>(values[i - 1]));
  }
  EXPECT_NEAR(sum / static_cast<double>(length * length), 1.0 / 3, 0.02);
}

}  // namespace
}  // namespace headrace
