// mish against its definition, and its gradient against central differences.
#include <cmath>
#include <vector>

#include "framework/testing/op_test.h"

namespace {

using headrace::OpTest;

TEST(Mish, IsXTimesTanhOfSoftplus) {
  const std::vector<double> x = {-30, -1, 0, 0.5, 2, 800};
  OpTest test("mish");
  test.In<double>("X", {2, 3}, x).Out("Out");
  test.Run();
  const auto out = test.Get<double>("Out");
  for (size_t i = 0; i < x.size(); ++i) {
    const double softplus = x[i] > 30 ? x[i] : std::log1p(std::exp(x[i]));
    EXPECT_NEAR(out[i], x[i] * std::tanh(softplus), 1e-12 * std::abs(x[i]));
  }
}

TEST(Mish, Gradient) {
  OpTest test("mish");
  test.In<double>("X", {3, 4}, headrace::Numbers(12, -3, 3)).Out("Out").CheckGradient({"X"}, {"Out"});
}

}  // namespace
