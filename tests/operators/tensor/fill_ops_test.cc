#include <cmath>
#include <limits>

#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

int32_t Number(DataType type) { return static_cast<int32_t>(type); }

TEST(FillConstant, FillsEveryElement) {
  OpTest test("fill_constant");
  test.Out("Out").Attr("shape", std::vector<int64_t>{2, 3}).Attr("value", 1.5f).Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{2, 3}));
  EXPECT_EQ(test.Get<float>("Out"), std::vector<float>(6, 1.5f));
}

TEST(FillConstant, MakesTheTypeThatIsAskedFor) {
  OpTest test("fill_constant");
  test.Out("Out")
      .Attr("shape", std::vector<int64_t>{2})
      .Attr("value", 7.0f)
      .Attr("dtype", Number(DataType::kInt64))
      .Run();
  EXPECT_EQ(test.Get<int64_t>("Out"), (std::vector<int64_t>{7, 7}));
}

TEST(FillConstant, TakesTextWhereFloatIsNotPrecise) {
  OpTest integer("fill_constant");
  integer.Out("Out")
      .Attr("shape", std::vector<int64_t>{1})
      .Attr("str_value", std::string("9007199254740993"))
      .Attr("dtype", Number(DataType::kInt64))
      .Run();
  EXPECT_EQ(integer.Get<int64_t>("Out")[0], 9007199254740993);
  OpTest real("fill_constant");
  real.Out("Out")
      .Attr("shape", std::vector<int64_t>{1})
      .Attr("str_value", std::string("0.1"))
      .Attr("dtype", Number(DataType::kFloat64))
      .Run();
  EXPECT_EQ(real.Get<double>("Out")[0], 0.1);
}

TEST(FillConstant, RefusesANumberThatDoesNotFit) {
  OpTest test("fill_constant");
  test.Out("Out").Attr("shape", std::vector<int64_t>{1}).Attr("value", 300.0f).Attr("dtype", Number(DataType::kUInt8));
  ExpectRunThrows<InvalidArgument>(test, "fill_constant", "value", "uint8", "300");
  test.Attr("value", std::numeric_limits<float>::quiet_NaN());
  ExpectRunThrows<InvalidArgument>(test, "nan");
  test.Attr("str_value", std::string("12x"));
  ExpectRunThrows<InvalidArgument>(test, "str_value", "12x");
}

TEST(FillConstant, RefusesUnknownDimensionsAndTypes) {
  OpTest test("fill_constant");
  test.Out("Out").Attr("shape", std::vector<int64_t>{2, -1});
  ExpectInferThrows<InvalidArgument>(test, "Out", "shape", "[2, -1]");
  test.Attr("shape", std::vector<int64_t>{2}).Attr("dtype", 99);
  ExpectInferThrows<InvalidArgument>(test, "Out", "dtype", "99");
}

TEST(FillConstant, MakesAnEmptyTensor) {
  OpTest test("fill_constant");
  test.Out("Out").Attr("shape", std::vector<int64_t>{0, 3}).Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{0, 3}));
}

TEST(FillConstantBatchSizeLike, TakesOneDimensionFromAnotherTensor) {
  OpTest test("fill_constant_batch_size_like");
  test.In<float>("Input", {3, 1}, {0, 0, 0})
      .Out("Out")
      .Attr("shape", std::vector<int64_t>{-1, 2})
      .Attr("value", 2.0f)
      .Run();
  EXPECT_EQ(test.Get<float>("Out"), std::vector<float>(6, 2.0f));
  OpTest declared("fill_constant_batch_size_like");
  declared.Declare("Input", {-1, 1}).Out("Out").Attr("shape", std::vector<int64_t>{1, 2});
  EXPECT_EQ(declared.InferredDims("Out"), (DDim{-1, 2}));
}

TEST(FillConstantBatchSizeLike, CountsTheSequencesOfALoD) {
  OpTest test("fill_constant_batch_size_like");
  test.In<float>("Input", {3, 1}, {0, 0, 0}, {{0, 1, 3}}).Out("Out").Attr("shape", std::vector<int64_t>{-1, 2}).Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{2, 2}));
  EXPECT_EQ(test.Output("Out").lod_level(), 0u);
  EXPECT_EQ(test.InferredDims("Out"), (DDim{-1, 2}));
}

TEST(FillConstantBatchSizeLike, RefusesADimensionThatDoesNotExist) {
  OpTest test("fill_constant_batch_size_like");
  test.In<float>("Input", {3, 1}, {0, 0, 0})
      .Out("Out")
      .Attr("shape", std::vector<int64_t>{-1, 2})
      .Attr("input_dim_idx", 2);
  ExpectRunThrows<InvalidArgument>(test, "input_dim_idx", "2");
}

