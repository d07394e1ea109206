// low_rank_linear against its definition, its gradients against central differences, and what it refuses.
#include <cstdint>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace {

using headrace::Numbers;
using headrace::OpTest;

constexpr int64_t kRows = 5;
constexpr int64_t kIn = 4;
constexpr int64_t kRank = 2;
constexpr int64_t kOut = 3;

const std::vector<double> kX = Numbers(kRows * kIn, -1, 1);
const std::vector<double> kDown = Numbers(kIn * kRank, -2, 1);
const std::vector<double> kUp = Numbers(kRank * kOut, -1, 2);
const std::vector<double> kBias = {3, -4, 5};

OpTest Layer(bool biased) {
  OpTest test("low_rank_linear");
  test.In<double>("X", {kRows, kIn}, kX).In<double>("Down", {kIn, kRank}, kDown).In<double>("Up", {kRank, kOut}, kUp);
  if (biased) {
    test.In<double>("Bias", {kOut}, kBias);
  }
  test.Out("Out");
  return test;
}

TEST(LowRankLinear, IsTheProductPlusTheBias) {
  for (const bool biased : {false, true}) {
    OpTest test = Layer(biased);
    test.Run();
    const auto out = test.Get<double>("Out");
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t o = 0; o < kOut; ++o) {
        double expected = biased ? kBias[o] : 0;
        for (int64_t i = 0; i < kIn; ++i) {
          for (int64_t k = 0; k < kRank; ++k) {
            expected += kX[r * kIn + i] * kDown[i * kRank + k] * kUp[k * kOut + o];
          }
        }
        EXPECT_NEAR(out[r * kOut + o], expected, 1e-12);
      }
    }
  }
}

TEST(LowRankLinear, Gradients) {
  Layer(true).CheckGradient({"X", "Down", "Up", "Bias"}, {"Out"});
  Layer(false).CheckGradient({"Up"}, {"Out"});
}

TEST(LowRankLinear, RefusesMatricesThatDoNotMeet) {
  OpTest test("low_rank_linear");
  test.In<double>("X", {kRows, kIn}, kX).In<double>("Down", {kIn, kRank}, kDown).In<double>("Up", {kOut, kRank}, kUp);
  test.Out("Out");
  try {
    test.Run();
    FAIL() << "Up has three rows, Down two columns";
  } catch (const headrace::Error& error) {
    EXPECT_NE(std::string(error.what()).find("input Up: expected dims [2, -1], got [3, 2]"), std::string::npos)
        << error.what();
  }
}

}  // namespace
