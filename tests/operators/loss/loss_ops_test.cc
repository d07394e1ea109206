#include <cmath>
#include <limits>

#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<double> Softmax(std::vector<double> x) {
  double sum = 0;
  for (double& v : x) {
    sum += v = std::exp(v);
  }
  for (double& v : x) {
    v /= sum;
  }
  return x;
}

// --- softmax, log_softmax ---

TEST(Softmax, MakesProbabilitiesOfEachRow) {
  for (const int64_t cols : {1, 3, 10, 16, 100}) {
    const auto x = Numbers(cols, -3, 3);
    OpTest test("softmax");
    test.In<float>("X", {1, cols}, As<float>(x)).Out("Out").Run();
    const auto expected = Softmax(x);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(test.Get<float>("Out")[i], expected[i], 1e-6);
    }
  }
}

TEST(Softmax, DoesNotOverflow) {
  OpTest test("softmax");
  test.In<float>("X", {2, 2}, {1e30f, 1e30f, -1e30f, 0}).Out("Out").Run();
  const std::vector<float> out = test.Get<float>("Out");
  EXPECT_EQ((std::vector<float>{out[0], out[1], out[3]}), (std::vector<float>{0.5f, 0.5f, 1}));
  EXPECT_FLOAT_EQ(out[2], std::exp(-64.0f));
}

TEST(Softmax, GivesMaskedElementsNothing) {
  OpTest test("softmax");
  test.In<float>("X", {1, 3}, {0, -kInfinity, 0}).Out("Out").Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{0.5f, 0, 0.5f}));
}

TEST(Softmax, HasItsGradient) {
  OpTest test("softmax");
  test.In<double>("X", {2, 3, 5}, Numbers(30, -2, 2)).Out("Out").CheckGradient({"X"}, {"Out"});
}

TEST(Softmax, WorksInPlace) {
  OpTest test("softmax");
  test.In<float>("X", {1, 2}, {1, 1}).InPlace("Out", "X").Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{0.5f, 0.5f}));
}

TEST(Softmax, TakesEmptyTensors) {
  OpTest rows("softmax");
  rows.In<float>("X", {0, 3}, {}).Out("Out").Run();
  OpTest cols("softmax");
  cols.In<float>("X", {3, 0}, {}).Out("Out").Run();
  EXPECT_EQ(cols.Dims("Out"), (DDim{3, 0}));
}

TEST(Softmax, RefusesAnAxisThatXLacks) {
  OpTest test("softmax");
  test.In<float>("X", {2, 2}, {1, 2, 3, 4}).Out("Out").Attr("axis", 2);
  ExpectRunThrows<InvalidArgument>(test, "axis", "2");
}

TEST(LogSoftmax, IsTheLogarithmOfSoftmax) {
  const auto x = Numbers(10, -3, 3);
  OpTest test("log_softmax");
  test.In<double>("X", {1, 10}, x).Out("Out").CheckGradient({"X"}, {"Out"});
  const auto expected = Softmax(x);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(test.Get<double>("Out")[i], std::log(expected[i]), 1e-12);
  }
}

TEST(LogSoftmax, TakesNoRowsHoweverLongTheyWouldBe) {
  OpTest test("log_softmax");
  test.In<float>("X", {0, int64_t{1} << 60}, {}).Out("Out").Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{0, int64_t{1} << 60}));
}

TEST(LogSoftmax, DoesNotOverflow) {
  OpTest test("log_softmax");
  test.In<float>("X", {1, 2}, {1000, 0}).Out("Out").Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{0, -1000}));
}

// --- cross_entropy ---

TEST(CrossEntropy, TakesTheLogarithmAtTheLabel) {
  OpTest test("cross_entropy");
  test.In<float>("X", {2, 2}, {0.25f, 0.75f, 1, 0}).In<int64_t>("Label", {2, 1}, {0, 0}).Out("Y").Run();
  EXPECT_EQ(test.Dims("Y"), (DDim{2, 1}));
  EXPECT_FLOAT_EQ(test.Get<float>("Y")[0], std::log(4.0f));
  EXPECT_EQ(test.Get<float>("Y")[1], 0);
}

TEST(CrossEntropy, HasItsGradient) {
  OpTest hard("cross_entropy");
  hard.In<double>("X", {3, 4}, Numbers(12, 0.2, 1))
      .In<int64_t>("Label", {3, 1}, {3, 0, 2})
      .Out("Y")
      .CheckGradient({"X"}, {"Y"});
  OpTest soft("cross_entropy");
  soft.In<double>("X", {3, 4}, Numbers(12, 0.2, 1))
      .In<double>("Label", {3, 4}, Numbers(12, 0, 1, 2))
      .Out("Y")
      .Attr("soft_label", true);
  soft.CheckGradient({"X"}, {"Y"});
}

