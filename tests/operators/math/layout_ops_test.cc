#include <numeric>

#include "framework/errors.h"
#include "framework/testing/op_test.h"
#include "operators/math/tensor_size.h"

namespace headrace {
namespace {

using Ints = std::vector<int32_t>;

TEST(TensorSize, DimensionsThatDoNotExistAreRefused) {
  const DDim dims{2, 3};
  EXPECT_EQ(ops::MatrixSize(dims, 2).rows, 6);
  EXPECT_THROW(ops::MatrixSize(dims, 3), InvalidArgument);
  EXPECT_EQ(ops::AxisSize(dims, 1).extent, 3);
  EXPECT_THROW(ops::AxisSize(dims, 2), InvalidArgument);
}

struct TransposeCase {
  DDim x;
  Ints axis;
};

void PrintTo(const TransposeCase& c, std::ostream* out) {
  *out << ToString(c.x) << " by " << ToString(Attribute(c.axis));
}

class Transpose : public testing::TestWithParam<TransposeCase> {};

template <typename T>
void CheckTranspose(const TransposeCase& c) {
  std::vector<T> x(static_cast<size_t>(Product(c.x)));
  std::iota(x.begin(), x.end(), T(0));
  OpTest test("transpose2");
  test.In<T>("X", c.x, x).Out("Out").Out("XShape").Attr("axis", c.axis).Run();
  const DDim dims = test.Dims("Out");
  const auto out = test.template Get<T>("Out");
  for (int64_t i = 0; i < Product(dims); ++i) {
    int64_t rest = i;
    DDim index(dims.size());
    for (size_t d = dims.size(); d-- > 0;) {
      index[static_cast<size_t>(c.axis[d])] = rest % dims[d];
      rest /= dims[d];
    }
    int64_t at = 0;
    for (size_t d = 0; d < dims.size(); ++d) {
      at = at * c.x[d] + index[d];
    }
    ASSERT_EQ(out[static_cast<size_t>(i)], x[static_cast<size_t>(at)]) << i;
  }
}

TEST_P(Transpose, MovesEveryElementOfEverySize) {
  CheckTranspose<uint8_t>(GetParam());
  CheckTranspose<int16_t>(GetParam());
  CheckTranspose<float>(GetParam());
  CheckTranspose<int64_t>(GetParam());
}

TEST_P(Transpose, HasItsGradient) {
  for (const char* type : {"transpose", "transpose2"}) {
    OpTest test(type);
    test.In<double>("X", GetParam().x, Numbers(Product(GetParam().x), -1, 1)).Out("Out").Attr("axis", GetParam().axis);
    test.CheckGradient({"X"}, {"Out"});
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, Transpose,
                         testing::Values(TransposeCase{{3, 4}, {1, 0}}, TransposeCase{{2, 3, 4}, {0, 1, 2}},
                                         TransposeCase{{2, 3, 4}, {2, 0, 1}}, TransposeCase{{2, 3, 4}, {1, 0, 2}},
                                         TransposeCase{{2, 3, 4, 5}, {0, 2, 3, 1}},
                                         TransposeCase{{2, 3, 4, 5}, {3, 1, 2, 0}}, TransposeCase{{1, 3, 1}, {2, 1, 0}},
                                         TransposeCase{{5}, {0}}));

TEST(TransposeOperator, TakesNegativeAxesAndEmptyTensors) {
  OpTest negative("transpose2");
  negative.In<float>("X", {1, 2}, {1, 2}).Out("Out").Attr("axis", Ints{-1, 0}).Run();
  EXPECT_EQ(negative.Dims("Out"), (DDim{2, 1}));
  OpTest empty("transpose2");
  empty.In<float>("X", {0, 2}, {}).Out("Out").Attr("axis", Ints{1, 0}).Run();
  EXPECT_EQ(empty.Dims("Out"), (DDim{2, 0}));
}

TEST(TransposeOperator, PropagatesUnknownDims) {
  OpTest test("transpose2");
  test.Declare("X", {-1, 2, 3}).Out("Out").Out("XShape").Attr("axis", Ints{1, 2, 0});
  EXPECT_EQ(test.InferredDims("Out"), (DDim{2, 3, -1}));
}

TEST(TransposeOperator, RefusesWhatIsNotAPermutation) {
  for (const Ints& axis : {Ints{0, 0}, Ints{0}, Ints{0, 2}, Ints{0, 1, 2}}) {
    OpTest test("transpose2");
    test.In<float>("X", {1, 2}, {1, 2}).Out("Out").Attr("axis", axis);
    ExpectRunThrows<InvalidArgument>(test, "transpose2", "axis");
  }
}

TEST(Concat, PutsTensorsSideBySide) {
  OpTest rows("concat");
  rows.In<float>("X", {1, 2}, {1, 2}).In<float>("X", {2, 2}, {3, 4, 5, 6}).Out("Out").Run();
  EXPECT_EQ(rows.Dims("Out"), (DDim{3, 2}));
  EXPECT_EQ(rows.Get<float>("Out"), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  OpTest cols("concat");
  cols.In<int64_t>("X", {2, 1}, {1, 2}).In<int64_t>("X", {2, 2}, {3, 4, 5, 6}).Out("Out").Attr("axis", -1).Run();
  EXPECT_EQ(cols.Get<int64_t>("Out"), (std::vector<int64_t>{1, 3, 4, 2, 5, 6}));
}

TEST(Concat, HasItsGradient) {
  for (const int32_t axis : {0, 1, 2}) {
    DDim second = {2, 3, 2};
    second[static_cast<size_t>(axis)] = 4;
    OpTest test("concat");
    test.In<double>("X", {2, 3, 2}, Numbers(12, -1, 1))
        .In<double>("X", second, Numbers(Product(second), -1, 1))
        .Out("Out")
        .Attr("axis", axis);
    test.CheckGradient({"X"}, {"Out"});
  }
}

TEST(Concat, TakesEmptyParts) {
  OpTest test("concat");
  test.In<float>("X", {0, 2}, {}).In<float>("X", {1, 2}, {1, 2}).Out("Out").Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{1, 2}));
}

TEST(Concat, PropagatesUnknownDims) {
  OpTest test("concat");
  test.Declare("X", {-1, 3}).Declare("X", {-1, 4}).Out("Out").Attr("axis", 1);
  EXPECT_EQ(test.InferredDims("Out"), (DDim{-1, 7}));
  test.Attr("axis", 0);
  ExpectInferThrows<InvalidArgument>(test, "Out", "concat", "X", "3", "[-1, 4]");
}

TEST(Concat, RefusesASumOfExtentsThatOverflows) {
  OpTest test("concat");
  test.Declare("X", {INT64_MAX}).Declare("X", {1}).Out("Out");
  ExpectInferThrows<InvalidArgument>(test, "Out", std::to_string(INT64_MAX));
}

TEST(Concat, RefusesTensorsThatDiffer) {
  OpTest dims("concat");
  dims.In<float>("X", {1, 2}, {1, 2}).In<float>("X", {1, 1}, {3}).Out("Out");
  ExpectRunThrows<InvalidArgument>(dims, "concat", "X", "[-1, 2]", "[1, 1]");
  OpTest types("concat");
  types.In<float>("X", {1}, {1}).In<double>("X", {1}, {3}).Out("Out");
  ExpectRunThrows<TypeMismatch>(types, "X", "float32", "float64");
  OpTest axis("concat");
  axis.In<float>("X", {1}, {1}).Out("Out").Attr("axis", 1);
  ExpectRunThrows<InvalidArgument>(axis, "axis", "1");
}

TEST(Split, CutsInEqualSections) {
  OpTest test("split");
  test.In<float>("X", {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}).Out("Out", 2).Attr("num", 2).Attr("axis", 1).Run();
  EXPECT_EQ(test.Get<float>("Out", 0), (std::vector<float>{1, 2, 5, 6}));
  EXPECT_EQ(test.Get<float>("Out", 1), (std::vector<float>{3, 4, 7, 8}));
}

TEST(Split, CutsAsTheSectionsSay) {
  OpTest test("split");
  test.In<int32_t>("X", {4}, {1, 2, 3, 4}).Out("Out", 3).Attr("sections", Ints{1, 0, 3}).Run();
  EXPECT_EQ(test.Get<int32_t>("Out", 0), (std::vector<int32_t>{1}));
  EXPECT_EQ(test.Dims("Out", 1), (DDim{0}));
  EXPECT_EQ(test.Get<int32_t>("Out", 2), (std::vector<int32_t>{2, 3, 4}));
}

TEST(Split, HasItsGradient) {
  for (const int32_t axis : {0, 1, -1}) {
    OpTest test("split");
    test.In<double>("X", {4, 4, 4}, Numbers(64, -1, 1))
        .Out("Out", 2)
        .Attr("sections", Ints{1, 3})
        .Attr("axis", axis)
        .CheckGradient({"X"}, {"Out"});
  }
}

TEST(Split, TakesAMissingGradientForZero) {
  OpTest test("split_grad");
  test.In<float>("X", {4}, {1, 2, 3, 4})
      .Empty("Out@GRAD")
      .In<float>("Out@GRAD", {2}, {7, 8})
      .Out("X@GRAD")
      .Attr("num", 2)
      .Run();
  EXPECT_EQ(test.Get<float>("X@GRAD"), (std::vector<float>{0, 0, 7, 8}));
}

TEST(Split, PropagatesUnknownDims) {
  OpTest test("split");
  test.Declare("X", {-1, 6}).Out("Out", 3).Attr("num", 3).Attr("axis", 1);
  EXPECT_EQ(test.InferredDims("Out", 2), (DDim{-1, 2}));
  test.Attr("axis", 0);
  EXPECT_EQ(test.InferredDims("Out", 2), (DDim{-1, 6}));
}

TEST(Split, RefusesSectionsThatDoNotFit) {
  const auto refuse = [](int32_t num, const Ints& sections, const std::vector<std::string>& parts) {
    OpTest test("split");
    test.In<float>("X", {5}, {1, 2, 3, 4, 5}).Out("Out", 2).Attr("num", num).Attr("sections", sections);
    ExpectThrows<InvalidArgument>([&] { test.Run(); }, parts);
  };
  refuse(2, {}, {"split", "num", "5", "2"});
  refuse(3, {}, {"num", "3"});
  refuse(0, {}, {"num", "sections"});
  refuse(2, {2, 3}, {"num", "sections"});
  refuse(0, {2, 2}, {"sections", "5", "[2, 2]"});
  refuse(0, {-1, 6}, {"sections", "[-1, 6]"});
  refuse(0, {5}, {"sections", "[5]"});
}

}  // namespace
}  // namespace headrace
