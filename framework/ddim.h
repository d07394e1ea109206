// Shapes. A dimension of -1 is unknown until run time; it appears in programs and in queue declarations, never in a
// tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/export.h"

namespace headrace {

using DDim = std::vector<int64_t>;

// Number of elements; 1 for a scalar. Throws InvalidArgument if a dimension is negative or the product overflows.
HEADRACE_API int64_t Product(const DDim& dims);

// "[32, 1, 28, 28]".
HEADRACE_API std::string ToString(const DDim& dims);

// Whether `actual` fits `declared`: the same rank, and the same extent wherever `declared` is not -1.
HEADRACE_API bool Matches(const DDim& declared, const DDim& actual);

}  // namespace headrace
