#include "operators/math/branchless.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace headrace::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Function {
  const char* name;
  float (*ours)(float);
  double (*exact)(double);
  double error = 3e-7;
};

const Function kFunctions[] = {
    {"Exp", branchless::Exp, [](double x) { return std::exp(x); }},
    {"Sigmoid", branchless::Sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }},
    {"Softplus", branchless::Softplus, [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }},
    {"Tanh", branchless::Tanh, [](double x) { return std::tanh(x); }, 4e-7},
    {"Erf", branchless::Erf, [](double x) { return std::erf(x); }},
    {"ExpLinear", branchless::ExpLinear, [](double x) { return x < 0 ? std::expm1(x) : x; }},
    {"ArcTangent", branchless::ArcTangent, [](double x) { return std::atan(x); }},
};

// From the least to the greatest of which the exponential is a normal number, and close to 0.
std::vector<float> Arguments() {
  std::vector<float> arguments = {branchless::kLogSmallest, branchless::kLogLargest};
  for (int i = 0; i < 475'700; ++i) {
    arguments.push_back(static_cast<float>(-87.3 + 0.00037 * i));
  }
  for (float small = 1e-4F; small > 2 * std::numeric_limits<float>::min(); small *= 0.97F) {
    arguments.push_back(small);
    arguments.push_back(-small);
  }
  return arguments;
}

TEST(Branchless, ErrorsAreAFewUnitsInTheLastPlace) {
  const std::vector<float> arguments = Arguments();
  for (const Function& function : kFunctions) {
    for (const float argument : arguments) {
      const double exact = function.exact(argument);
      ASSERT_NEAR(function.ours(argument), exact, function.error * std::abs(exact))
          << function.name << " of " << argument;
    }
  }
}

TEST(Branchless, SinesOfLargeAnglesAreExactEnough) {
  for (float x = 1e-4F; x <= branchless::kLargestAngle; x *= 1.00003F) {
    for (const double angle : {static_cast<double>(x), -static_cast<double>(x)}) {
      const double exact[] = {std::sin(angle), std::cos(angle), -std::sin(angle)};
      for (int quarters = 0; quarters < 3; ++quarters) {
        ASSERT_NEAR(branchless::SineWithin(static_cast<float>(angle), quarters), exact[quarters],
                    3e-7 * std::abs(exact[quarters]))
            << angle << ", " << quarters;
      }
    }
  }
}

TEST(Branchless, ArcsOfAllSinesAreExactEnough) {
  const auto check = [](float x) {
    const double sine = std::asin(static_cast<double>(x));
    const double cosine = std::acos(static_cast<double>(x));
    ASSERT_NEAR(branchless::ArcSine(x), sine, 3e-7 * std::abs(sine)) << x;
    ASSERT_NEAR(branchless::ArcCosine(x), cosine, 3e-7 * std::abs(cosine)) << x;
  };
  for (int i = -1'000'000; i <= 1'000'000; ++i) {
    check(1e-6F * static_cast<float>(i));
  }
  for (float x = 1; x > 0.9999F; x = std::nextafter(x, 0.0F)) {
    check(x);
    check(-x);
  }
  for (float x = 1; x > 1e-37F; x *= 0.9F) {
    check(x);
    check(-x);
  }
  EXPECT_TRUE(std::signbit(branchless::ArcSine(-0.0F)));
  for (const float x : {1.0000001F, -1.0000001F, 2.0F, kInfinity, -kInfinity, kNaN}) {
    EXPECT_TRUE(std::isnan(branchless::ArcSine(x))) << x;
    EXPECT_TRUE(std::isnan(branchless::ArcCosine(x))) << x;
  }
}

