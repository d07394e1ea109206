#include <cmath>

#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

OpTest BatchNorm(const DDim& x, bool is_test = false) {
  const int64_t c = x[1];
  OpTest test("batch_norm");
  test.In<double>("X", x, Numbers(Product(x), -1, 2, 1)).In<double>("Scale", {c}, Numbers(c, 0.5, 2, 2));
  test.In<double>("Bias", {c}, Numbers(c, -1, 1, 3)).In<double>("Mean", {c}, Numbers(c, -1, 1, 4));
  test.In<double>("Variance", {c}, Numbers(c, 0.5, 2, 5));
  test.Out("Y").Out("MeanOut").Out("VarianceOut").Out("SavedMean").Out("SavedVariance").Attr("is_test", is_test);
  return test;
}

class BatchNormOfShape : public testing::TestWithParam<DDim> {};

TEST_P(BatchNormOfShape, LeavesMeanZeroAndVarianceOne) {
  const DDim x = GetParam();
  OpTest test = BatchNorm(x);
  test.Attr("epsilon", 0.0f).Run();
  const auto y = test.Get<double>("Y");
  const int64_t pixels = Product(x) / x[0] / x[1];
  const auto n = static_cast<double>(x[0] * pixels);
  for (int64_t c = 0; c < x[1]; ++c) {
    const double scale = Numbers(x[1], 0.5, 2, 2)[static_cast<size_t>(c)];
    const double bias = Numbers(x[1], -1, 1, 3)[static_cast<size_t>(c)];
    double sum = 0;
    double squares = 0;
    for (int64_t i = 0; i < x[0]; ++i) {
      for (int64_t p = 0; p < pixels; ++p) {
        const double h = (y[static_cast<size_t>((i * x[1] + c) * pixels + p)] - bias) / scale;
        sum += h;
        squares += h * h;
      }
    }
    EXPECT_NEAR(sum / n, 0, 1e-12);
    EXPECT_NEAR(squares / n, 1, 1e-12);
  }
}

