// Shapes. A dimension of -1 is unknown until run time; it appears in programs and in queue declarations, never in a
// tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/export.h"

namespace headrace {

using DDim = std::vector<int64_t>;

// Number of elements; 1 for a scalar. Throws InvalidArgument if a dimension is negative or if the product of those that
// are not 0 overflows, so that the product of any of them is safe.
HEADRACE_API int64_t Product(const DDim& dims);

// Throws InvalidArgument unless every dimension is -1 or more and the product of the positive ones fits an int64.
HEADRACE_API void CheckDims(const DDim& dims);

// a + b and a · b of extents, both 0 or more. Throw InvalidArgument if the result does not fit an int64.
HEADRACE_API int64_t AddExtents(int64_t a, int64_t b);
HEADRACE_API int64_t MultiplyExtents(int64_t a, int64_t b);

// "[32, 1, 28, 28]".
HEADRACE_API std::string ToString(const DDim& dims);

// Whether `actual` fits `declared`: the same rank, and the same extent wherever `declared` is not -1.
HEADRACE_API bool Matches(const DDim& declared, const DDim& actual);

}  // namespace headrace
