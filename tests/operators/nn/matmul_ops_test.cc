#include "framework/errors.h"
#include "framework/testing/op_test.h"
#include "framework/thread_pool.h"

namespace headrace {
namespace {

TEST(Mul, MultipliesMatrices) {
  OpTest test("mul");
  test.In<float>("X", {2, 3}, {1, 2, 3, 4, 5, 6}).In<float>("Y", {3, 2}, {1, 2, 3, 4, 5, 6}).Out("Out").Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{22, 28, 49, 64}));
}

TEST(Mul, FlattensTensorsToMatrices) {
  OpTest test("mul");
  test.In<double>("X", {2, 3, 4}, Numbers(24, -1, 1)).In<double>("Y", {2, 6, 5}, Numbers(60, -1, 1)).Out("Out");
  test.Attr("x_num_col_dims", 1).Attr("y_num_col_dims", 2).CheckGradient({"X", "Y"}, {"Out"});
  EXPECT_EQ(test.Dims("Out"), (DDim{2, 5}));
}

TEST(Mul, KeepsTheLeadingDims) {
  OpTest test("mul");
  test.In<double>("X", {2, 3, 4}, Numbers(24, -1, 1))
      .In<double>("Y", {4, 5}, Numbers(20, -1, 1))
      .Out("Out")
      .Attr("x_num_col_dims", 2);
  test.CheckGradient({"X", "Y"}, {"Out"});
  EXPECT_EQ(test.Dims("Out"), (DDim{2, 3, 5}));
}

TEST(Mul, MultipliesAnEmptyBatch) {
  OpTest test("mul");
  test.In<float>("X", {0, 3}, {}).In<float>("Y", {3, 2}, {1, 2, 3, 4, 5, 6}).Out("Out").Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{0, 2}));
}

// The gradient of the weights is a sum over no rows.
TEST(Mul, HasAZeroGradientForAnEmptyBatch) {
  OpTest test("mul_grad");
  test.In<float>("X", {0, 3}, {})
      .In<float>("Y", {3, 1}, {1, 2, 3})
      .In<float>("Out@GRAD", {0, 1}, {})
      .Out("X@GRAD")
      .Out("Y@GRAD")
      .Run();
  EXPECT_EQ(test.Get<float>("Y@GRAD"), (std::vector<float>{0, 0, 0}));
}

TEST(Mul, PropagatesUnknownDims) {
  OpTest test("mul");
  test.Declare("X", {-1, 1, 28, 28}).Declare("Y", {784, 10}).Out("Out");
  EXPECT_EQ(test.InferredDims("Out"), (DDim{-1, 10}));
}

TEST(Mul, RefusesMatricesThatDoNotMatch) {
  OpTest test("mul");
  test.In<float>("X", {2, 3}, std::vector<float>(6)).In<float>("Y", {2, 2}, std::vector<float>(4)).Out("Out");
  ExpectRunThrows<InvalidArgument>(test, "mul", "Y", "expected 3", "[2, 2]");
  OpTest declared("mul");
  declared.Declare("X", {-1, 3}).Declare("Y", {2, 2}).Out("Out");
  ExpectInferThrows<InvalidArgument>(declared, "Out", "mul", "Y", "expected 3", "[2, 2]");
}

TEST(Mul, RefusesSplitsThatLeaveNothing) {
  OpTest test("mul");
  test.In<float>("X", {2, 3}, std::vector<float>(6))
      .In<float>("Y", {3, 2}, std::vector<float>(6))
      .Out("Out")
      .Attr("x_num_col_dims", 2);
  ExpectRunThrows<InvalidArgument>(test, "X", "x_num_col_dims", "2");
}

TEST(Mul, RefusesTypesThatDiffer) {
  OpTest test("mul");
  test.In<float>("X", {1, 1}, {1}).In<double>("Y", {1, 1}, {1}).Out("Out");
  ExpectRunThrows<TypeMismatch>(test, "Y", "float32", "float64");
}

TEST(Mul, RefusesToWriteOverItsInput) {
  OpTest test("mul");
  test.In<float>("X", {1, 1}, {1}).In<float>("Y", {1, 1}, {1}).InPlace("Out", "X");
  ExpectRunThrows<InvalidArgument>(test, "Out", "X_0", "in place");
}

struct MatmulCase {
  DDim x;
  DDim y;
  bool transpose_x;
  bool transpose_y;
  DDim out;
};

void PrintTo(const MatmulCase& c, std::ostream* out) {
  *out << ToString(c.x) << (c.transpose_x ? "ᵀ" : "") << " · " << ToString(c.y) << (c.transpose_y ? "ᵀ" : "");
}

class Matmul : public testing::TestWithParam<MatmulCase> {};

