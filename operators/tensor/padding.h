// What the operators share that put elements around a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "framework/ddim.h"
#include "framework/op_registry.h"

namespace headrace::ops {

// The dims of what is padded and how many elements come before those of X.
struct Padding {
  explicit Padding(const DDim& dims) : out(dims), x(dims) {}
  // `name`() is what says so, for messages.
  template <typename Name>
  void Add(size_t d, int64_t before, int64_t after, const Name& name) {
    HR_ENFORCE(before >= 0 && after >= 0, InvalidArgument, name(), ": expected numbers of 0 or more, got ", before,
               " and ", after);
    begin.push_back(before);
    out[d] = x[d] < 0 ? -1 : AddExtents(AddExtents(x[d], before), after);
  }
  // The element of X that element `i` along dimension `d` is; -1: none.
  int64_t Inside(size_t d, int64_t i) const { return begin[d] <= i && i < begin[d] + x[d] ? i - begin[d] : -1; }
  DDim out;
  DDim x;
  DDim begin{};
};

// Declares the attribute pad_value.
inline OpRegistrar&& PadValue(OpRegistrar&& op) {
  return std::move(op).Attr<double>("pad_value", "value of the new elements", 0.0);
}

}  // namespace headrace::ops