TEST(CrossEntropy, StaysFiniteForAProbabilityOfZero) {
  OpTest test("cross_entropy");
  test.In<float>("X", {1, 2}, {0, 1}).In<int64_t>("Label", {1, 1}, {0}).Out("Y").Run();
  EXPECT_TRUE(std::isfinite(test.Get<float>("Y")[0]));
  EXPECT_GT(test.Get<float>("Y")[0], 80);
  OpTest gradient("cross_entropy_grad");
  gradient.In<float>("X", {1, 2}, {0, 1})
      .In<int64_t>("Label", {1, 1}, {0})
      .In<float>("Y@GRAD", {1, 1}, {1})
      .Out("X@GRAD")
      .Run();
  EXPECT_TRUE(std::isfinite(gradient.Get<float>("X@GRAD")[0]));
}

TEST(CrossEntropy, IgnoresTheLabelThatIsToBeIgnored) {
  OpTest test("cross_entropy");
  test.In<double>("X", {2, 2}, {0.5, 0.5, 0.5, 0.5})
      .In<int64_t>("Label", {2, 1}, {-1, 1})
      .Out("Y")
      .Attr("ignore_index", -1);
  test.CheckGradient({"X"}, {"Y"});
  EXPECT_EQ(test.Get<double>("Y")[0], 0);
}

TEST(CrossEntropy, RefusesLabelsOutOfRange) {
  for (const int64_t label : {int64_t{4}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    OpTest test("cross_entropy");
    test.In<float>("X", {3, 4}, std::vector<float>(12, 0.25f)).In<int64_t>("Label", {3, 1}, {0, 3, label}).Out("Y");
    ExpectRunThrows<OutOfRange>(test, "cross_entropy", "Label", "row 2", std::to_string(label), "[0, 4)");
    OpTest gradient("cross_entropy_grad");
    gradient.In<float>("X", {3, 4}, std::vector<float>(12, 0.25f)).In<int64_t>("Label", {3, 1}, {0, 3, label});
    gradient.In<float>("Y@GRAD", {3, 1}, {1, 1, 1}).Out("X@GRAD");
    ExpectRunThrows<OutOfRange>(gradient, "row 2", std::to_string(label));
  }
}

TEST(CrossEntropy, RefusesLabelsOfAnotherShapeOrType) {
  OpTest dims("cross_entropy");
  dims.In<float>("X", {2, 4}, std::vector<float>(8)).In<int64_t>("Label", {3, 1}, {0, 1, 0}).Out("Y");
  ExpectRunThrows<InvalidArgument>(dims, "Label", "[2, 1]", "[3, 1]");
  OpTest vector("cross_entropy");
  vector.In<float>("X", {2, 4}, std::vector<float>(8)).In<int64_t>("Label", {3}, {0, 1, 0}).Out("Y");
  ExpectRunThrows<InvalidArgument>(vector, "Label", "[2]", "[3]");
  OpTest type("cross_entropy");
  type.In<float>("X", {2, 4}, std::vector<float>(8)).In<float>("Label", {2, 1}, {0, 1}).Out("Y");
  ExpectRunThrows<TypeMismatch>(type, "Label", "int64", "float32");
  OpTest declared("cross_entropy");
  declared.Declare("X", {-1, 4}).Declare("Label", {-1, 4}, DataType::kInt64).Out("Y");
  ExpectInferThrows<InvalidArgument>(declared, "Y", "Label", "[-1, 1]", "[-1, 4]");
}

TEST(CrossEntropy, TakesAnEmptyBatch) {
  OpTest test("cross_entropy");
  test.In<float>("X", {0, 4}, {}).In<int64_t>("Label", {0, 1}, {}).Out("Y").Run();
  EXPECT_EQ(test.Dims("Y"), (DDim{0, 1}));
}

// --- softmax_with_cross_entropy ---

TEST(SoftmaxWithCrossEntropy, IsTheCrossEntropyOfTheSoftmax) {
  const auto logits = Numbers(10, -3, 3);
  OpTest test("softmax_with_cross_entropy");
  test.In<double>("Logits", {1, 10}, logits).In<int64_t>("Label", {1, 1}, {7}).Out("Softmax").Out("Loss").Run();
  const auto expected = Softmax(logits);
  EXPECT_NEAR(test.Get<double>("Loss")[0], -std::log(expected[7]), 1e-12);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(test.Get<double>("Softmax")[i], expected[i], 1e-12);
  }
}

