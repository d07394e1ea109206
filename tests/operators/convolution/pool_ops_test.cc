#include <algorithm>
#include <cmath>
#include <limits>

#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

struct PoolCase {
  DDim x;
  std::vector<int32_t> ksize;
  std::vector<int32_t> strides = {1, 1};
  std::vector<int32_t> paddings = {0, 0};
  bool ceil_mode = false;
  bool exclusive = true;
  bool global_pooling = false;
};

void PrintTo(const PoolCase& c, std::ostream* out) {
  *out << ToString(c.x) << ", ksize " << ToString(Attribute(c.ksize)) << ", strides " << ToString(Attribute(c.strides))
       << ", paddings " << ToString(Attribute(c.paddings)) << (c.ceil_mode ? ", ceil" : "")
       << (c.exclusive ? "" : ", inclusive") << (c.global_pooling ? ", global" : "");
}

OpTest Pooling(const PoolCase& c, const std::string& type) {
  OpTest test("pool2d");
  test.In<double>("X", c.x, DistinctNumbers(Product(c.x), 0.01))
      .Out("Out")
      .Attr("pooling_type", type)
      .Attr("ksize", c.ksize);
  test.Attr("strides", c.strides)
      .Attr("paddings", c.paddings)
      .Attr("ceil_mode", c.ceil_mode)
      .Attr("exclusive", c.exclusive);
  test.Attr("global_pooling", c.global_pooling);
  return test;
}

class Pool2d : public testing::TestWithParam<PoolCase> {};

// Against the definition.
TEST_P(Pool2d, ReducesEachWindow) {
  PoolCase c = GetParam();
  if (c.global_pooling) {
    c.ksize = {static_cast<int32_t>(c.x[2]), static_cast<int32_t>(c.x[3])};
    c.strides = {1, 1};
    c.paddings = {0, 0};
  }
  const auto x = DistinctNumbers(Product(c.x), 0.01);
  OpTest max = Pooling(GetParam(), "max");
  OpTest average = Pooling(GetParam(), "avg");
  max.Run();
  average.Run();
  const DDim dims = max.Dims("Out");
  ASSERT_EQ(average.Dims("Out"), dims);
  size_t at = 0;
  for (int64_t image = 0; image < dims[0] * dims[1]; ++image) {
    for (int64_t oy = 0; oy < dims[2]; ++oy) {
      for (int64_t ox = 0; ox < dims[3]; ++ox, ++at) {
        double greatest = -std::numeric_limits<double>::infinity();
        double sum = 0;
        int64_t count = 0;
        for (int64_t y = oy * c.strides[0] - c.paddings[0]; y < oy * c.strides[0] - c.paddings[0] + c.ksize[0]; ++y) {
          for (int64_t v = ox * c.strides[1] - c.paddings[1]; v < ox * c.strides[1] - c.paddings[1] + c.ksize[1]; ++v) {
            if (y < 0 || y >= c.x[2] || v < 0 || v >= c.x[3]) {
              continue;
            }
            const double value = x[static_cast<size_t>((image * c.x[2] + y) * c.x[3] + v)];
            greatest = std::max(greatest, value);
            sum += value;
            ++count;
          }
        }
        ASSERT_GT(count, 0);
        ASSERT_EQ(max.Get<double>("Out")[at], greatest);
        ASSERT_NEAR(average.Get<double>("Out")[at],
                    sum / static_cast<double>(c.exclusive ? count : c.ksize[0] * c.ksize[1]), 1e-12);
      }
    }
  }
}

TEST_P(Pool2d, HasItsGradient) {
  Pooling(GetParam(), "max").CheckGradient({"X"}, {"Out"});
  Pooling(GetParam(), "avg").CheckGradient({"X"}, {"Out"});
}

INSTANTIATE_TEST_SUITE_P(Shapes, Pool2d,
                         testing::Values(PoolCase{{2, 2, 4, 6}, {2, 2}, {2, 2}},
                                         PoolCase{{1, 2, 5, 5}, {3, 3}, {2, 2}, {1, 1}},
                                         PoolCase{{1, 2, 5, 5}, {3, 3}, {2, 2}, {1, 1}, false, false},
                                         PoolCase{{1, 1, 5, 6}, {2, 3}, {2, 1}, {0, 1}},
                                         PoolCase{{1, 1, 5, 5}, {2, 2}, {2, 2}, {0, 0}, true},
                                         PoolCase{{1, 1, 4, 4}, {2, 2}, {3, 3}, {0, 0}, true},
                                         PoolCase{{1, 2, 5, 37}, {2, 2}, {2, 2}},
                                         PoolCase{{1, 1, 4, 39}, {3, 3}, {2, 2}, {1, 1}},
                                         PoolCase{{2, 3, 4, 5}, {1, 1}, {1, 1}, {0, 0}, false, true, true}));

TEST(Pool2dOperator, KeepsAWindowThatMeetsPaddingOnly) {
  // Of the 3 positions the last begins beyond the image.
  const PoolCase c{{1, 1, 3, 3}, {2, 2}, {2, 2}, {1, 1}, true};
  for (const char* type : {"max", "avg"}) {
    OpTest test = Pooling(c, type);
    test.Run();
    ASSERT_EQ(test.Dims("Out"), (DDim{1, 1, 3, 3}));
    const std::vector<double> out = test.Get<double>("Out");
    for (const size_t i : {2, 5, 6, 7, 8}) {
      EXPECT_EQ(out[i], std::string(type) == "max" ? std::numeric_limits<double>::lowest() : 0) << i;
    }
  }
  Pooling(c, "avg").CheckGradient({"X"}, {"Out"});
}

