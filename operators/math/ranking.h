// The order in which operators rank elements.
#pragma once

#include "operators/math/element_loop.h"

namespace headrace::ops {

// Whether a comes before b in a ranking: greater first, NaN before everything.
template <typename T>
bool Before(T a, T b) {
  return a > b || (IsNaN(a) && !IsNaN(b));
}

}  // namespace headrace::ops
