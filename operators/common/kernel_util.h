// What the operators share: checks for shape inference and for scalar inputs.
//
// The checks work at compile time, where a dimension may be -1 (unknown) and then fits anything, and at run time. They
// throw InvalidArgument (shapes) or TypeMismatch (dtypes) with the slot, what was expected and what came; the framework
// adds the operator.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "framework/data_type.h"
#include "framework/ddim.h"
#include "framework/errors.h"
#include "framework/lod_tensor.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/operator.h"

namespace headrace::ops {

// How many elements a block of a parallel loop has that does little with each.
inline constexpr int64_t kElementsPerBlock = 16384;

// How many rows such a block has. `work`: what a row costs, in elements of which little is made.
inline int64_t RowsPerBlock(int64_t work) {
  return std::max<int64_t>(1, kElementsPerBlock / std::max<int64_t>(1, work));
}

// Name of the slot that holds the gradient of `slot`.
constexpr HashedName Grad(HashedName slot) { return slot.Gradient(); }

// Whether two dimensions may be equal.
inline bool Fits(int64_t a, int64_t b) { return a == b || a < 0 || b < 0; }

// Before a loop over pointers of which any two are equal or lead to memory that does not overlap, and of which each
// iteration uses elements of its own. The compiler need not check that, and vectorises it however many they are.
#if defined(__clang__)
#define HEADRACE_INDEPENDENT_ITERATIONS
#else
#define HEADRACE_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

// Also for integers, which never are.
template <typename T>
bool IsNaN(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

// Integers wrap around, as NumPy's do; signed overflow would be undefined. So they are computed as Wrapping<T>, which
// is T itself for floating point.
template <typename T, bool = std::is_integral_v<T>>
struct WrappingOf {
  using type = std::make_unsigned_t<T>;
};
template <typename T>
struct WrappingOf<T, false> {
  using type = T;
};
template <typename T>
using Wrapping = typename WrappingOf<T>::type;

// For the next statement of a declaration: the methods of a registrar return what they are called on, which stays where
// it is.
inline OpRegistrar&& More(OpRegistrar& op) { return static_cast<OpRegistrar&&>(op); }

// For OpRegistrar::With: the same kernel for every dtype.
OpRegistrar&& KernelForAllTypes(OpRegistrar&& op, const KernelFn& kernel);

// A tensor seen as a matrix: the dims before `split` make its rows, the others its columns. Without columns it has no
// rows. Known dims only.
struct MatrixSize {
  MatrixSize(const DDim& dims, size_t split);
  // The last dimension makes the columns.
  explicit MatrixSize(const LoDTensor& x) : MatrixSize(x.dims(), x.dims().size() - 1) {}
  int64_t rows;
  int64_t cols;
};

// A tensor seen as [outer, extent, inner], `extent` being that of dimension `axis`. Without elements `outer` is 0.
// Known dims only.
struct AxisSize {
  AxisSize(const DDim& dims, size_t axis);
  int64_t outer;
  int64_t extent;
  int64_t inner;
};

// The check of an attribute epsilon: a number of 0 or more.
void CheckEpsilon(const double& value);

// Number of elements of dims[begin, end), -1 if one of them is unknown. Throws InvalidArgument if it overflows.
int64_t Numel(const DDim& dims, size_t begin, size_t end);
inline int64_t Numel(const DDim& dims) { return Numel(dims, 0, dims.size()); }

void EnforceRank(const InferShapeContext& ctx, HashedName slot, size_t rank, size_t i = 0);
void EnforceRankAtLeast(const InferShapeContext& ctx, HashedName slot, size_t rank, size_t i = 0);
void EnforceDims(const InferShapeContext& ctx, HashedName slot, const DDim& expected, size_t i = 0);
void EnforceType(const InferShapeContext& ctx, HashedName slot, DataType expected, size_t i = 0);
void EnforceSameType(const InferShapeContext& ctx, HashedName slot, HashedName like, size_t i = 0);

// Checks an input that ScalarInput reads.
void EnforceScalar(const InferShapeContext& ctx, HashedName slot);
// Checks that a LoD of more than `max` levels is not declared, or, at run time, not there.
void EnforceLevelsAtMost(const InferShapeContext& ctx, HashedName slot, int32_t max);

// `axis` counted from the front. Throws InvalidArgument naming the attribute unless -rank ≤ axis < rank.
size_t FrontAxis(int64_t axis, size_t rank, HashedName attr);

void SetOutput(InferShapeContext& ctx, HashedName slot, const DDim& dims, DataType dtype, size_t i = 0);

// For gradient operators that read the forward inputs: the gradient of each slot has the shape and dtype of its
// variable.
void InferGradients(InferShapeContext& ctx, HashedNames slots);

// The only element of a float32 or float64 tensor: a learning rate, say. Throws InvalidArgument or TypeMismatch naming
// the slot.
double ScalarInput(const ExecutionContext& ctx, HashedName slot);

// The elements of an int32 or int64 input.
PoolVector<int64_t> IntegerInput(const ExecutionContext& ctx, HashedName slot);

// The elements of an input, or of an output; nullptr if the slot is empty.
template <typename T>
const T* ElementsOrNull(const ExecutionContext& ctx, HashedName slot) {
  const LoDTensor* tensor = ctx.InputOrNull(slot);
  return tensor == nullptr ? nullptr : tensor->data<T>();
}
template <typename T>
T* MutableOrNull(const ExecutionContext& ctx, HashedName slot) {
  LoDTensor* tensor = ctx.OutputOrNull(slot);
  return tensor == nullptr ? nullptr : tensor->mutable_data<T>();
}
// As MutableOrNull, with zeros in it.
template <typename T>
T* ZerosOrNull(const ExecutionContext& ctx, HashedName slot) {
  T* data = MutableOrNull<T>(ctx, slot);
  return data == nullptr ? nullptr : (std::fill_n(data, ctx.OutputOrNull(slot)->numel(), T(0)), data);
}

// The DataType whose number an int32 attribute holds. Throws InvalidArgument naming the attribute if there is no such
// type.
DataType TypeAttr(const InferShapeContext& ctx, HashedName attr);

}  // namespace headrace::ops