TEST_P(BatchNormOfShape, HasItsGradient) {
  BatchNorm(GetParam()).CheckGradient({"X", "Scale", "Bias"}, {"Y"}, 1e-6);
  BatchNorm(GetParam(), true).CheckGradient({"X", "Scale", "Bias"}, {"Y"}, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Shapes, BatchNormOfShape, testing::Values(DDim{5, 3}, DDim{3, 2, 2, 3}, DDim{4, 1, 5}));

// There is no variance to divide by: as in Fluid, nothing happens.
TEST(BatchNormOperator, LeavesABatchOfOneElementForEachChannelAsItIs) {
  OpTest test = BatchNorm({1, 3});
  test.Run();
  EXPECT_EQ(test.Get<double>("Y"), Numbers(3, -1, 2, 1));
  EXPECT_EQ(test.Get<double>("MeanOut"), Numbers(3, -1, 1, 4));
  EXPECT_EQ(test.Get<double>("VarianceOut"), Numbers(3, 0.5, 2, 5));
  BatchNorm({1, 3}).CheckGradient({"X", "Scale", "Bias"}, {"Y"}, 1e-6);
  OpTest trained = BatchNorm({1, 3}, true);
  trained.Run();
  EXPECT_NE(trained.Get<double>("Y"), Numbers(3, -1, 2, 1));
}

TEST(BatchNormOperator, MovesTheRunningStatisticsInPlace) {
  OpTest test("batch_norm");
  test.In<float>("X", {2, 1}, {1, 3}).In<float>("Scale", {1}, {1}).In<float>("Bias", {1}, {0});
  test.In<float>("Mean", {1}, {10}).In<float>("Variance", {1}, {5}).Attr("momentum", 0.75f);
  test.Out("Y")
      .InPlace("MeanOut", "Mean")
      .InPlace("VarianceOut", "Variance")
      .Out("SavedMean")
      .Out("SavedVariance")
      .Run();
  EXPECT_EQ(test.Get<float>("MeanOut")[0], 0.75f * 10 + 0.25f * 2);
  EXPECT_EQ(test.Get<float>("VarianceOut")[0], 0.75f * 5 + 0.25f * 1);
  EXPECT_EQ(test.Get<float>("SavedMean")[0], 2);
  EXPECT_FLOAT_EQ(test.Get<float>("SavedVariance")[0], 1 / std::sqrt(1 + 1e-5f));
}

TEST(BatchNormOperator, UsesAndKeepsTheRunningStatisticsInATest) {
  for (const char* attr : {"is_test", "use_global_stats"}) {
    OpTest test("batch_norm");
    test.In<float>("X", {1, 1}, {14}).In<float>("Scale", {1}, {2}).In<float>("Bias", {1}, {1});
    test.In<float>("Mean", {1}, {10}).In<float>("Variance", {1}, {4}).Attr(attr, true).Attr("epsilon", 0.0f);
    test.Out("Y")
        .InPlace("MeanOut", "Mean")
        .InPlace("VarianceOut", "Variance")
        .Out("SavedMean")
        .Out("SavedVariance")
        .Run();
    EXPECT_EQ(test.Get<float>("Y")[0], 5) << attr;
    EXPECT_EQ(test.Get<float>("MeanOut")[0], 10) << attr;
    EXPECT_EQ(test.Get<float>("VarianceOut")[0], 4) << attr;
  }
}

// The variance of numbers around 10^4 by the difference of their squares would have no digit left in float.
TEST(BatchNormOperator, RefusesResultsInPlaceOfWhatIsStillRead) {
  for (const char* out : {"MeanOut", "Y"}) {
    OpTest test("batch_norm");
    test.In<float>("X", {1, 2}, {1, 2});
    for (const char* slot : {"Scale", "Bias", "Mean", "Variance"}) {
      test.In<float>(slot, {2}, {1, 1});
    }
    for (const char* slot : {"Y", "MeanOut", "VarianceOut", "SavedMean", "SavedVariance"}) {
      slot == std::string(out) ? test.InPlace(slot, "X") : test.Out(slot);
    }
    ExpectRunThrows<InvalidArgument>(test, "batch_norm", out, "'X'", "in place");
  }
}

TEST(BatchNormOperator, DoesNotCancel) {
  OpTest test("batch_norm");
  test.In<float>("X", {2, 1}, {9999, 10001}).In<float>("Scale", {1}, {1}).In<float>("Bias", {1}, {0});
  test.In<float>("Mean", {1}, {0}).In<float>("Variance", {1}, {1});
  test.Out("Y").Out("MeanOut").Out("VarianceOut").Out("SavedMean").Out("SavedVariance").Run();
  EXPECT_NEAR(test.Get<float>("Y")[0], -1, 1e-5);
  EXPECT_NEAR(test.Get<float>("Y")[1], 1, 1e-5);
}

TEST(BatchNormOperator, PropagatesUnknownDims) {
  OpTest test("batch_norm");
  test.Declare("X", {-1, 3, -1, -1})
      .Declare("Scale", {3})
      .Declare("Bias", {3})
      .Declare("Mean", {3})
      .Declare("Variance", {3});
  test.Out("Y").Out("MeanOut").Out("VarianceOut").Out("SavedMean").Out("SavedVariance");
  EXPECT_EQ(test.InferredDims("Y"), (DDim{-1, 3, -1, -1}));
  EXPECT_EQ(test.InferredDims("SavedMean"), (DDim{3}));
}

TEST(BatchNormOperator, RefusesBadInput) {
  OpTest empty = BatchNorm({0, 2, 3});
  ExpectRunThrows<InvalidArgument>(empty, "batch_norm", "X", "[0, 2, 3]");
  OpTest empty_test = BatchNorm({0, 2, 3}, true);
  empty_test.Run();
  OpTest layout = BatchNorm({2, 2});
  layout.Attr("data_layout", std::string("CNHW"));
  ExpectRunThrows<InvalidArgument>(layout, "data_layout", "CNHW");
  OpTest scale("batch_norm");
  scale.Declare("X", {-1, 3}).Declare("Scale", {2}).Declare("Bias", {3}).Declare("Mean", {3}).Declare("Variance", {3});
  scale.Out("Y").Out("MeanOut").Out("VarianceOut").Out("SavedMean").Out("SavedVariance");
  ExpectInferThrows<InvalidArgument>(scale, "Y", "Scale", "[3]", "[2]");
  OpTest epsilon = BatchNorm({2, 2});
  epsilon.Attr("epsilon", -1.0f);
  ExpectRunThrows<InvalidArgument>(epsilon, "epsilon", "-1");
}

OpTest LayerNorm(const DDim& x, int32_t axis, bool affine) {
  OpTest test("layer_norm");
  test.In<double>("X", x, Numbers(Product(x), -1, 2, 1));
  if (affine) {
    const int64_t cols = Product(DDim(x.begin() + axis, x.end()));
    test.In<double>("Scale", {cols}, Numbers(cols, 0.5, 2, 2)).In<double>("Bias", {cols}, Numbers(cols, -1, 1, 3));
  }
  test.Out("Y").Out("Mean").Out("Variance").Attr("begin_norm_axis", axis);
  return test;
}

TEST(LayerNorm, LeavesEachRowWithMeanZeroAndVarianceOne) {
  OpTest test = LayerNorm({3, 20}, 1, false);
  test.Attr("epsilon", 0.0f).Run();
  for (size_t r = 0; r < 3; ++r) {
    double sum = 0;
    double squares = 0;
    for (size_t c = 0; c < 20; ++c) {
      const double y = test.Get<double>("Y")[r * 20 + c];
      sum += y / 20;
      squares += y * y / 20;
    }
    EXPECT_NEAR(sum, 0, 1e-12);
    EXPECT_NEAR(squares, 1, 1e-12);
  }
}

TEST(LayerNorm, HasItsGradient) {
  LayerNorm({3, 7}, 1, true).CheckGradient({"X", "Scale", "Bias"}, {"Y"}, 1e-6);
  LayerNorm({2, 3, 4}, 2, true).CheckGradient({"X", "Scale", "Bias"}, {"Y"}, 1e-6);
  LayerNorm({2, 3, 4}, 1, false).CheckGradient({"X"}, {"Y"}, 1e-6);
  LayerNorm({3, 7}, 1, true).CheckGradient({"Scale"}, {"Y"}, 1e-6);
}

TEST(LayerNorm, TakesAnEmptyBatch) {
  OpTest test = LayerNorm({0, 4}, 1, true);
  test.Run();
  EXPECT_EQ(test.Dims("Mean"), (DDim{0}));
}

TEST(LayerNorm, RefusesBadInput) {
  OpTest axis = LayerNorm({3, 4}, 1, false);
  axis.Attr("begin_norm_axis", 2);
  ExpectRunThrows<InvalidArgument>(axis, "layer_norm", "begin_norm_axis", "[3, 4]", "2");
  OpTest empty = LayerNorm({3, 0}, 1, false);
  ExpectRunThrows<InvalidArgument>(empty, "X", "[3, 0]");
  OpTest scale("layer_norm");
  scale.In<float>("X", {1, 3}, {1, 2, 3}).In<float>("Scale", {2}, {1, 1}).Out("Y").Out("Mean").Out("Variance");
  ExpectRunThrows<InvalidArgument>(scale, "Scale", "[3]", "[2]");
}

}  // namespace
}  // namespace headrace
