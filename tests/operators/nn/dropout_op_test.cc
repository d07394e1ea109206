#include <algorithm>

#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

OpTest Dropout(int64_t n, float probability, const std::string& implementation) {
  OpTest test("dropout");
  test.In<double>("X", {n}, Numbers(n, 1, 2)).Out("Out").Out("Mask").Attr("dropout_prob", probability).Attr("seed", 11);
  test.Attr("dropout_implementation", implementation);
  return test;
}

TEST(Dropout, DropsWithItsProbability) {
  OpTest test = Dropout(100000, 0.3f, "downgrade_in_infer");
  test.Run();
  const auto mask = test.Get<uint8_t>("Mask");
  EXPECT_NEAR(static_cast<double>(std::count(mask.begin(), mask.end(), 0)) / 100000, 0.3, 0.01);
}

TEST(Dropout, KeepsOrZeroesAsTheMaskSays) {
  for (const char* implementation : {"upscale_in_train", "downgrade_in_infer"}) {
    OpTest test = Dropout(100, 0.25f, implementation);
    test.Run();
    const double factor = implementation == std::string("upscale_in_train") ? 1 / 0.75 : 1;
    for (size_t i = 0; i < 100; ++i) {
      ASSERT_DOUBLE_EQ(test.Get<double>("Out")[i],
                       test.Get<uint8_t>("Mask")[i] != 0 ? Numbers(100, 1, 2)[i] * factor : 0);
    }
  }
}

TEST(Dropout, HasItsGradient) {
  for (const char* implementation : {"upscale_in_train", "downgrade_in_infer"}) {
    Dropout(30, 0.5f, implementation).CheckGradient({"X"}, {"Out"});
    OpTest test("dropout");
    test.In<double>("X", {30}, Numbers(30, 1, 2)).Out("Out").Attr("dropout_prob", 0.25f).Attr("is_test", true);
    test.Attr("dropout_implementation", std::string(implementation)).CheckGradient({"X"}, {"Out"});
  }
}

TEST(Dropout, OnlyScalesInATest) {
  OpTest upscale("dropout");
  upscale.In<double>("X", {4}, Numbers(4, 1, 2)).Out("Out").Attr("dropout_prob", 0.25f).Attr("is_test", true);
  upscale.Attr("dropout_implementation", std::string("upscale_in_train")).Run();
  EXPECT_EQ(upscale.Get<double>("Out"), Numbers(4, 1, 2));
  OpTest down("dropout");
  down.In<double>("X", {1}, {4}).Out("Out").Attr("dropout_prob", 0.25f).Attr("is_test", true).Run();
  EXPECT_EQ(down.Get<double>("Out")[0], 3);
}

TEST(Dropout, DropsAllOrNothingAtTheEnds) {
  OpTest all = Dropout(50, 1.0f, "upscale_in_train");
  all.Run();
  EXPECT_EQ(all.Get<double>("Out"), std::vector<double>(50, 0.0));
  OpTest nothing = Dropout(50, 0.0f, "upscale_in_train");
  nothing.Run();
  EXPECT_EQ(nothing.Get<double>("Out"), Numbers(50, 1, 2));
}

std::vector<uint8_t> MaskOf(int32_t seed, int64_t counter) {
  OpTest test("dropout");
  test.In<float>("X", {64}, std::vector<float>(64, 1.0f))
      .In<int64_t>("Seed", {1}, {counter})
      .Out("Out")
      .Out("Mask")
      .Attr("seed", seed)
      .Run();
  return test.Get<uint8_t>("Mask");
}

TEST(Dropout, GivesEachValueOfTheCounterAMaskOfItsOwn) {
  EXPECT_EQ(MaskOf(1, 0), MaskOf(1, 0));
  EXPECT_NE(MaskOf(1, 0), MaskOf(1, 1));
  EXPECT_NE(MaskOf(1, 0), MaskOf(2, 0));
  EXPECT_EQ(MaskOf(0, 5), MaskOf(0, 5));
}

TEST(Dropout, DiffersFromRunToRunWithoutASeed) {
  OpTest test = Dropout(100, 0.5f, "upscale_in_train");
  test.Attr("seed", 0).NotDeterministic().Run();
  const auto first = test.Get<uint8_t>("Mask");
  test.Run();
  EXPECT_NE(first, test.Get<uint8_t>("Mask"));
}

TEST(Dropout, RefusesBadArguments) {
  OpTest probability = Dropout(1, 1.5f, "upscale_in_train");
  ExpectRunThrows<InvalidArgument>(probability, "dropout", "dropout_prob", "1.5");
  OpTest implementation = Dropout(1, 0.5f, "scale");
  ExpectRunThrows<InvalidArgument>(implementation, "dropout_implementation", "scale");
  OpTest mask("dropout");
  mask.In<float>("X", {1}, {1}).Out("Out");
  ExpectRunThrows<InvalidArgument>(mask, "Mask", "is_test");
  OpTest counter("dropout");
  counter.In<float>("X", {1}, {1}).In<float>("Seed", {1}, {1}).Out("Out").Out("Mask");
  ExpectRunThrows<TypeMismatch>(counter, "Seed", "int64", "float32");
}

}  // namespace
}  // namespace headrace