TEST_P(Matmul, HasItsDimsAndItsGradient) {
  const MatmulCase& c = GetParam();
  OpTest test("matmul");
  test.In<double>("X", c.x, Numbers(Product(c.x), -1, 1, 1))
      .In<double>("Y", c.y, Numbers(Product(c.y), -1, 1, 2))
      .Out("Out");
  test.Attr("transpose_X", c.transpose_x)
      .Attr("transpose_Y", c.transpose_y)
      .Attr("alpha", 0.5f)
      .CheckGradient({"X", "Y"}, {"Out"});
  EXPECT_EQ(test.Dims("Out"), c.out);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Matmul,
                         testing::Values(MatmulCase{{2, 3}, {3, 4}, false, false, {2, 4}},
                                         MatmulCase{{3, 2}, {3, 4}, true, false, {2, 4}},
                                         MatmulCase{{2, 3}, {4, 3}, false, true, {2, 4}},
                                         MatmulCase{{3, 2}, {4, 3}, true, true, {2, 4}},
                                         MatmulCase{{2, 9, 8}, {2, 8, 7}, false, false, {2, 9, 7}},
                                         MatmulCase{{2, 8, 9}, {2, 7, 8}, true, true, {2, 9, 7}},
                                         MatmulCase{{2, 3, 4}, {4, 5}, false, false, {2, 3, 5}},
                                         MatmulCase{{2, 4, 3}, {4, 5}, true, false, {2, 3, 5}},
                                         MatmulCase{{3, 4}, {2, 4, 5}, false, false, {2, 3, 5}},
                                         MatmulCase{{2, 3, 1, 4}, {2, 3, 4, 1}, false, false, {2, 3, 1, 1}}));

TEST(MatmulOperator, MultipliesEachMatrixOfABatch) {
  OpTest test("matmul");
  test.In<float>("X", {2, 1, 2}, {1, 2, 3, 4}).In<float>("Y", {2, 2, 1}, {5, 6, 7, 8}).Out("Out").Run();
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{17, 53}));
}

TEST(MatmulOperator, KeepsTheLoDOfXWhileTheRowsAreThoseOfX) {
  const auto lod_of = [](const DDim& x, const DDim& y, bool transpose_x) {
    OpTest test("matmul");
    test.In<float>("X", x, std::vector<float>(static_cast<size_t>(Product(x)), 1), {{0, 1, static_cast<size_t>(x[0])}});
    test.In<float>("Y", y, std::vector<float>(static_cast<size_t>(Product(y)), 1)).Out("Out");
    test.Attr("transpose_X", transpose_x).Run();
    return test.Output("Out").lod();
  };
  EXPECT_EQ(lod_of({3, 2}, {2, 4}, false), (LoD{{0, 1, 3}}));
  EXPECT_EQ(lod_of({3, 2}, {3, 4}, true), LoD());
  EXPECT_EQ(lod_of({3, 2}, {5, 2, 4}, false), LoD());
  EXPECT_EQ(lod_of({3, 2, 4}, {3, 2, 5}, true), (LoD{{0, 1, 3}}));
}

class Products : public testing::TestWithParam<DDim> {};  // m, n, k

template <typename T>
std::vector<T> Product(const DDim& size, bool transpose_x, bool transpose_y, const std::vector<T>& x,
                       const std::vector<T>& y, int threads) {
  ThreadPool pool(threads);
  const ScopedThreadPool scope(&pool);
  OpTest test("matmul");
  test.In<T>("X", transpose_x ? DDim{size[2], size[0]} : DDim{size[0], size[2]}, x);
  test.In<T>("Y", transpose_y ? DDim{size[1], size[2]} : DDim{size[2], size[1]}, y).Out("Out");
  test.Attr("transpose_X", transpose_x).Attr("transpose_Y", transpose_y).Attr("alpha", 0.5).Run();
  return test.Get<T>("Out");
}

// Of whatever size, transposed or not, on however many threads.
template <typename T>
void ExpectSumsInDouble(const DDim& size, double tolerance) {
  const int64_t m = size[0];
  const int64_t n = size[1];
  const int64_t k = size[2];
  for (const bool transpose_x : {false, true}) {
    for (const bool transpose_y : {false, true}) {
      const auto x = As<T>(Numbers(m * k, -1, 1, 1));
      const auto y = As<T>(Numbers(k * n, -1, 1, 2));
      const auto out = Product<T>(size, transpose_x, transpose_y, x, y, 1);
      EXPECT_EQ(Product<T>(size, transpose_x, transpose_y, x, y, 3), out);
      for (int64_t r = 0; r < m; ++r) {
        for (int64_t c = 0; c < n; ++c) {
          double sum = 0;
          for (int64_t l = 0; l < k; ++l) {
            sum += static_cast<double>(x[static_cast<size_t>(transpose_x ? l * m + r : r * k + l)]) *
                   static_cast<double>(y[static_cast<size_t>(transpose_y ? c * k + l : l * n + c)]);
          }
          ASSERT_NEAR(out[static_cast<size_t>(r * n + c)], 0.5 * sum, tolerance) << r << ", " << c;
        }
      }
    }
  }
}

TEST_P(Products, AgreeWithSumsInDouble) {
  ExpectSumsInDouble<float>(GetParam(), 1e-5);
  ExpectSumsInDouble<double>(GetParam(), 1e-13);
}

