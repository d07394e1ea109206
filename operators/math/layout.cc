#include "operators/math/layout.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "operators/math/permute.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

OpRegistrar&& OneOfLayouts(OpRegistrar&& op, const std::string& name, const std::string& default_value,
                           const std::string& description, std::vector<std::string> layouts) {
  return std::move(op).Attr<std::string>(
      name, description, default_value, [name, layouts = std::move(layouts)](const std::string& layout) {
        if (std::find(layouts.begin(), layouts.end(), layout) != layouts.end()) {
          return;
        }
        std::string expected;
        for (const std::string& valid : layouts) {
          expected += StrCat(expected.empty() ? "" : valid == layouts.back() ? " or " : ", ", "'", valid, "'");
        }
        Throw<InvalidArgument>("attribute ", name, ": expected ", expected, ", got '", layout, "'");
      });
}

}  // namespace

OpRegistrar&& LayoutAttr(OpRegistrar&& op, const std::string& name, const std::string& default_value) {
  return OneOfLayouts(std::move(op), name, default_value,
                      "'NCHW', 'NCDHW' or 'AnyLayout', or 'NHWC' or 'NDHWC': the channels are the last dimension",
                      {"NCHW", "NCDHW", "AnyLayout", "NHWC", "NDHWC"});
}

OpRegistrar&& TwoLayoutsAttr(OpRegistrar&& op, const std::string& name) {
  return OneOfLayouts(std::move(op), name, "NCHW", "'NCHW', or 'NHWC': the channels are the last dimension",
                      {"NCHW", "NHWC"});
}

bool HasChannelsLast(const AttributeIndex& op) {
  for (const HashedName name : HashedNames{"data_format", "data_layout"}) {
    if (op.Has(name)) {
      const HashedName layout = op.Text(name);
      return layout == "NHWC" || layout == "NDHWC";
    }
  }
  return false;
}

const char* LayoutName(size_t dimensions, bool channels_last) {
  if (channels_last) {
    return dimensions == 2 ? "[N, H, W, C]" : "[N, D, H, W, C]";
  }
  return dimensions == 2 ? "[N, C, H, W]" : "[N, C, D, H, W]";
}

std::string LayoutNames(size_t dimensions) {
  return StrCat(LayoutName(dimensions, false), " or ", LayoutName(dimensions, true));
}

template <typename T>
const T* ReadChannelsFirst(const LoDTensor& x, bool channels_last, Tensor* memory) {
  const T* from = x.data<T>();
  if (!channels_last) {
    return from;
  }
  const DDim& dims = x.dims();
  const DDim images = {dims[0], Numel(dims, 1, dims.size() - 1), dims.back()};
  T* to = Scratch<T>(memory, x.numel());
  Permute(images, {0, 2, 1}, sizeof(T), from, to);
  return to;
}

template <typename T>
void StoreChannelsLast(const T* from, LoDTensor* out) {
  const DDim& dims = out->dims();
  const DDim images = {dims[0], dims.back(), Numel(dims, 1, dims.size() - 1)};
  Permute(images, {0, 2, 1}, sizeof(T), from, out->mutable_data<T>());
}

#define HEADRACE_INSTANTIATE(T)                                            \
  template const T* ReadChannelsFirst<T>(const LoDTensor&, bool, Tensor*); \
  template void StoreChannelsLast<T>(const T*, LoDTensor*)
HEADRACE_INSTANTIATE(float);
HEADRACE_INSTANTIATE(double);
#undef HEADRACE_INSTANTIATE

}  // namespace headrace::ops
