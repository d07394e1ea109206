// The elements of inputs and outputs, for kernels: of slots that may be empty, and of inputs that hold numbers.
#pragma once

#include <cstdint>

#include "framework/export.h"
#include "framework/lod_tensor.h"
#include "framework/memory_pool.h"
#include "framework/operator.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {

// The only element of a float32 or float64 tensor: a learning rate, say. Throws InvalidArgument or TypeMismatch naming
// the slot.
HEADRACE_API double ScalarInput(const ExecutionContext& ctx, HashedName slot);
// That of an input, or the attribute if the slot is empty.
inline double ScalarInputOr(const ExecutionContext& ctx, HashedName slot, HashedName attribute) {
  return ctx.HasInput(slot) ? ScalarInput(ctx, slot) : ctx.Attr<double>(attribute);
}

// The elements of an int32 or int64 input.
HEADRACE_API PoolVector<int64_t> IntegerInput(const ExecutionContext& ctx, HashedName slot);

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
  if (data != nullptr) {
    ParallelFill(data, ctx.OutputOrNull(slot)->numel(), T(0));
  }
  return data;
}

}  // namespace headrace::ops
