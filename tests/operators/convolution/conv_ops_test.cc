#include <cmath>

#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

struct ConvCase {
  DDim input;
  DDim filter;
  std::vector<int32_t> strides = {1, 1};
  std::vector<int32_t> paddings = {0, 0};
  std::vector<int32_t> dilations = {1, 1};
  int32_t groups = 1;
};

void PrintTo(const ConvCase& c, std::ostream* out) {
  *out << ToString(c.input) << " * " << ToString(c.filter) << ", strides " << ToString(Attribute(c.strides))
       << ", paddings " << ToString(Attribute(c.paddings)) << ", dilations " << ToString(Attribute(c.dilations))
       << ", groups " << c.groups;
}

OpTest Convolution(const ConvCase& c) {
  OpTest test("conv2d");
  test.In<double>("Input", c.input, Numbers(Product(c.input), -1, 1, 1))
      .In<double>("Filter", c.filter, Numbers(Product(c.filter), -1, 1, 2))
      .Known("Filter");
  test.Out("Output")
      .Attr("strides", c.strides)
      .Attr("paddings", c.paddings)
      .Attr("dilations", c.dilations)
      .Attr("groups", c.groups);
  return test;
}

class Conv2d : public testing::TestWithParam<ConvCase> {};

// Against the definition.
void ExpectTheSumOverTheWindow(const ConvCase& c) {
  const auto x = Numbers(Product(c.input), -1, 1, 1);
  const auto w = Numbers(Product(c.filter), -1, 1, 2);
  OpTest test = Convolution(c);
  test.Run();
  const DDim dims = test.Dims("Output");
  const auto out = test.Get<double>("Output");
  const auto extent = [&](size_t d) { return static_cast<int64_t>(c.dilations[d]) * (c.filter[d + 2] - 1) + 1; };
  for (size_t d = 0; d < 2; ++d) {
    ASSERT_EQ(dims[d + 2], (c.input[d + 2] + 2 * c.paddings[d] - extent(d)) / c.strides[d] + 1);
  }
  const int64_t maps = c.filter[0] / c.groups;
  size_t at = 0;
  for (int64_t n = 0; n < dims[0]; ++n) {
    for (int64_t m = 0; m < dims[1]; ++m) {
      for (int64_t oy = 0; oy < dims[2]; ++oy) {
        for (int64_t ox = 0; ox < dims[3]; ++ox, ++at) {
          double sum = 0;
          for (int64_t k = 0; k < c.filter[1]; ++k) {
            for (int64_t i = 0; i < c.filter[2]; ++i) {
              for (int64_t j = 0; j < c.filter[3]; ++j) {
                const int64_t y = oy * c.strides[0] - c.paddings[0] + i * c.dilations[0];
                const int64_t x_at = ox * c.strides[1] - c.paddings[1] + j * c.dilations[1];
                if (y < 0 || y >= c.input[2] || x_at < 0 || x_at >= c.input[3]) {
                  continue;
                }
                const int64_t channel = m / maps * c.filter[1] + k;
                sum += x[static_cast<size_t>(((n * c.input[1] + channel) * c.input[2] + y) * c.input[3] + x_at)] *
                       w[static_cast<size_t>(((m * c.filter[1] + k) * c.filter[2] + i) * c.filter[3] + j)];
              }
            }
          }
          ASSERT_NEAR(out[at], sum, 1e-12) << n << ", " << m << ", " << oy << ", " << ox;
        }
      }
    }
  }
}

TEST_P(Conv2d, IsTheSumOverTheWindow) { ExpectTheSumOverTheWindow(GetParam()); }

TEST_P(Conv2d, HasItsGradient) { Convolution(GetParam()).CheckGradient({"Input", "Filter"}, {"Output"}); }

