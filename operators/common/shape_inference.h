// Shape inference: checks of inputs and attributes, and the dims and dtypes of results.
//
// The checks work at compile time, where a dimension may be -1 (unknown) and then fits anything, and at run time. They
// throw InvalidArgument (shapes) or TypeMismatch (dtypes) with the slot, the expected and the actual value; the
// framework adds the operator.
#pragma once

#include <cstddef>
#include <cstdint>

#include "framework/data_type.h"
#include "framework/ddim.h"
#include "framework/export.h"
#include "framework/op_registry.h"

namespace headrace::ops {

// Name of the slot that holds the gradient of `slot`.
constexpr HashedName Grad(HashedName slot) { return slot.Gradient(); }

// Whether two dimensions may be equal.
inline bool Fits(int64_t a, int64_t b) { return a == b || a < 0 || b < 0; }

// The check of an attribute epsilon: a number of 0 or more.
HEADRACE_API void CheckEpsilon(const double& value);

HEADRACE_API void EnforceRank(const InferShapeContext& ctx, HashedName slot, size_t rank, size_t i = 0);
HEADRACE_API void EnforceRankAtLeast(const InferShapeContext& ctx, HashedName slot, size_t rank, size_t i = 0);
HEADRACE_API void EnforceDims(const InferShapeContext& ctx, HashedName slot, const DDim& expected, size_t i = 0);
// Checks that there are `count` elements: a column, a row or a list of them.
HEADRACE_API void EnforceElements(const InferShapeContext& ctx, HashedName slot, int64_t count);
HEADRACE_API void EnforceType(const InferShapeContext& ctx, HashedName slot, DataType expected, size_t i = 0);
HEADRACE_API void EnforceSameType(const InferShapeContext& ctx, HashedName slot, HashedName like, size_t i = 0);

// Whether a program may feed the input as something else than it declares, as it may the variables of layers.data: then
// the run checks it.
HEADRACE_API bool MayBeFedOtherwise(const InferShapeContext& ctx, HashedName slot);

// Checks the dtype of an input that IntegerInput reads.
HEADRACE_API void EnforceIntegers(const InferShapeContext& ctx, HashedName slot);
// Checks an input that ScalarInput reads.
HEADRACE_API void EnforceScalar(const InferShapeContext& ctx, HashedName slot);
// Checks that a LoD of more than `max` levels is not declared, or, at run time, not there.
HEADRACE_API void EnforceLevelsAtMost(const InferShapeContext& ctx, HashedName slot, int32_t max);

// `axis` counted from the front. Throws InvalidArgument naming the attribute unless -rank ≤ axis < rank.
HEADRACE_API size_t FrontAxis(int64_t axis, size_t rank, HashedName attr);

HEADRACE_API void SetOutput(InferShapeContext& ctx, HashedName slot, const DDim& dims, DataType dtype, size_t i = 0);

// For gradient operators that read the forward inputs: the gradient of each slot has the shape and dtype of its
// variable.
HEADRACE_API void InferGradients(InferShapeContext& ctx, HashedNames slots);

// The DataType whose number an int32 attribute holds. Throws InvalidArgument naming the attribute if there is no such
// type.
HEADRACE_API DataType TypeAttr(const InferShapeContext& ctx, HashedName attr);

}  // namespace headrace::ops
