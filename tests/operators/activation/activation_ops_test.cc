#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

struct ActivationCase {
  const char* type;
  double (*reference)(double);
  bool positive_only = false;
};

void PrintTo(const ActivationCase& c, std::ostream* out) { *out << c.type; }

class Activation : public testing::TestWithParam<ActivationCase> {};

// Every activation meets a few hundred elements: whole registers of them and a remainder.
std::vector<double> Arguments(const ActivationCase& c, int64_t n) {
  return c.positive_only ? Numbers(n, 0.1, 5) : DistinctNumbers(n, 0.01);
}

TEST_P(Activation, IsItsFunction) {
  const ActivationCase& c = GetParam();
  const auto x = Arguments(c, 333);
  OpTest test(c.type);
  test.In<float>("X", {3, 111}, As<float>(x)).Out("Out").Run();
  OpTest precise(c.type);
  precise.In<double>("X", {3, 111}, x).Out("Out").Run();
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(test.Get<float>("Out")[i], c.reference(static_cast<float>(x[i])),
                2e-6 * std::max(1.0, std::abs(c.reference(x[i]))))
        << x[i];
    ASSERT_NEAR(precise.Get<double>("Out")[i], c.reference(x[i]), 1e-13 * std::max(1.0, std::abs(c.reference(x[i]))))
        << x[i];
  }
}

TEST_P(Activation, HasItsDerivative) {
  const ActivationCase& c = GetParam();
  OpTest test(c.type);
  test.In<double>("X", {37}, Arguments(c, 37)).Out("Out").CheckGradient({"X"}, {"Out"});
}

TEST_P(Activation, WorksInPlace) {
  const ActivationCase& c = GetParam();
  const auto x = Arguments(c, 20);
  OpTest apart(c.type);
  apart.In<double>("X", {20}, x).Out("Out").Run();
  OpTest in_place(c.type);
  in_place.In<double>("X", {20}, x).InPlace("Out", "X").Run();
  EXPECT_EQ(apart.Get<double>("Out"), in_place.Get<double>("Out"));
}

TEST_P(Activation, LetsNaNThrough) {
  OpTest test(GetParam().type);
  std::vector<float> x(21, 1.0f);
  x[3] = x[20] = std::numeric_limits<float>::quiet_NaN();
  test.In<float>("X", {21}, x).Out("Out").Run();
  const auto out = test.Get<float>("Out");
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(std::isnan(out[i]), std::isnan(x[i])) << i;
  }
}

// Whatever its neighbours are: the last elements of an array take no other way than the first.
TEST_P(Activation, DoesNotDependOnThePositionOfAnElement) {
  OpTest test(GetParam().type);
  test.In<float>("X", {45}, std::vector<float>(45, 0.7f)).Out("Out").Run();
  for (const float out : test.Get<float>("Out")) {
    ASSERT_EQ(out, test.Get<float>("Out")[0]);
  }
}

TEST_P(Activation, TakesAnEmptyTensor) {
  OpTest test(GetParam().type);
  test.In<float>("X", {0, 5}, {}).Out("Out").Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{0, 5}));
}

INSTANTIATE_TEST_SUITE_P(
    All, Activation,
    testing::Values(ActivationCase{"relu", [](double x) { return std::max(x, 0.0); }},
                    ActivationCase{"sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }},
                    ActivationCase{"tanh", [](double x) { return std::tanh(x); }},
                    ActivationCase{"exp", [](double x) { return std::exp(x); }},
                    ActivationCase{"log", [](double x) { return std::log(x); }, true},
                    ActivationCase{"sqrt", [](double x) { return std::sqrt(x); }, true},
                    ActivationCase{"square", [](double x) { return x * x; }},
                    ActivationCase{"abs", [](double x) { return std::abs(x); }},
                    ActivationCase{"leaky_relu", [](double x) { return x < 0 ? static_cast<double>(0.02) * x : x; }},
                    ActivationCase{"gelu", [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }}),
    [](const auto& c) { return c.param.type; });

TEST(LeakyRelu, TakesItsSlope) {
  OpTest test("leaky_relu");
  test.In<float>("X", {2}, {-2, 2}).Out("Out").Attr("alpha", 0.5f).Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{-1, 2}));
}

