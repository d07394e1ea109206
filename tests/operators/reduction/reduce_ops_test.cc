#include <cmath>
#include <limits>

#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

TEST(Mean, AveragesAllElements) {
  OpTest test("mean");
  test.In<double>("X", {2, 3}, {1, 2, 3, 4, 5, 6}).Out("Out").CheckGradient({"X"}, {"Out"});
  EXPECT_EQ(test.Dims("Out"), (DDim{1}));
  EXPECT_EQ(test.Get<double>("Out")[0], 3.5);
}

TEST(Mean, RefusesToAverageNothing) {
  OpTest test("mean");
  test.In<float>("X", {0, 3}, {}).Out("Out");
  ExpectRunThrows<InvalidArgument>(test, "mean", "X", "[0, 3]");
}

TEST(Mean, IsDeclaredForAnUnknownBatch) {
  OpTest test("mean");
  test.Declare("X", {-1, 1}).Out("Out");
  EXPECT_EQ(test.InferredDims("Out"), (DDim{1}));
}

// A running sum in float would have lost its last digits long before.
TEST(Mean, StaysPreciseForManyElements) {
  OpTest test("mean");
  test.In<float>("X", {1 << 22}, std::vector<float>(1 << 22, 0.1f)).Out("Out").Run();
  EXPECT_NEAR(test.Get<float>("Out")[0], 0.1, 1e-7);
}

struct ReduceCase {
  DDim x;
  std::vector<int32_t> dim;
  bool keep_dim;
  bool reduce_all;
  DDim out;
};

void PrintTo(const ReduceCase& c, std::ostream* out) { *out << ToString(c.x) << " by " << ToString(Attribute(c.dim)); }

class Reduce : public testing::TestWithParam<ReduceCase> {
 protected:
  OpTest Reduction(const std::string& type) {
    OpTest test(type);
    test.In<double>("X", GetParam().x, DistinctNumbers(Product(GetParam().x), 0.01)).Out("Out");
    test.Attr("dim", GetParam().dim).Attr("keep_dim", GetParam().keep_dim).Attr("reduce_all", GetParam().reduce_all);
    return test;
  }
};

TEST_P(Reduce, HasItsDimsAndItsGradient) {
  for (const char* type : {"reduce_sum", "reduce_mean", "reduce_max"}) {
    OpTest test = Reduction(type);
    test.CheckGradient({"X"}, {"Out"});
    EXPECT_EQ(test.Dims("Out"), GetParam().out) << type;
  }
}

// Against a reduction by indices.
TEST_P(Reduce, ReducesAlongItsDims) {
  const DDim& dims = GetParam().x;
  const auto x = DistinctNumbers(Product(dims), 0.01);
  std::vector<bool> reduced(dims.size(), GetParam().reduce_all);
  for (const int32_t d : GetParam().dim) {
    reduced[static_cast<size_t>(d < 0 ? d + static_cast<int32_t>(dims.size()) : d)] = true;
  }
  std::vector<double> sums(static_cast<size_t>(Product(GetParam().out)), 0);
  std::vector<double> maxima(sums.size(), -std::numeric_limits<double>::infinity());
  for (int64_t i = 0; i < Product(dims); ++i) {
    int64_t rest = i;
    int64_t at = 0;
    int64_t stride = 1;
    for (size_t d = dims.size(); d-- > 0;) {
      at += reduced[d] ? 0 : rest % dims[d] * stride;
      stride *= reduced[d] ? 1 : dims[d];
      rest /= dims[d];
    }
    sums[static_cast<size_t>(at)] += x[static_cast<size_t>(i)];
    maxima[static_cast<size_t>(at)] = std::max(maxima[static_cast<size_t>(at)], x[static_cast<size_t>(i)]);
  }
  OpTest sum = Reduction("reduce_sum");
  OpTest mean = Reduction("reduce_mean");
  OpTest max = Reduction("reduce_max");
  sum.Run();
  mean.Run();
  max.Run();
  const double count = static_cast<double>(x.size()) / static_cast<double>(sums.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_NEAR(sum.Get<double>("Out")[i], sums[i], 1e-12);
    EXPECT_NEAR(mean.Get<double>("Out")[i], sums[i] / count, 1e-12);
    EXPECT_EQ(max.Get<double>("Out")[i], maxima[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Reduce,
    testing::Values(ReduceCase{{2, 3, 4}, {0}, false, false, {3, 4}}, ReduceCase{{2, 3, 4}, {1}, false, false, {2, 4}},
                    ReduceCase{{2, 3, 4}, {2}, false, false, {2, 3}},
                    ReduceCase{{2, 3, 4}, {-1}, true, false, {2, 3, 1}},
                    ReduceCase{{2, 3, 4}, {0, 2}, false, false, {3}},
                    ReduceCase{{2, 3, 4}, {2, 1}, true, false, {2, 1, 1}},
                    ReduceCase{{2, 3, 4}, {0, 1, 2}, false, false, {1}}, ReduceCase{{2, 3, 4}, {0}, false, true, {1}},
                    ReduceCase{{2, 3, 4}, {0}, true, true, {1, 1, 1}},
                    ReduceCase{{2, 3, 2, 3}, {1, 3}, false, false, {2, 2}}, ReduceCase{{5}, {0}, false, false, {1}}));

TEST(ReduceSum, OfNothingIsZero) {
  OpTest test("reduce_sum");
  test.In<float>("X", {0, 2}, {}).Out("Out").Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{0, 0}));
}

TEST(ReduceOperators, RefuseNothingWhereItHasNoValue) {
  for (const char* type : {"reduce_mean", "reduce_max"}) {
    OpTest test(type);
    test.In<float>("X", {0, 2}, {}).Out("Out");
    ExpectRunThrows<InvalidArgument>(test, type, "X", "[0, 2]");
  }
}

TEST(ReduceMax, TakesIntegersAndNaN) {
  OpTest integers("reduce_max");
  integers.In<int64_t>("X", {3}, {-7, -5, -6}).Out("Out").Run();
  EXPECT_EQ(integers.Get<int64_t>("Out")[0], -5);
  OpTest nan("reduce_max");
  nan.In<float>("X", {3}, {1, std::numeric_limits<float>::quiet_NaN(), 2}).Out("Out").Run();
  EXPECT_TRUE(std::isnan(nan.Get<float>("Out")[0]));
}

TEST(ReduceOperators, PropagateUnknownDims) {
  OpTest test("reduce_mean");
  test.Declare("X", {-1, 3, 4}).Out("Out").Attr("dim", std::vector<int32_t>{1});
  EXPECT_EQ(test.InferredDims("Out"), (DDim{-1, 4}));
}

TEST(ReduceOperators, RefuseDimsThatAreNotThere) {
  OpTest range("reduce_sum");
  range.In<float>("X", {2}, {1, 2}).Out("Out").Attr("dim", std::vector<int32_t>{1});
  ExpectRunThrows<InvalidArgument>(range, "reduce_sum", "dim", "1");
  OpTest twice("reduce_sum");
  twice.In<float>("X", {2}, {1, 2}).Out("Out").Attr("dim", std::vector<int32_t>{0, -1});
  ExpectRunThrows<InvalidArgument>(twice, "dim", "twice");
  OpTest none("reduce_sum");
  none.In<float>("X", {2}, {1, 2}).Out("Out").Attr("dim", std::vector<int32_t>{});
  ExpectRunThrows<InvalidArgument>(none, "dim");
}

}  // namespace
}  // namespace headrace
