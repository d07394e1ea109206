#include <cmath>
#include <limits>

#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

constexpr const char* kAll[] = {"elementwise_add", "elementwise_sub", "elementwise_mul",
                                "elementwise_div", "elementwise_max", "elementwise_min"};

template <typename T>
std::vector<T> Apply(const std::string& type, const std::vector<T>& x, const std::vector<T>& y) {
  OpTest test(type);
  const auto n = static_cast<int64_t>(x.size());
  test.In<T>("X", {n}, x);
  test.In<T>("Y", {n}, y).Out("Out").Run();
  return test.Get<T>("Out");
}

TEST(Elementwise, ComputesElementByElement) {
  const std::vector<float> x = {6, -8};
  const std::vector<float> y = {3, 2};
  EXPECT_EQ(Apply("elementwise_add", x, y), (std::vector<float>{9, -6}));
  EXPECT_EQ(Apply("elementwise_sub", x, y), (std::vector<float>{3, -10}));
  EXPECT_EQ(Apply("elementwise_mul", x, y), (std::vector<float>{18, -16}));
  EXPECT_EQ(Apply("elementwise_div", x, y), (std::vector<float>{2, -4}));
  EXPECT_EQ(Apply("elementwise_max", x, y), (std::vector<float>{6, 2}));
  EXPECT_EQ(Apply("elementwise_min", x, y), (std::vector<float>{3, -8}));
}

TEST(Elementwise, ComputesWithIntegers) {
  EXPECT_EQ(Apply<int64_t>("elementwise_div", {7, -7}, {2, 2}), (std::vector<int64_t>{3, -3}));
  EXPECT_EQ(Apply<int32_t>("elementwise_add", {INT32_MAX}, {1}), (std::vector<int32_t>{INT32_MIN}));
  EXPECT_EQ(Apply<int32_t>("elementwise_mul", {INT32_MAX}, {2}), (std::vector<int32_t>{-2}));
  EXPECT_EQ(Apply<int32_t>("elementwise_div", {INT32_MIN}, {-1}), (std::vector<int32_t>{INT32_MIN}));
}

TEST(Elementwise, RefusesToDivideAnIntegerByZero) {
  OpTest test("elementwise_div");
  test.In<int32_t>("X", {1}, {7}).In<int32_t>("Y", {1}, {0}).Out("Out");
  ExpectRunThrows<InvalidArgument>(test, "elementwise_div", "Y", "zero");
}

TEST(Elementwise, LetsNaNThroughMaximumAndMinimum) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* type : {"elementwise_max", "elementwise_min"}) {
    const auto out = Apply<float>(type, {nan, 1}, {1, nan});
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1])) << type;
  }
}

struct BroadcastCase {
  DDim x;
  DDim y;
  int32_t axis;
};

void PrintTo(const BroadcastCase& c, std::ostream* out) {
  *out << ToString(c.x) << " and " << ToString(c.y) << " at " << c.axis;
}

class ElementwiseBroadcast : public testing::TestWithParam<BroadcastCase> {};

// Against a broadcast by indices.
TEST_P(ElementwiseBroadcast, AddsYWhereItLies) {
  const BroadcastCase& c = GetParam();
  const auto x = Numbers(Product(c.x), -1, 1, 1);
  const auto y = Numbers(Product(c.y), -1, 1, 2);
  OpTest test("elementwise_add");
  test.In<double>("X", c.x, x).In<double>("Y", c.y, y).Out("Out").Attr("axis", c.axis).Run();
  const size_t begin = c.axis == -1 ? c.x.size() - c.y.size() : static_cast<size_t>(c.axis);
  for (int64_t i = 0; i < Product(c.x); ++i) {
    int64_t rest = i;
    int64_t at = 0;
    int64_t stride = 1;
    for (size_t d = c.x.size(); d-- > 0;) {
      const int64_t index = rest % c.x[d];
      rest /= c.x[d];
      if (d >= begin && d - begin < c.y.size()) {
        at += c.y[d - begin] == 1 ? 0 : index * stride;
        stride *= c.y[d - begin];
      }
    }
    ASSERT_EQ(test.Get<double>("Out")[static_cast<size_t>(i)], x[static_cast<size_t>(i)] + y[static_cast<size_t>(at)])
        << i;
  }
}