TEST(Pool2dOperator, TheMaximumOfInfinitiesIsOne) {
  const float infinity = std::numeric_limits<float>::infinity();
  OpTest test("pool2d");
  test.In<float>("X", {1, 1, 1, 1}, {-infinity}).Out("Out").Attr("ksize", std::vector<int32_t>{1, 1}).Run();
  EXPECT_EQ(test.Get<float>("Out")[0], -infinity);
}

TEST(Pool2dOperator, NeverTakesPaddingForAMaximum) {
  OpTest test("pool2d");
  test.In<float>("X", {1, 1, 1, 1}, {-5})
      .Out("Out")
      .Attr("ksize", std::vector<int32_t>{3, 3})
      .Attr("paddings", std::vector<int32_t>{1, 1})
      .Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{-5}));
}

TEST(Pool2dOperator, GivesTheGradientToTheFirstOfEqualElements) {
  for (const int32_t stride : {1, 2}) {
    OpTest test("pool2d_grad");
    test.In<float>("X", {1, 1, 2, 2}, {1, 3, 3, 3})
        .In<float>("Out", {1, 1, 1, 1}, {3})
        .In<float>("Out@GRAD", {1, 1, 1, 1}, {7})
        .Out("X@GRAD");
    test.Attr("ksize", std::vector<int32_t>{2, 2}).Attr("strides", std::vector<int32_t>{stride, stride}).Run();
    EXPECT_EQ(test.Get<float>("X@GRAD"), (std::vector<float>{0, 7, 0, 0}));
  }
}

TEST(Pool2dOperator, LetsNaNThrough) {
  for (const int32_t stride : {1, 2}) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    OpTest forward("pool2d");
    forward.In<float>("X", {1, 1, 2, 2}, {1, nan, 3, 2}).Out("Out").Attr("ksize", std::vector<int32_t>{2, 2}).Run();
    EXPECT_TRUE(std::isnan(forward.Get<float>("Out")[0]));
    OpTest backward("pool2d_grad");
    backward.In<float>("X", {1, 1, 2, 2}, {1, nan, 3, 2})
        .In<float>("Out", {1, 1, 1, 1}, {nan})
        .In<float>("Out@GRAD", {1, 1, 1, 1}, {7})
        .Out("X@GRAD");
    backward.Attr("ksize", std::vector<int32_t>{2, 2}).Attr("strides", std::vector<int32_t>{stride, stride}).Run();
    EXPECT_EQ(backward.Get<float>("X@GRAD"), (std::vector<float>{0, 7, 0, 0}));
  }
}

TEST(Pool2dOperator, TakesAnEmptyBatch) {
  OpTest test = Pooling({{0, 2, 4, 4}, {2, 2}, {2, 2}}, "avg");
  test.Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{0, 2, 2, 2}));
}

TEST(Pool2dOperator, PropagatesUnknownDims) {
  OpTest test("pool2d");
  test.Declare("X", {-1, 6, 24, -1})
      .Out("Out")
      .Attr("ksize", std::vector<int32_t>{2, 2})
      .Attr("strides", std::vector<int32_t>{2, 2});
  EXPECT_EQ(test.InferredDims("Out"), (DDim{-1, 6, 12, -1}));
  test.Attr("global_pooling", true);
  EXPECT_EQ(test.InferredDims("Out"), (DDim{-1, 6, 1, 1}));
}

TEST(Pool2dOperator, RefusesArgumentsThatMakeNoSense) {
  const auto refuse = [](const PoolCase& c, const std::string& type, const std::vector<std::string>& parts) {
    OpTest test = Pooling(c, type);
    ExpectThrows<InvalidArgument>([&] { test.Run(); }, parts);
  };
  refuse({{1, 1, 4, 4}, {2, 2}}, "sum", {"pool2d", "pooling_type", "sum"});
  refuse({{1, 1, 4, 4}, {0, 2}}, "max", {"ksize", "[0, 2]"});
  refuse({{1, 1, 4, 4}, {2, 2}, {0, 0}}, "max", {"strides", "[0, 0]"});
  refuse({{1, 1, 4, 4}, {2, 2}, {1, 1}, {2, 0}}, "max", {"paddings", "[2, 0]"});
  refuse({{1, 1, 4, 4}, {5, 2}}, "max", {"X", "height", "4", "5"});
  refuse({{1, 4, 4}, {2, 2}}, "max", {"X", "[1, 4, 4]"});
  refuse({{1, 1, 0, 4}, {1, 1}, {1, 1}, {0, 0}, false, true, true}, "max", {"X", "[1, 1, 0, 4]"});
}

TEST(Pool2dOperator, RefusesAGradientOfOtherMaxima) {
  for (const int32_t stride : {1, 2}) {
    OpTest test("pool2d_grad");
    test.In<float>("X", {1, 1, 2, 2}, {1, 2, 3, 4})
        .In<float>("Out", {1, 1, 1, 1}, {9})
        .In<float>("Out@GRAD", {1, 1, 1, 1}, {7})
        .Out("X@GRAD");
    test.Attr("ksize", std::vector<int32_t>{2, 2}).Attr("strides", std::vector<int32_t>{stride, stride});
    ExpectRunThrows<InvalidArgument>(test, "pool2d_grad", "Out", "9");
  }
}

}  // namespace
}  // namespace headrace