TEST(FillZerosLike, ForgetsTheElements) {
  OpTest test("fill_zeros_like");
  test.In<int64_t>("X", {2}, {5, 6}).Out("Out").Run();
  EXPECT_EQ(test.Get<int64_t>("Out"), (std::vector<int64_t>{0, 0}));
}

TEST(AssignValue, HoldsItsElementsInTheProgram) {
  OpTest test("assign_value");
  test.Out("Out").Attr("shape", std::vector<int32_t>{2, 1}).Attr("fp32_values", std::vector<float>{1, 2}).Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{1, 2}));
  test.Attr("shape", std::vector<int32_t>{3});
  ExpectRunThrows<InvalidArgument>(test, "fp32_values", "3 values", "got 2");
}

TEST(Assign, CopiesElementsAndLoD) {
  OpTest test("assign");
  test.In<double>("X", {3, 1}, {1, 2, 3}, {{0, 1, 3}}).Out("Out");
  test.CheckGradient({"X"}, {"Out"});
  EXPECT_EQ(test.Get<double>("Out"), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(test.Output("Out").lod(), (LoD{{0, 1, 3}}));
}

template <typename From, typename To>
std::vector<To> Cast(const std::vector<From>& values) {
  OpTest test("cast");
  test.In<From>("X", {static_cast<int64_t>(values.size())}, values).Out("Out");
  test.Attr("in_dtype", Number(DataTypeOf<From>::value)).Attr("out_dtype", Number(DataTypeOf<To>::value)).Run();
  return test.Get<To>("Out");
}

TEST(Cast, TruncatesAndClipsFloatingPoint) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ((Cast<double, uint8_t>({1.9, -1.9, 300, -300, nan})), (std::vector<uint8_t>{1, 0, 255, 0, 0}));
  EXPECT_EQ((Cast<double, int32_t>({1.9, -1.9, 3e9, -3e9, nan})),
            (std::vector<int32_t>{1, -1, INT32_MAX, INT32_MIN, 0}));
  EXPECT_EQ((Cast<double, int64_t>({1e19, -1e19})), (std::vector<int64_t>{INT64_MAX, INT64_MIN}));
  EXPECT_EQ((Cast<float, uint64_t>({1e19f, 1e20f})), (std::vector<uint64_t>{static_cast<uint64_t>(1e19f), UINT64_MAX}));
}

TEST(Cast, WrapsIntegers) {
  EXPECT_EQ((Cast<int64_t, uint8_t>({257, -1})), (std::vector<uint8_t>{1, 255}));
  EXPECT_EQ((Cast<uint64_t, int64_t>({UINT64_MAX})), (std::vector<int64_t>{-1}));
  EXPECT_EQ((Cast<int64_t, int64_t>({9007199254740993})), (std::vector<int64_t>{9007199254740993}));
}

TEST(Cast, MakesBooleansOfWhatIsNotZero) {
  EXPECT_EQ((Cast<float, bool>({0, 0.5f, -1})), (std::vector<bool>{false, true, true}));
}

TEST(Cast, ConvertsHalfPrecision) {
  OpTest test("cast");
  test.In<float16>("X", {3}, {{0x3C00}, {0xC000}, {0x3555}}).Out("Out");
  test.Attr("in_dtype", Number(DataType::kFloat16)).Attr("out_dtype", Number(DataType::kFloat32)).Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{1, -2, 0.333251953125f}));
  OpTest narrow("cast");
  narrow.In<float>("X", {2}, {1, 3.14159274f}).Out("Out");
  narrow.Attr("in_dtype", Number(DataType::kFloat32)).Attr("out_dtype", Number(DataType::kBFloat16)).Run();
  EXPECT_EQ(narrow.Get<bfloat16>("Out")[0].bits, 0x3F80);
  EXPECT_EQ(narrow.Get<bfloat16>("Out")[1].bits, 0x4049);
}

TEST(Cast, RefusesAnInputOfAnotherType) {
  OpTest test("cast");
  test.In<float>("X", {1}, {1})
      .Out("Out")
      .Attr("in_dtype", Number(DataType::kInt32))
      .Attr("out_dtype", Number(DataType::kInt64));
  ExpectRunThrows<TypeMismatch>(test, "cast", "X", "int32", "float32");
}

TEST(Cast, PassesTheGradientBack) {
  OpTest test("cast");
  test.In<double>("X", {3}, {1, 2, 3})
      .Out("Out")
      .Attr("in_dtype", Number(DataType::kFloat64))
      .Attr("out_dtype", Number(DataType::kFloat64));
  test.CheckGradient({"X"}, {"Out"});
}

}  // namespace
}  // namespace headrace
