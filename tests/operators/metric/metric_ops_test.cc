#include <cmath>
#include <limits>

#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(TopK, FindsTheGreatestOfEachRow) {
  OpTest test("top_k");
  test.In<float>("X", {2, 4}, {1, 4, 3, 2, -1, -4, -3, -2}).Out("Out").Out("Indices").Attr("k", 2).Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{4, 3, -1, -2}));
  EXPECT_EQ(test.Get<int64_t>("Indices"), (std::vector<int64_t>{1, 2, 0, 3}));
}

TEST(TopK, PrefersTheFirstOfEqualElements) {
  OpTest test("top_k");
  test.In<float>("X", {1, 6}, {1, 5, 5, 0, 5, 1}).Out("Out").Out("Indices").Attr("k", 4).Run();
  EXPECT_EQ(test.Get<int64_t>("Indices"), (std::vector<int64_t>{1, 2, 4, 0}));
}

TEST(TopK, PutsNaNFirst) {
  OpTest test("top_k");
  test.In<float>("X", {1, 5}, {1, kNaN, 3, kNaN, 2}).Out("Out").Out("Indices").Attr("k", 3).Run();
  EXPECT_EQ(test.Get<int64_t>("Indices"), (std::vector<int64_t>{1, 3, 2}));
}

TEST(TopK, HasItsGradient) {
  OpTest test("top_k");
  test.In<double>("X", {3, 5}, DistinctNumbers(15, 0.01))
      .Out("Out")
      .Out("Indices")
      .Attr("k", 2)
      .CheckGradient({"X"}, {"Out"});
}

TEST(TopK, TakesNoRowsHoweverLongTheyWouldBe) {
  OpTest test("top_k");
  test.In<float>("X", {0, int64_t{1} << 60}, {}).Out("Out").Out("Indices").Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{0, 1}));
}

TEST(TopK, RefusesMoreThanThereAre) {
  OpTest test("top_k");
  test.In<float>("X", {2, 2}, {1, 2, 3, 4}).Out("Out").Out("Indices").Attr("k", 3);
  ExpectRunThrows<InvalidArgument>(test, "top_k", "k", "[2, 2]", "3");
  test.Attr("k", 0);
  ExpectRunThrows<InvalidArgument>(test, "k", "0");
}

TEST(TopK, PropagatesUnknownDims) {
  OpTest test("top_k");
  test.Declare("X", {-1, 10}).Out("Out").Out("Indices").Attr("k", 5);
  EXPECT_EQ(test.InferredDims("Indices"), (DDim{-1, 5}));
}

OpTest Accuracy(const std::vector<int64_t>& indices, const std::vector<int64_t>& labels) {
  const auto rows = static_cast<int64_t>(labels.size());
  const int64_t k = rows == 0 ? 1 : static_cast<int64_t>(indices.size()) / rows;
  OpTest test("accuracy");
  test.In<float>("Out", {rows, k}, std::vector<float>(indices.size())).In<int64_t>("Indices", {rows, k}, indices);
  test.In<int64_t>("Label", {rows, 1}, labels).Out("Accuracy").Out("Correct").Out("Total");
  return test;
}

TEST(Accuracy, CountsRowsWithTheirLabelAmongTheIndices) {
  OpTest test = Accuracy({1, 2, 3, 4, 5, 6, 7, 8}, {2, 1, 6, 7});
  test.Run();
  EXPECT_EQ(test.Get<float>("Accuracy")[0], 0.75f);
  EXPECT_EQ(test.Get<int32_t>("Correct")[0], 3);
  EXPECT_EQ(test.Get<int32_t>("Total")[0], 4);
}

TEST(Accuracy, RefusesAnEmptyBatchAndBadLabels) {
  OpTest empty = Accuracy({}, {});
  ExpectRunThrows<InvalidArgument>(empty, "accuracy", "at least one row");
  OpTest negative = Accuracy({0, 0}, {0, -1});
  ExpectRunThrows<OutOfRange>(negative, "Label", "row 1", "-1");
}

TEST(Accuracy, RefusesLabelsOfAnotherShape) {
  OpTest test("accuracy");
  test.In<float>("Out", {2, 1}, {1, 2}).In<int64_t>("Indices", {2, 1}, {1, 2}).In<int64_t>("Label", {2}, {1, 2});
  test.Out("Accuracy").Out("Correct").Out("Total");
  ExpectRunThrows<InvalidArgument>(test, "Label", "[2, 1]", "[2]");
}

TEST(ArgMax, FindsTheGreatestAlongItsAxis) {
  const std::vector<float> x = {1, 5, 2, 7, 0, 3};
  OpTest last("arg_max");
  last.In<float>("X", {2, 3}, x).Out("Out").Run();
  EXPECT_EQ(last.Get<int64_t>("Out"), (std::vector<int64_t>{1, 0}));
  OpTest first("arg_max");
  first.In<float>("X", {2, 3}, x).Out("Out").Attr("axis", int64_t{0}).Run();
  EXPECT_EQ(first.Get<int64_t>("Out"), (std::vector<int64_t>{1, 0, 1}));
  OpTest only("arg_max");
  only.In<int64_t>("X", {3}, {4, 9, 9}).Out("Out").Run();
  EXPECT_EQ(only.Get<int64_t>("Out"), (std::vector<int64_t>{1}));
  EXPECT_EQ(only.Dims("Out"), (DDim{1}));
}

TEST(ArgMax, TakesNaNForTheGreatest) {
  OpTest test("arg_max");
  test.In<float>("X", {3}, {4, kNaN, 9}).Out("Out").Run();
  EXPECT_EQ(test.Get<int64_t>("Out")[0], 1);
}

TEST(ArgMax, RefusesAnEmptyAxisAndOneThatIsNotThere) {
  OpTest empty("arg_max");
  empty.In<float>("X", {2, 0}, {}).Out("Out");
  ExpectRunThrows<InvalidArgument>(empty, "arg_max", "X", "[2, 0]");
  OpTest axis("arg_max");
  axis.In<float>("X", {2}, {1, 2}).Out("Out").Attr("axis", int64_t{1});
  ExpectRunThrows<InvalidArgument>(axis, "axis", "1");
}

}  // namespace
}  // namespace headrace
