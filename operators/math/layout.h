// Where images and volumes have their channels: first, [N, C, H, W] and [N, C, D, H, W], or last, [N, H, W, C] and
// [N, D, H, W, C]. Kernels that compute with the channels first take others by way of scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "framework/lod_tensor.h"
#include "framework/op_registry.h"
#include "operators/math/scratch.h"

namespace headrace::ops {

// An attribute that tells the layout of images or volumes, data_format or data_layout. As in Fluid, that of the one
// may be given for the other, and "AnyLayout" is channels first.
OpRegistrar&& LayoutAttr(OpRegistrar&& op, const std::string& name, const std::string& default_value);

// Such an attribute of operators that know layouts as 'NCHW' and 'NHWC' only, whatever the number of
// dimensions.
OpRegistrar&& TwoLayoutsAttr(OpRegistrar&& op, const std::string& name);

// Whether such an attribute of `op` says that the channels come last. Without one they come first.
bool HasChannelsLast(const AttributeIndex& op);

// "[N, C, H, W]", say.
const char* LayoutName(size_t dimensions, bool channels_last);

// "[N, C, H, W] or [N, H, W, C]", say.
std::string LayoutNames(size_t dimensions);

// The channels of `dims`, of at least two dimensions.
inline int64_t ChannelsOf(const DDim& dims, bool channels_last) { return channels_last ? dims.back() : dims[1]; }

// The elements of `x` with the channels first, in memory that `*memory` owns unless they are there already.
template <typename T>
const T* ReadChannelsFirst(const LoDTensor& x, bool channels_last, Tensor* memory);

// Moves elements with the channels first into `out`, which has dims with the channels last.
template <typename T>
void StoreChannelsLast(const T* from, LoDTensor* out);

// Calls compute(T* with room for the elements of `out` with the channels first), then puts them into `out`. Where `out`
// is nullptr, so is what compute gets.
template <typename T, typename Compute>
void WriteChannelsFirst(LoDTensor* out, bool channels_last, Compute&& compute) {
  if (out == nullptr || !channels_last) {
    compute(out == nullptr ? nullptr : out->mutable_data<T>());
    return;
  }
  Tensor memory;
  T* first = Scratch<T>(&memory, out->numel());
  compute(first);
  StoreChannelsLast<T>(first, out);
}

}  // namespace headrace::ops
