// Arrays, and gradients that several steps add to: that of an array is one tensor for each place that has one so far.
// See framework/backward.cc.
#pragma once

#include <cstddef>
#include <cstring>

#include "framework/lod_tensor.h"
#include "framework/selected_rows.h"
#include "operators/common/shape_inference.h"

namespace headrace::ops {

inline bool IsArray(const VarDesc* var) { return var != nullptr && var->kind == VarKind::kLoDTensorArray; }

// Checks that a variable is declared to hold an array; nothing at run time, when there is no `desc`. `slot`: "input X".
inline void EnforceArray(const VarDesc* desc, const char* slot) {
  HR_ENFORCE(desc == nullptr || IsArray(desc), TypeMismatch, slot, ": expected a LoDTensorArray, '", desc->name,
             "' is a ", VarKindName(desc->kind));
}

inline void SetZerosLike(const LoDTensor& like, LoDTensor* out) {
  out->Resize(like.dims());
  std::memset(out->mutable_data(like.dtype()), 0, like.nbytes());
}

template <typename T>
void AddElements(const Tensor& from, Tensor* to) {
  const T* x = from.data<T>();
  T* sum = static_cast<T*>(to->raw_mutable_data());
  for (int64_t i = 0, n = from.numel(); i < n; ++i) {
    sum[i] += x[i];
  }
}

// `to` has memory of its own. Throws InvalidArgument if dims or dtypes differ, TypeMismatch for other types than
// float32 and float64.
inline void AddTensor(const Tensor& from, Tensor* to) {
  HR_ENFORCE(from.dims() == to->dims() && from.dtype() == to->dtype(), InvalidArgument,
             "gradients that are added up differ: ", DataTypeName(to->dtype()), ' ', ToString(to->dims()), " and ",
             DataTypeName(from.dtype()), ' ', ToString(from.dims()));
  if (from.dtype() == DataType::kFloat32) {
    AddElements<float>(from, to);
  } else {
    AddElements<double>(from, to);
  }
}

// Adds the rows of the gradient of another step.
inline void AppendRows(const SelectedRows& from, SelectedRows* to) {
  from.Check();
  HR_ENFORCE(to->rows().empty() || from.complete_dims() == to->complete_dims(), InvalidArgument,
             "the gradients of two steps differ: rows of a tensor of dims ", ToString(to->complete_dims()), " and ",
             ToString(from.complete_dims()));
  HR_ENFORCE(to->rows().empty() || from.value().dtype() == to->value().dtype(), InvalidArgument,
             "the gradients of two steps differ: rows of ", DataTypeName(to->value().dtype()), " and ",
             DataTypeName(from.value().dtype()));
  const size_t before = to->rows().empty() ? 0 : to->value().nbytes();
  LoDTensor both;
  DDim dims = from.value().dims();
  dims[0] += static_cast<int64_t>(to->rows().size());
  both.Resize(dims);
  auto* bytes = static_cast<char*>(both.mutable_data(from.value().dtype()));
  if (before != 0) {
    std::memcpy(bytes, to->value().raw_data(), before);
  }
  if (from.value().nbytes() != 0) {
    std::memcpy(bytes + before, from.value().raw_data(), from.value().nbytes());
  }
  to->mutable_rows()->insert(to->mutable_rows()->end(), from.rows().begin(), from.rows().end());
  to->set_height(from.height());
  *to->mutable_value() = std::move(both);
}

// Adds to the gradient of a place.
inline void AddToPlace(const LoDTensor& gradient, size_t place, LoDTensorArray* array) {
  if (place >= array->size()) {
    array->resize(place + 1);
  }
  LoDTensor& sum = (*array)[place];
  if (!sum.initialized()) {
    sum.CopyFrom(gradient);
    return;
  }
  sum.Unshare();
  AddTensor(gradient, &sum);
}

// Takes the gradient of a place out: the place has been overwritten, so nothing before depends on it any more. A tensor
// that is not initialised if there is none.
inline LoDTensor TakeFromPlace(size_t place, LoDTensorArray* array) {
  LoDTensor taken;
  if (place < array->size()) {
    std::swap(taken, (*array)[place]);
  }
  return taken;
}

}  // namespace headrace::ops
