#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

TEST(Scale, MultipliesThenAdds) {
  OpTest test("scale");
  test.In<float>("X", {3}, {1, 2, 3}).Out("Out").Attr("scale", 2.0f).Attr("bias", 1.0f).Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{3, 5, 7}));
}

TEST(Scale, AddsThenMultiplies) {
  OpTest test("scale");
  test.In<int64_t>("X", {3}, {1, 2, 3})
      .Out("Out")
      .Attr("scale", 2.0f)
      .Attr("bias", 1.0f)
      .Attr("bias_after_scale", false)
      .Run();
  EXPECT_EQ(test.Get<int64_t>("Out"), (std::vector<int64_t>{4, 6, 8}));
}

TEST(Scale, WorksInPlace) {
  OpTest test("scale");
  test.In<float>("X", {2}, {1, 2}).InPlace("Out", "X").Attr("scale", 10.0f).Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{10, 20}));
}

TEST(Scale, HasTheGradientOfALine) {
  OpTest test("scale");
  test.In<double>("X", {2, 3}, Numbers(6, -1, 1))
      .Out("Out")
      .Attr("scale", -2.5f)
      .Attr("bias", 1.0f)
      .CheckGradient({"X"}, {"Out"});
}

TEST(Scale, RefusesAFractionForIntegers) {
  OpTest test("scale");
  test.In<int32_t>("X", {1}, {3}).Out("Out").Attr("scale", 0.5f);
  ExpectRunThrows<InvalidArgument>(test, "scale", "integer", "0.5");
}

TEST(Scale, KeepsTheFullPrecisionOfItsAttributes) {
  OpTest scale("scale");
  scale.In<double>("X", {1}, {3}).Out("Out").Attr("scale", 0.1).Run();
  EXPECT_EQ(scale.Get<double>("Out")[0], 3 * 0.1);
  OpTest increment("increment");
  increment.In<int64_t>("X", {1}, {1}).Out("Out").Attr("step", 16777217.0).Run();
  EXPECT_EQ(increment.Get<int64_t>("Out")[0], 16777218);
}

TEST(Scale, RefusesANumberThatTheIntegerCannotHold) {
  OpTest small("scale");
  small.In<int32_t>("X", {1}, {1}).Out("Out").Attr("scale", 0x1p31);
  ExpectRunThrows<InvalidArgument>(small, "scale", "int32");
  OpTest large("scale");
  large.In<int64_t>("X", {1}, {1}).Out("Out").Attr("scale", 0x1p31).Run();
  EXPECT_EQ(large.Get<int64_t>("Out")[0], int64_t{1} << 31);
}

TEST(Scale, RefusesATypeThatItHasNoKernelFor) {
  OpTest test("scale");
  test.In<uint8_t>("X", {1}, {3}).Out("Out");
  ExpectRunThrows<Unimplemented>(test, "scale", "uint8");
}

TEST(Scale, WrapsIntegersAround) {
  OpTest test("scale");
  test.In<int32_t>("X", {1}, {INT32_MAX}).Out("Out").Attr("bias", 1.0f).Run();
  EXPECT_EQ(test.Get<int32_t>("Out")[0], INT32_MIN);
}

TEST(Increment, CountsInPlace) {
  OpTest test("increment");
  test.In<int64_t>("X", {1}, {41}).InPlace("Out", "X").Run();
  EXPECT_EQ(test.Get<int64_t>("Out")[0], 42);
}

TEST(Increment, RefusesMoreThanOneElement) {
  OpTest test("increment");
  test.In<int64_t>("X", {2}, {1, 2}).Out("Out");
  ExpectRunThrows<InvalidArgument>(test, "X", "single element", "[2]");
}

TEST(Sum, AddsAllTensors) {
  OpTest test("sum");
  test.In<float>("X", {2}, {1, 2}).In<float>("X", {2}, {10, 20}).In<float>("X", {2}, {100, 200}).Out("Out").Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{111, 222}));
}

TEST(Sum, MayWriteOverAnyOfItsInputs) {
  OpTest test("sum");
  test.In<double>("X", {2000}, Numbers(2000, -1, 1, 1))
      .In<double>("X", {2000}, Numbers(2000, -1, 1, 2))
      .InPlace("Out", "X")
      .Run();
  const auto a = Numbers(2000, -1, 1, 1);
  const auto b = Numbers(2000, -1, 1, 2);
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(test.Get<double>("Out")[i], a[i] + b[i]);
  }
}

TEST(Sum, PassesTheGradientToEach) {
  OpTest test("sum");
  test.In<double>("X", {2, 2}, Numbers(4, -1, 1))
      .In<double>("X", {2, 2}, Numbers(4, -1, 1, 2))
      .Out("Out")
      .CheckGradient({"X"}, {"Out"});
}

TEST(Sum, RefusesTensorsThatDiffer) {
  OpTest dims("sum");
  dims.In<float>("X", {2}, {1, 2}).In<float>("X", {3}, {1, 2, 3}).Out("Out");
  ExpectRunThrows<InvalidArgument>(dims, "sum", "X", "[2]", "[3]");
  OpTest types("sum");
  types.In<float>("X", {2}, {1, 2}).In<double>("X", {2}, {1, 2}).Out("Out");
  ExpectRunThrows<TypeMismatch>(types, "sum", "X", "float32", "float64");
}

TEST(Sum, KeepsWhatAnyTensorKnowsOfTheDims) {
  OpTest test("sum");
  test.Declare("X", {-1, 4}).Declare("X", {8, -1}).Out("Out");
  EXPECT_EQ(test.InferredDims("Out"), (DDim{8, 4}));
}

}  // namespace
}  // namespace headrace
