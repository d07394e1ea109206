#include "framework/eigen.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

namespace headrace {
namespace {

Tensor Counting(DDim dims) {
  Tensor tensor;
  tensor.Resize(std::move(dims));
  float* data = tensor.mutable_data<float>();
  std::iota(data, data + tensor.numel(), 0.0F);
  return tensor;
}

TEST(Eigen, AnArrayIsTheTensorsMemory) {
  Tensor tensor = Counting({2, 3});
  MutableEigenArray<float>(&tensor) += 1.0F;
  EXPECT_EQ(EigenArray<float>(tensor).data(), tensor.data<float>());
  EXPECT_EQ(EigenArray<float>(tensor).sum(), 21.0F);
  EXPECT_EQ(tensor.data<float>()[5], 6.0F);
}

TEST(Eigen, AMutableOneAllocates) {
  Tensor tensor;
  tensor.Resize({3});
  EXPECT_THROW(EigenVector<double>(tensor), FailedPrecondition);
  MutableEigenVector<double>(&tensor) << 1, 2, 3;
  EXPECT_EQ(EigenVector<double>(tensor).dot(EigenVector<double>(tensor)), 14.0);
}

TEST(Eigen, AMatrixHasTheTensorsRows) {
  const Tensor a = Counting({2, 3});
  const Tensor b = Counting({3, 2, 2});
  Tensor product;
  product.Resize({2, 4});
  MutableEigenMatrix<float>(&product).noalias() = EigenMatrix<float>(a) * EigenMatrix<float>(b);
  const std::vector<float> expected = {20, 23, 26, 29, 56, 68, 80, 92};
  EXPECT_EQ(std::vector<float>(product.data<float>(), product.data<float>() + 8), expected);
  EXPECT_EQ(EigenMatrix<float>(b, 2)(3, 1), 7.0F);
  EXPECT_EQ(EigenMatrix<float>(b, 0).rows(), 1);
  EXPECT_EQ(EigenMatrix<float>(b, 3).cols(), 1);
}

TEST(Eigen, WhatDoesNotFitIsRefused) {
  Tensor tensor = Counting({2, 3});
  EXPECT_THROW(EigenArray<double>(tensor), TypeMismatch);
  EXPECT_THROW(EigenMatrix<float>(tensor, 3), InvalidArgument);
  EXPECT_EQ(EigenMatrix<float>(Counting({0, 4})).cols(), 4);
}

}  // namespace
}  // namespace headrace