// Less than a vector, a panel, a tile of rows, a task, a slice or a block of the depth, and more.
INSTANTIATE_TEST_SUITE_P(Sizes, Products,
                         testing::Values(DDim{1, 1, 1}, DDim{1, 70, 9}, DDim{70, 1, 9}, DDim{2, 3, 1000},
                                         DDim{15, 16, 257}, DDim{14, 32, 256}, DDim{33, 47, 129}, DDim{150, 33, 520},
                                         DDim{9, 300, 30}, DDim{300, 150, 100}, DDim{290, 150, 270}, DDim{5, 700, 300},
                                         DDim{50, 1100, 150}));

// Whatever the other elements are, and however many: an element is summed in the same order. Rows of Y lie close
// together or far apart, of which few rows of X read slices.
TEST(MatmulOperator, GivesAnElementTheSameBitsInAnyProduct) {
  constexpr int64_t kM = 150;
  constexpr int64_t kK = 300;
  const auto x = As<float>(Numbers(kM * kK, -1, 1, 1));
  for (const int64_t n : {77, 700}) {
    const auto y = As<float>(Numbers(kK * n, -1, 1, 2));
    OpTest whole("matmul");
    whole.In<float>("X", {kM, kK}, x).In<float>("Y", {kK, n}, y).Out("Out").Run();
    const auto expected = whole.Get<float>("Out");
    for (const int64_t rows : {1, 2, 5, 13, 29, 100}) {
      OpTest part("matmul");
      part.In<float>("X", {rows, kK}, std::vector<float>(x.end() - rows * kK, x.end()));
      part.In<float>("Y", {kK, n}, y).Out("Out").Run();
      EXPECT_EQ(part.Get<float>("Out"), std::vector<float>(expected.end() - rows * n, expected.end())) << rows;
    }
    for (const int64_t col : {0, 15, 40, 76}) {
      std::vector<float> column;
      std::vector<float> result;
      for (int64_t k = 0; k < kK; ++k) {
        column.push_back(y[static_cast<size_t>(k * n + col)]);
      }
      for (int64_t m = 0; m < kM; ++m) {
        result.push_back(expected[static_cast<size_t>(m * n + col)]);
      }
      OpTest part("matmul");
      part.In<float>("X", {kM, kK}, x).In<float>("Y", {kK, 1}, column).Out("Out").Run();
      EXPECT_EQ(part.Get<float>("Out"), result) << col;
    }
  }
}

TEST(MatmulOperator, RefusesABatchThatOverflows) {
  OpTest test("matmul");
  test.Declare("X", {int64_t{1} << 40, int64_t{1} << 22, 2}).Declare("Y", {2, int64_t{1} << 22}).Out("Out");
  ExpectInferThrows<InvalidArgument>(test, "Out");
}

TEST(MatmulOperator, PropagatesUnknownDims) {
  OpTest test("matmul");
  test.Declare("X", {-1, 5, -1}).Declare("Y", {-1, 8, 7}).Out("Out");
  EXPECT_EQ(test.InferredDims("Out"), (DDim{-1, 5, 7}));
}

TEST(MatmulOperator, RefusesShapesThatDoNotMatch) {
  OpTest inner("matmul");
  inner.In<float>("X", {2, 3}, std::vector<float>(6)).In<float>("Y", {2, 3}, std::vector<float>(6)).Out("Out");
  ExpectRunThrows<InvalidArgument>(inner, "matmul", "Y", "[2, 3]", "3 rows");
  OpTest batch("matmul");
  batch.In<float>("X", {2, 1, 1}, {1, 2}).In<float>("Y", {3, 1, 1}, {1, 2, 3}).Out("Out");
  ExpectRunThrows<InvalidArgument>(batch, "Y", "batch", "[3, 1, 1]");
  OpTest scalar("matmul");
  scalar.In<float>("X", {}, {1}).In<float>("Y", {2, 1}, {1, 2}).Out("Out");
  ExpectRunThrows<InvalidArgument>(scalar, "X", "matrix", "scalar");
}

// Nor may the bits depend on where the matrices lie (Run checks that).
TEST(MatmulOperator, GivesTheSameBitsWhereverTheMatricesLie) {
  const auto check = [](int64_t m, int64_t n, int64_t k) {
    for (const bool transposed : {false, true}) {
      OpTest test("matmul");
      test.In<float>("X", transposed ? DDim{k, m} : DDim{m, k}, As<float>(Numbers(m * k, -1, 1, 1)));
      test.In<float>("Y", transposed ? DDim{n, k} : DDim{k, n}, As<float>(Numbers(n * k, -1, 1, 2))).Out("Out");
      test.Attr("transpose_X", transposed).Attr("transpose_Y", transposed).Run();
    }
  };
  const int64_t sizes[] = {1, 2, 3, 7, 8, 13, 17, 33};
  for (const int64_t m : sizes) {
    for (const int64_t n : sizes) {
      for (const int64_t k : sizes) {
        check(m, n, k);
      }
    }
  }
  check(70, 90, 600);
  check(1, 600, 90);
  check(600, 1, 90);
}

}  // namespace
}  // namespace headrace
