// Tensors as Eigen's arrays, vectors and matrices, over the same memory: for kernels that are shorter as formulas.
//
//   MutableEigenArray<T>(ctx.Output("Out")) = EigenArray<T>(ctx.Input("X")).square();
//
// The results are valid as long as the tensor's memory. A mutable one gives the tensor memory for its shape, as
// Tensor::mutable_data does. Throws the errors of Tensor::data and mutable_data. Code that includes this header needs
// Eigen 3.4 or newer (find_package(Eigen3 NO_MODULE), Eigen3::Eigen); the rest of Headrace does not.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>

#include "framework/ddim.h"
#include "framework/errors.h"
#include "framework/tensor.h"

namespace headrace {

// All elements, in the order of memory. Operators are element by element.
template <typename T>
using EigenArrayMap = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
template <typename T>
using ConstEigenArrayMap = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;
// The same as a column vector of linear algebra.
template <typename T>
using EigenVectorMap = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, 1>>;
template <typename T>
using ConstEigenVectorMap = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, 1>>;
// A matrix, row after row as tensors are.
template <typename T>
using EigenMatrixMap = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <typename T>
using ConstEigenMatrixMap = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

template <typename T>
ConstEigenArrayMap<T> EigenArray(const Tensor& tensor) {
  return {tensor.data<T>(), tensor.numel()};
}
template <typename T>
EigenArrayMap<T> MutableEigenArray(Tensor* tensor) {
  return {tensor->mutable_data<T>(), tensor->numel()};
}

template <typename T>
ConstEigenVectorMap<T> EigenVector(const Tensor& tensor) {
  return {tensor.data<T>(), tensor.numel()};
}
template <typename T>
EigenVectorMap<T> MutableEigenVector(Tensor* tensor) {
  return {tensor->mutable_data<T>(), tensor->numel()};
}

// The size of a tensor as a matrix: the first `row_dims` dimensions are flattened to rows, the others to columns.
// Throws InvalidArgument if the tensor has fewer dimensions.
struct EigenMatrixSize {
  EigenMatrixSize(const DDim& dims, size_t row_dims) {
    HR_ENFORCE(row_dims <= dims.size(), InvalidArgument, "a tensor of dims ", ToString(dims), " has no ", row_dims,
               " dimensions to make rows of");
    for (size_t i = 0; i < dims.size(); ++i) {
      (i < row_dims ? rows : columns) *= dims[i];
    }
  }
  int64_t rows = 1;
  int64_t columns = 1;
};

template <typename T>
ConstEigenMatrixMap<T> EigenMatrix(const Tensor& tensor, size_t row_dims = 1) {
  const EigenMatrixSize size(tensor.dims(), row_dims);
  return {tensor.data<T>(), size.rows, size.columns};
}
template <typename T>
EigenMatrixMap<T> MutableEigenMatrix(Tensor* tensor, size_t row_dims = 1) {
  const EigenMatrixSize size(tensor->dims(), row_dims);
  return {tensor->mutable_data<T>(), size.rows, size.columns};
}

}  // namespace headrace
