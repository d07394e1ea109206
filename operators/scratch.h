// Memory for the intermediate values of a kernel.
#pragma once

#include <cstdint>

#include "framework/tensor.h"

namespace headrace::ops {

// `numel` elements, undefined, that `tensor` owns. A kernel passes a thread_local tensor, whose memory is kept from run
// to run, so that a warm run allocates nothing.
template <typename T>
T* Scratch(Tensor* tensor, int64_t numel) {
  return tensor->Resize({numel}).template mutable_data<T>();
}

}  // namespace headrace::ops
