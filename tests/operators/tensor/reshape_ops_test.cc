#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

using Ints = std::vector<int32_t>;

OpTest Make(const std::string& type, const DDim& x, const std::string& attr, Attribute value) {
  OpTest test(type);
  test.In<double>("X", x, Numbers(Product(x), -1, 1));
  if (type.starts_with("squeeze") && std::get<Ints>(value).empty()) {
    test.Known("X");  // the dims of 1 are dropped
  }
  test.Out("Out").Attr(attr, std::move(value));
  if (type.back() == '2') {
    test.Out("XShape");
  }
  return test;
}

DDim DimsOf(const std::string& type, const DDim& x, const std::string& attr, const Attribute& value) {
  OpTest test = Make(type, x, attr, value);
  test.CheckGradient({"X"}, {"Out"});
  EXPECT_EQ(test.Get<double>("Out"), Numbers(Product(x), -1, 1)) << type;
  return test.Dims("Out");
}

TEST(Reshape, GivesOtherDimsToTheSameElements) {
  for (const char* type : {"reshape", "reshape2"}) {
    EXPECT_EQ(DimsOf(type, {2, 3, 4}, "shape", Ints{4, 6}), (DDim{4, 6})) << type;
    EXPECT_EQ(DimsOf(type, {2, 3, 4}, "shape", Ints{0, -1}), (DDim{2, 12})) << type;
    EXPECT_EQ(DimsOf(type, {2, 3, 4}, "shape", Ints{-1}), (DDim{24})) << type;
    EXPECT_EQ(DimsOf(type, {2, 3, 4}, "shape", Ints{-1, 0, 1, 4}), (DDim{2, 3, 1, 4})) << type;
  }
}

TEST(Reshape, WorksInPlace) {
  OpTest test("reshape2");
  test.In<int64_t>("X", {2, 3}, {1, 2, 3, 4, 5, 6}).InPlace("Out", "X").Out("XShape").Attr("shape", Ints{3, 2}).Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{3, 2}));
  EXPECT_EQ(test.Dims("XShape"), (DDim{0, 2, 3}));
  EXPECT_EQ(test.Get<int64_t>("Out"), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
}

TEST(Reshape, DropsTheLoDWithTheRowsInPlaceToo) {
  for (const bool in_place : {false, true}) {
    OpTest test("reshape");
    test.In<float>("X", {2, 3}, {1, 2, 3, 4, 5, 6}, {{0, 1, 2}}).Attr("shape", Ints{3, 2});
    in_place ? test.InPlace("Out", "X") : test.Out("Out");
    test.Run();
    EXPECT_EQ(test.Output("Out").lod(), LoD()) << in_place;
  }
}

TEST(Reshape, TakesAnEmptyBatch) {
  OpTest test = Make("reshape2", {0, 3, 4}, "shape", Ints{0, 12});
  test.Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{0, 12}));
  OpTest inferred = Make("reshape2", {0, 3, 4}, "shape", Ints{-1, 12});
  inferred.Run();
  EXPECT_EQ(inferred.Dims("Out"), (DDim{0, 12}));
}

TEST(Reshape, PropagatesUnknownDims) {
  OpTest test("reshape2");
  test.Declare("X", {-1, 3, 4}).Out("Out").Out("XShape").Attr("shape", Ints{-1, 12});
  EXPECT_EQ(test.InferredDims("Out"), (DDim{-1, 12}));
  EXPECT_EQ(test.InferredDims("XShape"), (DDim{0, -1, 3, 4}));
  test.Attr("shape", Ints{0, -1});
  EXPECT_EQ(test.InferredDims("Out"), (DDim{-1, -1}));
}

TEST(Reshape, RefusesShapesThatDoNotFit) {
  const auto refuse = [](const Ints& shape, const std::vector<std::string>& parts) {
    OpTest test = Make("reshape2", {2, 3}, "shape", shape);
    ExpectThrows<InvalidArgument>([&] { test.Run(); }, parts);
    ExpectThrows<InvalidArgument>([&] { test.InferredDims("Out"); }, parts);
  };
  refuse({4, 2}, {"reshape2", "X", "[2, 3]", "[4, 2]"});
  refuse({4, -1}, {"X", "[2, 3]", "[4, -1]"});
  refuse({-1, -1}, {"shape", "one -1"});
  refuse({-2, 3}, {"shape", "[-2, 3]"});
  refuse({1, 2, 0}, {"shape", "0", "[2, 3]"});
  refuse({}, {"shape"});
}

TEST(Flatten, MakesAMatrix) {
  for (const char* type : {"flatten", "flatten2"}) {
    EXPECT_EQ(DimsOf(type, {2, 3, 4}, "axis", 1), (DDim{2, 12})) << type;
    EXPECT_EQ(DimsOf(type, {2, 3, 4}, "axis", 0), (DDim{1, 24})) << type;
    EXPECT_EQ(DimsOf(type, {2, 3, 4}, "axis", 3), (DDim{24, 1})) << type;
  }
  OpTest test = Make("flatten", {2, 3}, "axis", 3);
  ExpectRunThrows<InvalidArgument>(test, "flatten", "axis", "3");
}

TEST(Squeeze, DropsDimensionsOfOne) {
  for (const char* type : {"squeeze", "squeeze2"}) {
    EXPECT_EQ(DimsOf(type, {1, 3, 1, 2}, "axes", Ints{}), (DDim{3, 2})) << type;
    EXPECT_EQ(DimsOf(type, {1, 3, 1, 2}, "axes", Ints{-2}), (DDim{1, 3, 2})) << type;
    EXPECT_EQ(DimsOf(type, {1, 1}, "axes", Ints{}), (DDim{1})) << type;
  }
  OpTest test = Make("squeeze", {1, 3}, "axes", Ints{1});
  ExpectRunThrows<InvalidArgument>(test, "squeeze", "axes", "[1, 3]", "1");
}

TEST(Unsqueeze, PutsInDimensionsOfOne) {
  for (const char* type : {"unsqueeze", "unsqueeze2"}) {
    EXPECT_EQ(DimsOf(type, {3, 2}, "axes", Ints{0, 2}), (DDim{1, 3, 1, 2})) << type;
    EXPECT_EQ(DimsOf(type, {3, 2}, "axes", Ints{-1}), (DDim{3, 2, 1})) << type;
  }
  OpTest test = Make("unsqueeze", {3, 2}, "axes", Ints{4});
  ExpectRunThrows<InvalidArgument>(test, "unsqueeze", "axes", "4");
}

TEST(ReshapeOperators, KeepTheLoDWhileTheRowsStay) {
  OpTest kept("reshape2");
  kept.In<float>("X", {3, 2}, std::vector<float>(6), {{0, 1, 3}})
      .Out("Out")
      .Out("XShape")
      .Attr("shape", Ints{0, 1, 2})
      .Run();
  EXPECT_EQ(kept.Output("Out").lod(), (LoD{{0, 1, 3}}));
  OpTest lost("reshape2");
  lost.In<float>("X", {3, 2}, std::vector<float>(6), {{0, 1, 3}}).Out("Out").Out("XShape").Attr("shape", Ints{6}).Run();
  EXPECT_TRUE(lost.Output("Out").lod().empty());
}

}  // namespace
}  // namespace headrace