INSTANTIATE_TEST_SUITE_P(Shapes, Conv2d,
                         testing::Values(ConvCase{{2, 1, 5, 5}, {2, 1, 3, 3}}, ConvCase{{3, 2, 4, 5}, {3, 2, 2, 3}},
                                         ConvCase{{2, 2, 5, 5}, {2, 2, 3, 3}, {2, 2}, {1, 1}},
                                         ConvCase{{1, 2, 6, 5}, {2, 2, 3, 2}, {1, 3}, {2, 0}},
                                         ConvCase{{2, 1, 7, 7}, {1, 1, 3, 3}, {1, 1}, {2, 2}, {2, 2}},
                                         ConvCase{{2, 4, 4, 4}, {6, 2, 3, 3}, {1, 1}, {1, 1}, {1, 1}, 2},
                                         ConvCase{{2, 3, 4, 4}, {3, 1, 3, 3}, {2, 1}, {1, 1}, {1, 1}, 3},
                                         ConvCase{{2, 3, 4, 4}, {5, 3, 1, 1}},
                                         ConvCase{{2, 4, 3, 3}, {4, 2, 1, 1}, {1, 1}, {0, 0}, {1, 1}, 2},
                                         ConvCase{{1, 1, 2, 2}, {1, 1, 3, 3}, {3, 3}, {4, 4}},
                                         ConvCase{{2, 2, 3, 3}, {2, 2, 1, 1}, {2, 2}},
                                         // Rows of several vectors, and of more than one panel.
                                         ConvCase{{1, 2, 4, 41}, {3, 2, 3, 3}, {1, 1}, {1, 1}},
                                         ConvCase{{1, 1, 5, 23}, {6, 1, 2, 5}, {1, 1}, {0, 3}},
                                         ConvCase{{1, 2, 4, 9}, {16, 2, 3, 3}, {1, 1}, {1, 1}},
                                         // Many channels: sums of products with shifted images.
                                         ConvCase{{1, 16, 3, 18}, {3, 16, 3, 3}, {1, 1}, {1, 1}},
                                         ConvCase{{2, 17, 3, 21}, {2, 17, 2, 3}},
                                         ConvCase{{1, 16, 5, 18}, {2, 16, 3, 3}, {1, 1}, {2, 1}, {2, 1}},
                                         ConvCase{{2, 32, 3, 16}, {4, 16, 2, 2}, {1, 1}, {1, 1}, {1, 1}, 2}));

// More maps than one task takes, more channels than a block of depth, several panels, many images, a large one.
TEST(Conv2dOperator, TakesManyMapsAndChannels) {
  ExpectTheSumOverTheWindow({{1, 16, 3, 41}, {150, 16, 3, 3}, {1, 1}, {1, 1}});
  ExpectTheSumOverTheWindow({{2, 300, 3, 12}, {2, 300, 3, 3}, {1, 1}, {1, 1}});
  ExpectTheSumOverTheWindow({{70, 16, 9, 13}, {3, 16, 3, 2}, {1, 1}, {1, 0}});
  ExpectTheSumOverTheWindow({{1, 64, 16, 30}, {64, 64, 3, 3}, {1, 1}, {1, 1}});
}

// The zeros around this image would need more memory than there is.
TEST(Conv2dOperator, TakesMorePaddingThanMemory) {
  const int32_t far = 1 << 20;
  ExpectTheSumOverTheWindow({{1, 16, 1, 1}, {1, 16, 3, 3}, {1, 1}, {far, far}, {far, far}});
}

// More images than go into one matrix product: 300 of 25 * 64 columns.
TEST(Conv2dOperator, TakesLargeBatches) {
  const ConvCase all{{300, 1, 12, 12}, {4, 1, 5, 5}};
  OpTest batch = Convolution(all);
  batch.Run();
  const auto x = Numbers(Product(all.input), -1, 1, 1);
  for (const int64_t image : {0, 1, 19, 20, 21, 150, 299}) {
    OpTest single("conv2d");
    const auto begin = x.begin() + image * 144;
    single.In<double>("Input", {1, 1, 12, 12}, std::vector<double>(begin, begin + 144))
        .In<double>("Filter", all.filter, Numbers(100, -1, 1, 2))
        .Known("Filter");
    single.Out("Output").Run();
    for (size_t i = 0; i < 256; ++i) {
      ASSERT_NEAR(batch.Get<double>("Output")[static_cast<size_t>(image) * 256 + i], single.Get<double>("Output")[i],
                  1e-12);
    }
  }
}

TEST(Conv2dOperator, SumsTheFilterGradientOverLargeBatches) {
  const int64_t images = 300;
  OpTest test("conv2d_grad");
  test.In<double>("Input", {images, 1, 12, 12}, std::vector<double>(static_cast<size_t>(images) * 144, 1.0));
  test.In<double>("Filter", {1, 1, 5, 5}, std::vector<double>(25, 1.0)).Known("Filter");
  test.In<double>("Output@GRAD", {images, 1, 8, 8}, std::vector<double>(static_cast<size_t>(images) * 64, 1.0));
  test.Out("Filter@GRAD").Out("Input@GRAD").Run();
  for (const double gradient : test.Get<double>("Filter@GRAD")) {
    ASSERT_EQ(gradient, 300 * 64);
  }
  EXPECT_EQ(test.Get<double>("Input@GRAD")[0], 1);
  EXPECT_EQ(test.Get<double>("Input@GRAD")[5 * 12 + 5], 25);
}

