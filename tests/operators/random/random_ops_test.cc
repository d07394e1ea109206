#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "framework/errors.h"
#include "framework/testing/op_test.h"
#include "operators/math/normal_quantile.h"
#include "operators/math/philox.h"

namespace headrace {
namespace {

using ops::NormalQuantile;
using ops::Philox4x32;
using ops::PhiloxBlock;

// The known-answer vectors of the Random123 library.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

OpTest Random(const std::string& type, int64_t n, int32_t seed) {
  OpTest test(type);
  test.Out("Out")
      .Attr("shape", std::vector<int64_t>{n})
      .Attr("seed", seed)
      .Attr("dtype", static_cast<int32_t>(DataType::kFloat64));
  return test;
}

struct Moments {
  explicit Moments(const std::vector<double>& x) {
    const auto n = static_cast<double>(x.size());
    mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
    for (const double v : x) {
      variance += (v - mean) * (v - mean) / n;
    }
  }
  double mean = 0;
  double variance = 0;
};

constexpr int64_t kMany = 100000;

TEST(UniformRandom, IsUniformInItsInterval) {
  OpTest test = Random("uniform_random", kMany, 3);
  test.Attr("min", -1.0f).Attr("max", 3.0f).Run();
  const auto x = test.Get<double>("Out");
  EXPECT_GE(*std::min_element(x.begin(), x.end()), -1);
  EXPECT_LT(*std::max_element(x.begin(), x.end()), 3);
  EXPECT_NEAR(Moments(x).mean, 1, 0.02);
  EXPECT_NEAR(Moments(x).variance, 16.0 / 12, 0.02);
}

TEST(UniformRandom, NeverRoundsUpToItsUpperBound) {
  OpTest test("uniform_random");
  const float max = std::nextafter(1.0f, 2.0f);
  test.Out("Out").Attr("shape", std::vector<int64_t>{1000}).Attr("seed", 1).Attr("min", 1.0f).Attr("max", max).Run();
  for (const float x : test.Get<float>("Out")) {
    ASSERT_EQ(x, 1.0f);
  }
}

TEST(GaussianRandom, HasItsMeanAndDeviation) {
  OpTest test = Random("gaussian_random", kMany, 4);
  test.Attr("mean", 2.0f).Attr("std", 0.5f).Run();
  const Moments moments(test.Get<double>("Out"));
  EXPECT_NEAR(moments.mean, 2, 0.01);
  EXPECT_NEAR(moments.variance, 0.25, 0.01);
}

// Φ, from the complementary error function of the C library.
double Distribution(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

// Down to probabilities that no test would meet by chance.
TEST(NormalQuantile, InvertsTheDistributionFunction) {
  EXPECT_EQ(NormalQuantile(0.5), 0);
  EXPECT_NEAR(NormalQuantile(0.975), 1.959963984540054, 1e-15);
  for (double p = 0.4999; p > 1e-300; p *= 0.97) {
    ASSERT_NEAR(Distribution(NormalQuantile(p)) / p, 1, 1e-12) << p;
    if (p > 1e-3) {
      ASSERT_NEAR(NormalQuantile(1 - p), -NormalQuantile(p), 1e-12) << p;
    }
  }
}

// From one seed, gaussian_random makes the quantiles of what uniform_random makes.
TEST(GaussianRandom, IsTheQuantileOfUniformNumbers) {
  OpTest normal = Random("gaussian_random", 1000, 5);
  normal.Run();
  OpTest uniform = Random("uniform_random", 1000, 5);
  uniform.Attr("min", 0.0f).Attr("max", 1.0f).Run();
  const auto u = uniform.Get<double>("Out");
  for (size_t i = 0; i < u.size(); ++i) {
    ASSERT_DOUBLE_EQ(normal.Get<double>("Out")[i], NormalQuantile(u[i]));
  }
}

TEST(TruncatedGaussianRandom, StaysWithinTwoDeviations) {
  OpTest test = Random("truncated_gaussian_random", kMany, 6);
  test.Attr("mean", 1.0f).Attr("std", 2.0f).Run();
  const auto x = test.Get<double>("Out");
  EXPECT_GE(*std::min_element(x.begin(), x.end()), -3);
  EXPECT_LE(*std::max_element(x.begin(), x.end()), 5);
  EXPECT_NEAR(Moments(x).mean, 1, 0.02);
  EXPECT_NEAR(Moments(x).variance, 4 * 0.77374, 0.03);  // of the truncated normal distribution
}

TEST(RandomOperators, RepeatThemselvesForASeed) {
  for (const char* type : {"uniform_random", "gaussian_random", "truncated_gaussian_random"}) {
    OpTest first = Random(type, 100, 7);
    OpTest again = Random(type, 100, 7);
    OpTest other = Random(type, 100, 8);
    first.Run();
    again.Run();
    other.Run();
    EXPECT_EQ(first.Get<double>("Out"), again.Get<double>("Out")) << type;
    EXPECT_NE(first.Get<double>("Out"), other.Get<double>("Out")) << type;
  }
}

TEST(RandomOperators, StartALongTensorAsAShortOne) {
  OpTest shorter = Random("gaussian_random", 7, 9);
  OpTest longer = Random("gaussian_random", 8, 9);
  shorter.Run();
  longer.Run();
  auto prefix = longer.Get<double>("Out");
  prefix.pop_back();
  EXPECT_EQ(shorter.Get<double>("Out"), prefix);
}

TEST(RandomOperators, GiveTheSameNumbersOnEveryMachine) {
  OpTest test("uniform_random");
  test.Out("Out").Attr("shape", std::vector<int64_t>{4}).Attr("seed", 42).Attr("min", 0.0f).Attr("max", 1.0f).Run();
  const auto x = test.Get<float>("Out");
  const PhiloxBlock block = Philox4x32({0, 0, 0, 0}, {42, 0});
  EXPECT_NEAR(x[0], static_cast<double>(block[0]) * 0x1p-32, 1e-7);
  EXPECT_NEAR(x[1], static_cast<double>(block[2]) * 0x1p-32, 1e-7);
}

TEST(RandomOperators, DifferFromRunToRunWithoutASeed) {
  OpTest test = Random("uniform_random", 100, 0);
  test.NotDeterministic().Run();
  const auto first = test.Get<double>("Out");
  test.Run();
  EXPECT_NE(first, test.Get<double>("Out"));
}

// Each operator that draws, with what it takes besides its seed, and the output that shows what it has drawn.
struct Drawing {
  const char* type;
  const char* slot;
  void (*complete)(OpTest*);
};

void FillTwoRows(OpTest* test) { test->Attr("shape", std::vector<int64_t>{2, 50}); }

void FillLikeABatch(OpTest* test) {
  FillTwoRows(test);
  test->In<float>("Input", {2, 1}, {0, 0});
}

const Drawing kDrawings[] = {
    {"uniform_random", "Out", FillTwoRows},
    {"gaussian_random", "Out", FillTwoRows},
    {"truncated_gaussian_random", "Out", FillTwoRows},
    {"uniform_random_batch_size_like", "Out", FillLikeABatch},
    {"gaussian_random_batch_size_like", "Out", FillLikeABatch},
    {"sampling_id", "Out", [](OpTest* test) { test->In<float>("X", {50, 10}, std::vector<float>(500, 0.1f)); }},
    {"dropout", "Out", [](OpTest* test) { test->In<float>("X", {100}, std::vector<float>(100, 1.0f)).Out("Mask"); }},
    {"dpsgd", "ParamOut",
     [](OpTest* test) {
       test->In<float>("Param", {2}, {1, 2}).In<float>("Grad", {2}, {3, 4}).In<float>("LearningRate", {1}, {0.5f});
     }},
    {"nce", "SampleLabels",
     [](OpTest* test) {
       test->In<float>("Input", {1, 1}, {1}).In<int64_t>("Label", {1, 1}, {0});
       test->In<float>("Weight", {1000, 1}, std::vector<float>(1000, 0.1f)).Known("Weight");
       test->Out("Cost").Out("SampleLogits").Attr("num_total_classes", 1000);
     }},
    {"sample_logits", "Samples",
     [](OpTest* test) {
       test->In<float>("Logits", {1, 1000}, std::vector<float>(1000, 0.1f)).In<int64_t>("Labels", {1, 1}, {0});
       for (const char* slot : {"Probabilities", "LogitsDim", "LabelsDim", "SampledLogits", "SampledLabels"}) {
         test->Out(slot);
       }
       test->Attr("num_samples", 20);
     }},
};

OpTest CountedDrawing(const Drawing& drawing, int32_t seed) {
  OpTest test(drawing.type);
  drawing.complete(&test);
  test.Out(drawing.slot).Attr("seed", seed);
  return test;
}

// The bytes that are drawn.
std::vector<char> DrawnWith(const Drawing& drawing, int32_t seed, int64_t counter, bool narrow = false) {
  OpTest test = CountedDrawing(drawing, seed);
  if (narrow) {
    test.In<int32_t>("Seed", {1}, {static_cast<int32_t>(counter)});
  } else {
    test.In<int64_t>("Seed", {1}, {counter});
  }
  test.Run();
  const LoDTensor& out = test.Output(drawing.slot);
  const auto* data = static_cast<const char*>(out.raw_data());
  return {data, data + out.nbytes()};
}

TEST(RandomOperators, DrawSomethingElseForEachValueOfTheCounter) {
  for (const Drawing& drawing : kDrawings) {
    SCOPED_TRACE(drawing.type);
    const auto first = DrawnWith(drawing, 7, 1);
    EXPECT_EQ(first, DrawnWith(drawing, 7, 1));
    EXPECT_EQ(first, DrawnWith(drawing, 7, 1, true));
    EXPECT_NE(first, DrawnWith(drawing, 7, 2));
    EXPECT_NE(first, DrawnWith(drawing, 7, 1 + (int64_t{1} << 40)));
    EXPECT_NE(first, DrawnWith(drawing, 8, 1));
    EXPECT_EQ(DrawnWith(drawing, 0, 5), DrawnWith(drawing, 0, 5));
    OpTest plain = CountedDrawing(drawing, 7);
    plain.Run();
    const auto zeroth = DrawnWith(drawing, 7, 0);
    EXPECT_EQ(std::memcmp(plain.Output(drawing.slot).raw_data(), zeroth.data(), zeroth.size()), 0);
  }
}

TEST(RandomOperators, RefuseACounterThatIsNone) {
  for (const Drawing& drawing : kDrawings) {
    SCOPED_TRACE(drawing.type);
    OpTest number = CountedDrawing(drawing, 7);
    number.In<float>("Seed", {1}, {1});
    ExpectInferThrows<TypeMismatch>(number, "Seed", "int64", "float32");
    OpTest two = CountedDrawing(drawing, 7);
    two.In<int64_t>("Seed", {2}, {1, 2});
    ExpectInferThrows<InvalidArgument>(two, "Seed", "single element", "[2]");
  }
}

TEST(RandomOperators, HaveGradientsWithACounter) {
  OpTest nce("nce");
  nce.In<double>("Input", {2, 3}, Numbers(6, -1, 1)).In<int64_t>("Label", {2, 1}, {0, 1});
  nce.In<double>("Weight", {5, 3}, Numbers(15, -1, 1)).Known("Weight").In<int64_t>("Seed", {1}, {3});
  nce.Out("Cost").Out("SampleLogits").Out("SampleLabels").Attr("num_total_classes", 5).Attr("seed", 4);
  nce.CheckGradient({"Input", "Weight"}, {"Cost"});
  OpTest logits("sample_logits");
  logits.In<double>("Logits", {2, 6}, Numbers(12, -1, 1)).In<int64_t>("Labels", {2, 1}, {0, 1});
  logits.In<int64_t>("Seed", {1}, {3}).Attr("num_samples", 3).Attr("seed", 4);
  logits.Attr("remove_accidental_hits", false);  // what these become is too large for differences
  for (const char* slot : {"Samples", "Probabilities", "LogitsDim", "LabelsDim", "SampledLogits", "SampledLabels"}) {
    logits.Out(slot);
  }
  logits.CheckGradient({"Logits"}, {"SampledLogits"});
}

TEST(RandomOperators, RefuseImpossibleArguments) {
  OpTest bounds = Random("uniform_random", 1, 1);
  bounds.Attr("min", 2.0f).Attr("max", 1.0f);
  ExpectRunThrows<InvalidArgument>(bounds, "uniform_random", "min", "2", "1");
  OpTest deviation = Random("gaussian_random", 1, 1);
  deviation.Attr("std", -1.0f);
  ExpectRunThrows<InvalidArgument>(deviation, "std", "-1");
  OpTest shape = Random("gaussian_random", -1, 1);
  ExpectInferThrows<InvalidArgument>(shape, "Out", "shape", "-1");
  OpTest type = Random("gaussian_random", 1, 1);
  type.Attr("dtype", static_cast<int32_t>(DataType::kInt32));
  ExpectRunThrows<Unimplemented>(type, "int32");
}

}  // namespace
}  // namespace headrace
