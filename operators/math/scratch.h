// Memory for the intermediate values of a kernel.
#pragma once

#include <atomic>
#include <bit>
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

// Numbers of pieces of scratch memory, from 0 on, of which each block of a parallel loop takes one that is free: an
// earlier one if it can, which is in a cache still. So N blocks at a time need the first N pieces only.
//
// Thread-safety: all functions.
class FreePieces {
 public:
  static constexpr int64_t kMax = 63;

  int64_t Take() {
    uint64_t before = free_.load(std::memory_order_relaxed);
    while (!free_.compare_exchange_weak(before, before & (before - 1), std::memory_order_acquire)) {
    }
    return std::countr_zero(before);
  }
  void Return(int64_t piece) { free_.fetch_or(uint64_t{1} << piece, std::memory_order_release); }

 private:
  std::atomic<uint64_t> free_{~uint64_t{0}};
};

}  // namespace headrace::ops