TEST(Conv2dOperator, TakesAnEmptyBatch) {
  OpTest forward("conv2d");
  forward.In<float>("Input", {0, 1, 5, 5}, {})
      .In<float>("Filter", {2, 1, 3, 3}, std::vector<float>(18))
      .Known("Filter")
      .Out("Output")
      .Run();
  EXPECT_EQ(forward.Dims("Output"), (DDim{0, 2, 3, 3}));
  OpTest backward("conv2d_grad");
  backward.In<float>("Input", {0, 1, 5, 5}, {}).In<float>("Filter", {2, 1, 3, 3}, std::vector<float>(18));
  backward.Known("Filter");
  backward.In<float>("Output@GRAD", {0, 2, 3, 3}, {}).Out("Input@GRAD").Out("Filter@GRAD").Run();
  EXPECT_EQ(backward.Get<float>("Filter@GRAD"), std::vector<float>(18, 0.0f));
}

TEST(Conv2dOperator, RefusesSizesThatOverflow) {
  for (const auto& [input, filter] : {std::pair{DDim{1, -1, INT64_MAX, 8}, DDim{1, 1, 3, 3}},
                                      std::pair{DDim{1, -1, 8, 8}, DDim{1, int64_t{1} << 40, 1, 1}},
                                      std::pair{DDim{1, -1, 8, 8}, DDim{1, 1, int64_t{1} << 60, 1}}}) {
    OpTest test("conv2d");
    test.Declare("Input", input).Declare("Filter", filter).Out("Output");
    test.Attr("groups", int32_t{1} << 30).Attr("dilations", std::vector<int32_t>{1 << 20, 1 << 20});
    test.Attr("paddings", std::vector<int32_t>{1 << 20, 1 << 20});
    ExpectInferThrows<InvalidArgument>(test, "Output");
  }
}

TEST(Conv2dOperator, PropagatesUnknownDims) {
  OpTest test("conv2d");
  test.Declare("Input", {-1, 1, 28, -1})
      .Declare("Filter", {6, 1, 5, 5})
      .Out("Output")
      .Attr("strides", std::vector<int32_t>{2, 1});
  EXPECT_EQ(test.InferredDims("Output"), (DDim{-1, 6, 12, -1}));
}

TEST(Conv2dOperator, RefusesShapesThatDoNotFit) {
  const auto refuse = [](const ConvCase& c, const std::vector<std::string>& parts) {
    OpTest test = Convolution(c);
    ExpectThrows<InvalidArgument>([&] { test.Run(); }, parts);
    ExpectThrows<InvalidArgument>([&] { test.InferredDims("Output"); }, parts);
  };
  refuse({{1, 2, 3, 3}, {1, 1, 2, 2}}, {"conv2d", "Input", "1 channels", "[1, 2, 3, 3]"});
  refuse({{1, 4, 3}, {1, 4, 1, 1}}, {"Input", "[1, 4, 3]"});
  refuse({{1, 4, 3, 3}, {1, 4, 1}}, {"Filter", "[1, 4, 1]"});
  refuse({{1, 1, 3, 3}, {1, 1, 4, 2}}, {"Input", "height", "3", "4"});
  refuse({{1, 4, 3, 3}, {3, 2, 1, 1}, {1, 1}, {0, 0}, {1, 1}, 2}, {"Filter", "groups", "[3, 2, 1, 1]"});
  refuse({{1, 1, 3, 3}, {1, 1, 1, 1}, {0, 1}}, {"strides", "[0, 1]"});
  refuse({{1, 1, 3, 3}, {1, 1, 1, 1}, {1}}, {"strides", "[1]"});
  refuse({{1, 1, 3, 3}, {1, 1, 1, 1}, {1, 1}, {-1, 0}}, {"paddings", "[-1, 0]"});
  refuse({{1, 1, 3, 3}, {1, 1, 1, 1}, {1, 1}, {0, 0}, {1, 0}}, {"dilations", "[1, 0]"});
  refuse({{1, 1, 3, 3}, {1, 1, 1, 1}, {1, 1}, {0, 0}, {1, 1}, 0}, {"groups", "0"});
}

}  // namespace
}  // namespace headrace
