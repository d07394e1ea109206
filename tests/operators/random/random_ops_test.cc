#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "framework/errors.h"
#include "framework/testing/op_test.h"
#include "operators/math/normal_quantile.h"
#include "operators/math/philox.h"

namespace headrace {
namespace {

using ops::NormalQuantile;
using ops::Philox4x32;
using ops::PhiloxBlock;

// The known-answer vectors of the Random123 library.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

OpTest Random(const std::string& type, int64_t n, int32_t seed) {
  OpTest test(type);
  test.Out("Out")
      .Attr("shape", std::vector<int64_t>{n})
      .Attr("seed", seed)
      .Attr("dtype", static_cast<int32_t>(DataType::kFloat64));
  return test;
}

struct Moments {
  explicit Moments(const std::vector<double>& x) {
    const auto n = static_cast<double>(x.size());
    mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
    for (const double v : x) {
      variance += (v - mean) * (v - mean) / n;
    }
  }
  double mean = 0;
  double variance = 0;
};

constexpr int64_t kMany = 100000;

TEST(UniformRandom, IsUniformInItsInterval) {
  OpTest test = Random("uniform_random", kMany, 3);
  test.Attr("min", -1.0f).Attr("max", 3.0f).Run();
  const auto x = test.Get<double>("Out");
  EXPECT_GE(*std::min_element(x.begin(), x.end()), -1);
  EXPECT_LT(*std::max_element(x.begin(), x.end()), 3);
  EXPECT_NEAR(Moments(x).mean, 1, 0.02);
  EXPECT_NEAR(Moments(x).variance, 16.0 / 12, 0.02);
}

TEST(UniformRandom, NeverRoundsUpToItsUpperBound) {
  OpTest test("uniform_random");
  const float max = std::nextafter(1.0f, 2.0f);
  test.Out("Out").Attr("shape", std::vector<int64_t>{1000}).Attr("seed", 1).Attr("min", 1.0f).Attr("max", max).Run();
  for (const float x : test.Get<float>("Out")) {
    ASSERT_EQ(x, 1.0f);
  }
}

TEST(GaussianRandom, HasItsMeanAndDeviation) {
  OpTest test = Random("gaussian_random", kMany, 4);
  test.Attr("mean", 2.0f).Attr("std", 0.5f).Run();
  const Moments moments(test.Get<double>("Out"));
  EXPECT_NEAR(moments.mean, 2, 0.01);
  EXPECT_NEAR(moments.variance, 0.25, 0.01);
}

// Φ, from the complementary error function of the C library.
double Distribution(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

// Down to probabilities that no test would meet by chance.
TEST(NormalQuantile, InvertsTheDistributionFunction) {
  EXPECT_EQ(NormalQuantile(0.5), 0);
  EXPECT_NEAR(NormalQuantile(0.975), 1.959963984540054, 1e-15);
  for (double p = 0.4999; p > 1e-300; p *= 0.97) {
    ASSERT_NEAR(Distribution(NormalQuantile(p)) / p, 1, 1e-12) << p;
    if (p > 1e-3) {
      ASSERT_NEAR(NormalQuantile(1 - p), -NormalQuantile(p), 1e-12) << p;
    }
  }
}

// From one seed, gaussian_random makes the quantiles of what uniform_random makes.
TEST(GaussianRandom, IsTheQuantileOfUniformNumbers) {
  OpTest normal = Random("gaussian_random", 1000, 5);
  normal.Run();
  OpTest uniform = Random("uniform_random", 1000, 5);
  uniform.Attr("min", 0.0f).Attr("max", 1.0f).Run();
  const auto u = uniform.Get<double>("Out");
  for (size_t i = 0; i < u.size(); ++i) {
    ASSERT_DOUBLE_EQ(normal.Get<double>("Out")[i], NormalQuantile(u[i]));
  }
}

TEST(TruncatedGaussianRandom, StaysWithinTwoDeviations) {
  OpTest test = Random("truncated_gaussian_random", kMany, 6);
  test.Attr("mean", 1.0f).Attr("std", 2.0f).Run();
  const auto x = test.Get<double>("Out");
  EXPECT_GE(*std::min_element(x.begin(), x.end()), -3);
  EXPECT_LE(*std::max_element(x.begin(), x.end()), 5);
  EXPECT_NEAR(Moments(x).mean, 1, 0.02);
  EXPECT_NEAR(Moments(x).variance, 4 * 0.77374, 0.03);  // of the truncated normal distribution
}

TEST(RandomOperators, RepeatThemselvesForASeed) {
  for (const char* type : {"uniform_random", "gaussian_random", "truncated_gaussian_random"}) {
    OpTest first = Random(type, 100, 7);
    OpTest again = Random(type, 100, 7);
    OpTest other = Random(type, 100, 8);
    first.Run();
    again.Run();
    other.Run();
    EXPECT_EQ(first.Get<double>("Out"), again.Get<double>("Out")) << type;
    EXPECT_NE(first.Get<double>("Out"), other.Get<double>("Out")) << type;
  }
}

TEST(RandomOperators, StartALongTensorAsAShortOne) {
  OpTest shorter = Random("gaussian_random", 7, 9);
  OpTest longer = Random("gaussian_random", 8, 9);
  shorter.Run();
  longer.Run();
  auto prefix = longer.Get<double>("Out");
  prefix.pop_back();
  EXPECT_EQ(shorter.Get<double>("Out"), prefix);
}

TEST(RandomOperators, GiveTheSameNumbersOnEveryMachine) {
  OpTest test("uniform_random");
  test.Out("Out").Attr("shape", std::vector<int64_t>{4}).Attr("seed", 42).Attr("min", 0.0f).Attr("max", 1.0f).Run();
  const auto x = test.Get<float>("Out");
  const PhiloxBlock block = Philox4x32({0, 0, 0, 0}, {42, 0});
  EXPECT_NEAR(x[0], static_cast<double>(block[0]) * 0x1p-32, 1e-7);
  EXPECT_NEAR(x[1], static_cast<double>(block[2]) * 0x1p-32, 1e-7);
}

TEST(RandomOperators, DifferFromRunToRunWithoutASeed) {
  OpTest test = Random("uniform_random", 100, 0);
  test.NotDeterministic().Run();
  const auto first = test.Get<double>("Out");
  test.Run();
  EXPECT_NE(first, test.Get<double>("Out"));
}

TEST(RandomOperators, RefuseImpossibleArguments) {
  OpTest bounds = Random("uniform_random", 1, 1);
  bounds.Attr("min", 2.0f).Attr("max", 1.0f);
  ExpectRunThrows<InvalidArgument>(bounds, "uniform_random", "min", "2", "1");
  OpTest deviation = Random("gaussian_random", 1, 1);
  deviation.Attr("std", -1.0f);
  ExpectRunThrows<InvalidArgument>(deviation, "std", "-1");
  OpTest shape = Random("gaussian_random", -1, 1);
  ExpectInferThrows<InvalidArgument>(shape, "Out", "shape", "-1");
  OpTest type = Random("gaussian_random", 1, 1);
  type.Attr("dtype", static_cast<int32_t>(DataType::kInt32));
  ExpectRunThrows<Unimplemented>(type, "int32");
}

}  // namespace
}  // namespace headrace