TEST(SoftmaxWithCrossEntropy, HasItsGradientByWayOfEachOutput) {
  for (const std::vector<std::string>& outs : {std::vector<std::string>{"Loss"}, {"Softmax"}, {"Loss", "Softmax"}}) {
    OpTest hard("softmax_with_cross_entropy");
    hard.In<double>("Logits", {3, 5}, Numbers(15, -2, 2))
        .In<int64_t>("Label", {3, 1}, {4, -100, 1})
        .Out("Softmax")
        .Out("Loss");
    hard.CheckGradient({"Logits"}, outs);
    OpTest soft("softmax_with_cross_entropy");
    soft.In<double>("Logits", {3, 5}, Numbers(15, -2, 2))
        .In<double>("Label", {3, 5}, Numbers(15, 0, 1))
        .Out("Softmax")
        .Out("Loss");
    soft.Attr("soft_label", true).CheckGradient({"Logits"}, outs);
  }
}

TEST(SoftmaxWithCrossEntropy, DoesNotOverflow) {
  OpTest test("softmax_with_cross_entropy");
  test.In<float>("Logits", {2, 2}, {1000, 0, 1000, 0})
      .In<int64_t>("Label", {2, 1}, {0, 1})
      .Out("Softmax")
      .Out("Loss")
      .Run();
  EXPECT_EQ(test.Get<float>("Loss"), (std::vector<float>{0, 1000}));
}

TEST(SoftmaxWithCrossEntropy, RefusesLabelsOutOfRange) {
  OpTest test("softmax_with_cross_entropy");
  test.In<float>("Logits", {2, 3}, std::vector<float>(6))
      .In<int64_t>("Label", {2, 1}, {0, 3})
      .Out("Softmax")
      .Out("Loss");
  ExpectRunThrows<OutOfRange>(test, "softmax_with_cross_entropy", "row 1", "3", "[0, 3)");
}

TEST(SoftmaxWithCrossEntropy, PropagatesUnknownDims) {
  OpTest test("softmax_with_cross_entropy");
  test.Declare("Logits", {-1, 10}).Declare("Label", {-1, 1}, DataType::kInt64).Out("Softmax").Out("Loss");
  EXPECT_EQ(test.InferredDims("Loss"), (DDim{-1, 1}));
  EXPECT_EQ(test.InferredDims("Softmax"), (DDim{-1, 10}));
}

// --- sigmoid_cross_entropy_with_logits, square_error_cost ---

TEST(SigmoidCrossEntropy, IsTheCrossEntropyOfTheSigmoid) {
  OpTest test("sigmoid_cross_entropy_with_logits");
  test.In<double>("X", {2}, {0.5, -2}).In<double>("Label", {2}, {1, 0.25}).Out("Out").CheckGradient({"X"}, {"Out"});
  const auto loss = [](double x, double label) {
    const double s = 1 / (1 + std::exp(-x));
    return -label * std::log(s) - (1 - label) * std::log(1 - s);
  };
  EXPECT_NEAR(test.Get<double>("Out")[0], loss(0.5, 1), 1e-12);
  EXPECT_NEAR(test.Get<double>("Out")[1], loss(-2, 0.25), 1e-12);
}

TEST(SigmoidCrossEntropy, DividesByTheElementsThatCount) {
  OpTest test("sigmoid_cross_entropy_with_logits");
  test.In<double>("X", {4}, {1, 1, 1, 1}).In<double>("Label", {4}, {-1, 0, 0, -1}).Out("Out");
  test.Attr("ignore_index", -1).Attr("normalize", true).CheckGradient({"X"}, {"Out"});
  EXPECT_EQ(test.Get<double>("Out")[0], 0);
  EXPECT_NEAR(test.Get<double>("Out")[1], std::log1p(std::exp(1.0)) / 2, 1e-12);
}

TEST(SigmoidCrossEntropy, DoesNotOverflow) {
  OpTest test("sigmoid_cross_entropy_with_logits");
  test.In<float>("X", {2}, {1000, -1000}).In<float>("Label", {2}, {0, 1}).Out("Out").Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{1000, 1000}));
}

TEST(SquareErrorCost, SquaresTheDifference) {
  OpTest test("square_error_cost");
  test.In<double>("X", {2, 3}, Numbers(6, -1, 1))
      .In<double>("Y", {2, 3}, Numbers(6, -1, 1, 2))
      .Out("Out")
      .CheckGradient({"X", "Y"}, {"Out"});
  const double difference = Numbers(6, -1, 1)[0] - Numbers(6, -1, 1, 2)[0];
  EXPECT_EQ(test.Get<double>("Out")[0], difference * difference);
}

TEST(SquareErrorCost, RefusesShapesThatDiffer) {
  OpTest test("square_error_cost");
  test.In<float>("X", {2, 1}, {1, 2}).In<float>("Y", {2}, {1, 2}).Out("Out");
  ExpectRunThrows<InvalidArgument>(test, "square_error_cost", "Y", "[2, 1]", "[2]");
}

}  // namespace
}  // namespace headrace