TEST(Activations, KeepTheLoD) {
  OpTest test("relu");
  test.In<float>("X", {3, 1}, {-1, 0, 1}, {{0, 1, 3}}).Out("Out").Run();
  EXPECT_EQ(test.Output("Out").lod(), (LoD{{0, 1, 3}}));
}

TEST(Activations, SaturateWithoutNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {-inf, -1000, 1000, inf};
  const auto run = [&](const char* type) {
    OpTest test(type);
    test.In<float>("X", {4}, x).Out("Out").Run();
    return test.Get<float>("Out");
  };
  EXPECT_EQ(run("tanh"), (std::vector<float>{-1, -1, 1, 1}));
  EXPECT_EQ(run("sigmoid"), (std::vector<float>{0, 0, 1, 1}));
  EXPECT_EQ(run("exp"), (std::vector<float>{0, 0, inf, inf}));
}

// The result of X and, for gradients, of as many ones.
std::vector<float> RunOnX(const std::string& type, const std::vector<float>& x) {
  OpTest test(type);
  const DDim dims{static_cast<int64_t>(x.size())};
  test.In<float>("X", dims, x);
  const std::string out = type.ends_with("_grad") ? "X@GRAD" : "Out";
  if (out == "X@GRAD") {
    test.In<float>("Out@GRAD", dims, std::vector<float>(x.size(), 1));
  }
  test.Out(out).Run();
  return test.Get<float>(out);
}

// Vectors of 512 bits compute whole tensors where the processor has them, but none of tensors of a few elements.
TEST(Activations, BitsDoNotDependOnTheWidthOfVectors) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> x;
  for (int i = -400; i <= 400; ++i) {
    x.push_back(0.05F * static_cast<float>(i));
  }
  for (float magnitude = 1e-44F; magnitude < kInfinity; magnitude *= magnitude < 1e-40F ? 2 : 1.25F) {
    x.push_back(magnitude);
    x.push_back(-magnitude);
  }
  x.insert(x.end(), {-0.0F, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()});
  const auto check = [](const std::string& type, const std::vector<float>& all) {
    static constexpr int64_t kPart = 13;
    const std::vector<float> whole = RunOnX(type, all);
    for (size_t begin = 0; begin < all.size(); begin += kPart) {
      const auto first = all.begin() + static_cast<int64_t>(begin);
      const std::vector<float> part(first, first + std::min<int64_t>(kPart, all.end() - first));
      const std::vector<float> out = RunOnX(type, part);
      for (size_t i = 0; i < part.size(); ++i) {
        ASSERT_EQ(std::isnan(out[i]), std::isnan(whole[begin + i])) << type << " of " << part[i];
        ASSERT_TRUE(std::isnan(out[i]) || std::bit_cast<int32_t>(out[i]) == std::bit_cast<int32_t>(whole[begin + i]))
            << type << " of " << part[i] << ": " << out[i] << " and " << whole[begin + i];
      }
    }
  };
  for (const std::string type :
       {"exp", "sigmoid", "logsigmoid", "logsigmoid_grad", "softplus", "softplus_grad", "soft_relu", "soft_relu_grad",
        "elu_grad", "selu_grad", "swish", "swish_grad", "gelu", "gelu_grad", "erf", "erf_grad"}) {
    check(type, x);
  }
  // Large angles are not computed in vectors, nor are their neighbours.
  std::vector<float> angles;
  std::ranges::copy_if(x, std::back_inserter(angles), [](float each) { return std::abs(each) < 1e6F; });
  for (const std::string type : {"sin", "sin_grad", "cos", "cos_grad"}) {
    check(type, angles);
    check(type, x);
  }
}

TEST(Activations, RefuseIntegers) {
  OpTest test("relu");
  test.In<int64_t>("X", {1}, {1}).Out("Out");
  ExpectRunThrows<Unimplemented>(test, "relu", "int64");
}

}  // namespace
}  // namespace headrace
