// Memory for the intermediate values of a kernel.
#pragma once

#include <cstdint>

#include "framework/tensor.h"

namespace headrace::ops {

// `numel` elements, undefined, that `tensor` owns: a tensor of the kernel, gone when it returns. A warm run finds the
// memory among that of the temporaries.
template <typename T>
T* Scratch(Tensor* tensor, int64_t numel) {
  size_t bytes = 0;
  HR_ENFORCE(!__builtin_mul_overflow(static_cast<size_t>(numel), sizeof(T), &bytes), InvalidArgument, numel,
             " elements do not fit into memory");
  *tensor = Tensor();
  *tensor = Tensor(Allocation::Scratch(bytes), DataTypeOf<T>::value, {numel});
  return static_cast<T*>(tensor->raw_mutable_data());
}

}  // namespace headrace::ops