TEST_P(ElementwiseBroadcast, SumsTheGradientOfY) {
  const BroadcastCase& c = GetParam();
  // X and Y are never equal, and Y is never near zero. Elements of X lie on both sides of those of Y, so that a maximum
  // comes from either.
  std::vector<double> x = DistinctNumbers(Product(c.x), 0.01);
  for (double& value : x) {
    value += 0.5;
  }
  for (const char* type : kAll) {
    OpTest test(type);
    test.In<double>("X", c.x, x).In<double>("Y", c.y, Numbers(Product(c.y), 0.501, 0.507)).Out("Out");
    test.Attr("axis", c.axis).CheckGradient({"X", "Y"}, {"Out"});
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ElementwiseBroadcast,
                         testing::Values(BroadcastCase{{2, 3}, {2, 3}, -1}, BroadcastCase{{2, 3, 4}, {4}, -1},
                                         BroadcastCase{{2, 3, 4}, {3, 4}, -1}, BroadcastCase{{2, 3, 4}, {3}, 1},
                                         BroadcastCase{{2, 3, 4}, {2}, 0}, BroadcastCase{{2, 3, 4}, {2, 3}, 0},
                                         BroadcastCase{{2, 3, 2, 2}, {3, 1, 1}, 1}, BroadcastCase{{2, 3}, {1}, -1},
                                         BroadcastCase{{2, 3}, {1, 3}, -1}, BroadcastCase{{2, 3, 4}, {2, 1, 4}, -1},
                                         BroadcastCase{{2, 3, 4}, {1, 3, 1}, -1}, BroadcastCase{{1}, {1}, -1}));

TEST(Elementwise, GivesNoGradientThatNobodyWants) {
  OpTest x("elementwise_mul");
  x.In<double>("X", {2, 3}, Numbers(6, -1, 1))
      .In<double>("Y", {3}, Numbers(3, 1, 2))
      .Out("Out")
      .CheckGradient({"X"}, {"Out"});
  OpTest y("elementwise_mul");
  y.In<double>("X", {2, 3}, Numbers(6, -1, 1))
      .In<double>("Y", {3}, Numbers(3, 1, 2))
      .Out("Out")
      .CheckGradient({"Y"}, {"Out"});
}

TEST(Elementwise, WorksInPlace) {
  OpTest test("elementwise_sub");
  test.In<float>("X", {2, 2}, {1, 2, 3, 4}).In<float>("Y", {2}, {1, 1}).InPlace("Out", "X").Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{0, 1, 2, 3}));
}

TEST(Elementwise, RefusesToOverwriteY) {
  OpTest test("elementwise_sub");
  test.In<float>("X", {2, 2}, {1, 2, 3, 4}).In<float>("Y", {2}, {1, 1}).InPlace("Out", "Y");
  ExpectRunThrows<InvalidArgument>(test, "Out", "Y", "in place");
}

TEST(Elementwise, MaximumAndMinimumPassTheGradientToTheirSource) {
  for (const auto& [type, x_grad] : {std::pair{"elementwise_max", std::vector<float>{0, 5}},
                                     std::pair{"elementwise_min", std::vector<float>{3, 0}}}) {
    OpTest test(std::string(type) + "_grad");
    test.In<float>("X", {2}, {1, 8}).In<float>("Y", {2}, {2, 7}).In<float>("Out@GRAD", {2}, {3, 5});
    test.Out("X@GRAD").Out("Y@GRAD").Run();
    EXPECT_EQ(test.Get<float>("X@GRAD"), x_grad) << type;
    EXPECT_EQ(test.Get<float>("Y@GRAD"), (std::vector<float>{3 - x_grad[0], 5 - x_grad[1]})) << type;
  }
}

TEST(Elementwise, TakesAnEmptyBatch) {
  OpTest test("elementwise_add");
  test.In<float>("X", {0, 3}, {}).In<float>("Y", {3}, {1, 2, 3}).Out("Out").Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{0, 3}));
}

TEST(Elementwise, PropagatesUnknownDims) {
  OpTest test("elementwise_add");
  test.Declare("X", {-1, 6, -1, -1}).Declare("Y", {6}).Out("Out").Attr("axis", 1);
  EXPECT_EQ(test.InferredDims("Out"), (DDim{-1, 6, -1, -1}));
}

TEST(Elementwise, DoesNotLookAtTheAxisOfTheSameDims) {
  OpTest test("elementwise_add");
  test.In<float>("X", {2, 2}, {1, 2, 3, 4}).In<float>("Y", {2, 2}, {5, 6, 7, 8}).Out("Out").Attr("axis", 1).Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{6, 8, 10, 12}));
}

TEST(Elementwise, RefusesAYThatDoesNotFit) {
  OpTest extent("elementwise_add");
  extent.In<float>("X", {2, 3}, std::vector<float>(6)).In<float>("Y", {2}, {1, 2}).Out("Out");
  ExpectRunThrows<InvalidArgument>(extent, "elementwise_add", "Y", "expected 3", "[2]", "[2, 3]");
  OpTest rank("elementwise_add");
  rank.In<float>("X", {3}, {1, 2, 3}).In<float>("Y", {1, 3}, {1, 2, 3}).Out("Out");
  ExpectRunThrows<InvalidArgument>(rank, "Y", "[1, 3]", "[3]");
  OpTest axis("elementwise_add");
  axis.In<float>("X", {2, 3}, std::vector<float>(6))
      .In<float>("Y", {3, 1, 3}, std::vector<float>(9))
      .Out("Out")
      .Attr("axis", 1);
  ExpectRunThrows<InvalidArgument>(axis, "Y", "[3, 1, 3]", "[2, 3]");
  OpTest end("elementwise_add");
  end.In<float>("X", {2, 3}, std::vector<float>(6)).In<float>("Y", {3, 2}, std::vector<float>(6)).Out("Out");
  ExpectRunThrows<InvalidArgument>(end.Attr("axis", 1), "axis", "1", "[2, 3]");
  OpTest type("elementwise_add");
  type.In<float>("X", {1}, {1}).In<int32_t>("Y", {1}, {1}).Out("Out");
  ExpectRunThrows<TypeMismatch>(type, "Y", "float32", "int32");
}

}  // namespace
}  // namespace headrace
