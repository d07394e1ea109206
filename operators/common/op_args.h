// What operators take from attributes or, from Fluid 1.5 on, from inputs in their place: shapes, places and counts that
// only the run knows.
//
// Shape inference, before the run as during it, does not see what inputs hold. Then the number of integers is known,
// and each is kUnknown: what the attribute holds besides may be something else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "framework/ddim.h"
#include "framework/op_registry.h"
#include "framework/operator.h"

namespace headrace::ops {

// Where a list of integers comes from: attribute `attr` (int32 or int64), or input `tensor`, which holds all of them,
// or input `list` of several variables of one element each. "": there is no such slot.
struct IntsSlots {
  HashedName attr;
  HashedName tensor;
  HashedName list;
};

inline constexpr IntsSlots kShapeSlots = {"shape", "ShapeTensor", "ShapeTensorList"};

// An integer that is not known before the run. No input is taken to hold it.
inline constexpr int64_t kUnknown = std::numeric_limits<int64_t>::min();

class IntsArg {
 public:
  IntsArg(std::string_view kind, HashedName slot, DDim values) : kind_(kind), slot_(slot), values_(std::move(values)) {}

  size_t size() const { return values_.size(); }
  int64_t operator[](size_t i) const { return values_[i]; }
  // For messages: where they come from, and what they are.
  std::string Name() const;
  std::string Values() const;

 private:
  std::string_view kind_;
  HashedName slot_;
  DDim values_;  // integers of any kind; seldom more than a DDim has room for
};

// The attributes and inputs of an operator, in shape inference and in the kernel. Lives no longer than the context.
class OpArgs {
 public:
  OpArgs(const InferShapeContext& ctx) : attrs_(ctx.attrs()), infer_(&ctx) {}  // NOLINT(google-explicit-constructor)
  OpArgs(const ExecutionContext& ctx) : attrs_(ctx.attrs()), run_(&ctx) {}     // NOLINT(google-explicit-constructor)

  const OpDesc& op() const { return infer_ != nullptr ? infer_->op() : run_->op(); }
  const AttributeIndex& attrs() const { return attrs_; }
  template <typename T>
  const T& Attr(HashedName name) const {
    return attrs_.Attr<T>(name);
  }
  bool HasInput(HashedName slot) const;
  bool InShapeInference() const { return infer_ != nullptr; }

  bool FromInputs(const IntsSlots& slots) const { return HasInput(slots.tensor) || HasInput(slots.list); }
  // Throw TypeMismatch or InvalidArgument naming the slot if an input is not int32 or int64 or does not have one
  // element where it has to. `count`: the number of integers if nothing else says it before the run. `told`: before the
  // run, those that the attribute holds besides are what the inputs will hold; another attribute says so.
  IntsArg Ints(const IntsSlots& slots, std::optional<size_t> count = std::nullopt, bool told = false) const;
  // Attribute `attr` (int32), or the only element of variable `i` of input `tensor`.
  int64_t Int(HashedName attr, HashedName tensor, size_t i = 0) const;
  // The dimension that Int is, counted from the front; none if it is not known. Throws as FrontAxis does.
  std::optional<size_t> Axis(HashedName attr, HashedName tensor, size_t rank) const;
  // The dims that kShapeSlots hold; -1 where they are not known. Throws InvalidArgument if one is negative.
  DDim Shape() const;

 private:
  DDim AttrInts(HashedName attr) const;
  DataType InputType(HashedName slot, size_t i) const;
  DDim InputDim(HashedName slot, size_t i) const;
  size_t InputSize(HashedName slot) const;
  // The number of elements of an input; -1 where it is not known.
  int64_t CountInts(HashedName slot, size_t i, bool single) const;
  void Append(HashedName slot, size_t i, DDim* values) const;

  const AttributeIndex& attrs_;
  const InferShapeContext* infer_ = nullptr;
  const ExecutionContext* run_ = nullptr;
};

// Declares the inputs of `slots`.
OpRegistrar&& IntsInputs(OpRegistrar&& op, const IntsSlots& slots);

// Has the gradient operator read the inputs of `slots`, if it has any use for them; they have no gradient.
GradientUses WithInts(GradientUses uses, std::initializer_list<IntsSlots> slots, bool read);

// SetOutput, unless the dims are left to the kernel: during the run, where inputs hold them.
void SetKnownOutput(InferShapeContext& ctx, HashedName slot, const DDim& dims, DataType dtype, size_t i = 0);

}  // namespace headrace::ops