TEST(Branchless, LogarithmsOfAllMagnitudesAreExactEnough) {
  const auto check = [](float x) {
    const double exact = std::log(static_cast<double>(x));
    ASSERT_NEAR(branchless::Log(x), exact, 3e-7 * std::abs(exact)) << x;
  };
  for (float x = std::numeric_limits<float>::denorm_min(); x < kInfinity; x *= 1.5F) {
    check(x);
  }
  for (float x = 0x1p-126F; x <= 0x1p126F; x *= 1.0003F) {
    check(x);
  }
  for (int i = -300'000; i <= 300'000; ++i) {
    check(1 + 1e-6F * static_cast<float>(i));
  }
  for (const float x : {0.0F, -0.0F}) {
    EXPECT_EQ(branchless::Log(x), -kInfinity);
  }
  EXPECT_EQ(branchless::Log(1), 0);
  EXPECT_EQ(branchless::Log(kInfinity), kInfinity);
  for (const float x : {-1.0F, -1e-40F, -kInfinity, kNaN, -kNaN}) {
    EXPECT_TRUE(std::isnan(branchless::Log(x))) << x;
  }
}

TEST(Branchless, LimitsAreExact) {
  constexpr float kSmallest = std::numeric_limits<float>::min();
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_EQ(branchless::Exp(0), 1);
  EXPECT_EQ(branchless::Exp(-kInfinity), 0);
  EXPECT_EQ(branchless::Exp(-88), 0);
  EXPECT_GE(branchless::Exp(branchless::kLogSmallest), kSmallest);
  EXPECT_LE(branchless::Exp(branchless::kLogLargest), kLargest);
  for (const float large : {std::nextafter(branchless::kLogLargest, kInfinity), 100.0F, kLargest, kInfinity}) {
    EXPECT_EQ(branchless::Exp(large), kInfinity) << large;
  }
  EXPECT_EQ(branchless::Sigmoid(0), 0.5F);
  EXPECT_EQ(branchless::Sigmoid(-kInfinity), 0);
  EXPECT_EQ(branchless::Sigmoid(-100), 0);
  EXPECT_EQ(branchless::Sigmoid(kInfinity), 1);
  EXPECT_EQ(branchless::Softplus(-kInfinity), 0);
  EXPECT_EQ(branchless::Softplus(kInfinity), kInfinity);
  EXPECT_EQ(branchless::Softplus(kLargest), kLargest);
  EXPECT_EQ(branchless::ExpLinear(-kInfinity), -1);
  EXPECT_EQ(branchless::ExpLinear(-100), -1);
  EXPECT_EQ(branchless::ExpLinear(kInfinity), kInfinity);
  for (const float sign : {-1.0F, 1.0F}) {
    EXPECT_EQ(branchless::Tanh(sign * 9.25F), sign);
    EXPECT_EQ(branchless::Tanh(sign * kInfinity), sign);
    EXPECT_EQ(std::signbit(branchless::Tanh(sign * 0.0F)), sign < 0);
    EXPECT_EQ(branchless::Erf(sign * 4), sign);
    EXPECT_EQ(branchless::Erf(sign * kInfinity), sign);
    EXPECT_EQ(std::signbit(branchless::Erf(sign * 0.0F)), sign < 0);
    EXPECT_FLOAT_EQ(branchless::ArcTangent(sign * kInfinity), sign * 1.57079633F);
    EXPECT_EQ(std::signbit(branchless::ArcTangent(sign * 0.0F)), sign < 0);
    for (const int quarters : {0, 2}) {
      const float sine = branchless::SineWithin(sign * 0.0F, quarters);
      EXPECT_EQ(sine, 0);
      EXPECT_EQ(std::signbit(sine), (sign < 0) != (quarters == 2));
    }
    EXPECT_EQ(branchless::SineWithin(sign * 0.0F, 1), 1);
  }
  for (int i = 0; i < 200'000; ++i) {
    const float x = 3 + 1e-5F * static_cast<float>(i);
    ASSERT_LE(branchless::Erf(x), 1) << x;
    ASSERT_LE(branchless::Tanh(5 + x), 1) << x;
  }
}

TEST(Branchless, NaNGivesNaN) {
  for (const Function& function : kFunctions) {
    for (const float nan : {kNaN, -kNaN, std::bit_cast<float>(0x7fffffff), std::bit_cast<float>(-1)}) {
      EXPECT_TRUE(std::isnan(function.ours(nan))) << function.name;
    }
  }
}

}  // namespace
}  // namespace headrace::ops
