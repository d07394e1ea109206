#include "operators/common/op_args.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "framework/errors.h"
#include "operators/common/shape_inference.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

OpRegistrar&& TensorOfInts(OpRegistrar&& op, const IntsSlots& slots) {
  return slots.tensor.empty()
             ? std::move(op)
             : std::move(op).Input(slots.tensor.ToString(),
                                   StrCat("int32 or int64: the numbers, instead of attribute ", slots.attr),
                                   kDispensable);
}

}  // namespace

std::string IntsArg::Name() const { return StrCat(kind_, slot_); }

std::string IntsArg::Values() const {
  std::string text = "[";
  for (size_t i = 0; i < size(); ++i) {
    text += StrCat(i == 0 ? "" : ", ", values_[i] == kUnknown ? "?" : std::to_string(values_[i]));
  }
  return text + "]";
}

bool OpArgs::HasInput(HashedName slot) const {
  return infer_ != nullptr ? infer_->HasInput(slot, 0) : run_->HasInput(slot, 0);
}

size_t OpArgs::InputSize(HashedName slot) const {
  return infer_ != nullptr ? infer_->InputSize(slot) : run_->InputSize(slot);
}

DDim OpArgs::AttrInts(HashedName attr) const {
  const Attribute* found = attrs_.Find(attr);
  HR_ENFORCE(found != nullptr, NotFound, "attribute ", attr, " is missing");
  if (const auto* narrow = std::get_if<std::vector<int32_t>>(found)) {
    return {narrow->begin(), narrow->end()};
  }
  return std::get<std::vector<int64_t>>(*found);
}

DataType OpArgs::InputType(HashedName slot, size_t i) const {
  return infer_ != nullptr ? infer_->InputType(slot, i) : run_->Input(slot, i).dtype();
}

DDim OpArgs::InputDim(HashedName slot, size_t i) const {
  return infer_ != nullptr ? infer_->InputDim(slot, i) : run_->Input(slot, i).dims();
}

int64_t OpArgs::CountInts(HashedName slot, size_t i, bool single) const {
  const DataType type = InputType(slot, i);
  HR_ENFORCE(type == DataType::kInt32 || type == DataType::kInt64, TypeMismatch, "input ", slot, ": variable '",
             op().Input(slot.ToString())[i], "' has dtype ", DataTypeName(type), ", expected int32 or int64");
  const DDim dims = InputDim(slot, i);
  const int64_t count = Numel(dims);
  HR_ENFORCE(!single || Fits(count, 1), InvalidArgument, "input ", slot, ": variable '", op().Input(slot.ToString())[i],
             "' has dims ", ToString(dims), ", expected a single element");
  return count;
}

void OpArgs::Append(HashedName slot, size_t i, DDim* values) const {
  const LoDTensor& tensor = run_->Input(slot, i);
  for (int64_t k = 0; k < tensor.numel(); ++k) {
    values->push_back(tensor.dtype() == DataType::kInt32 ? int64_t{tensor.data<int32_t>()[k]}
                                                         : std::max(tensor.data<int64_t>()[k], kUnknown + 1));
  }
}

IntsArg OpArgs::Ints(const IntsSlots& slots, std::optional<size_t> count, bool told) const {
  const bool tensor = HasInput(slots.tensor);
  if (!tensor && !HasInput(slots.list)) {
    return {"attribute ", slots.attr, AttrInts(slots.attr)};
  }
  HR_ENFORCE(!tensor || !HasInput(slots.list), InvalidArgument, "inputs ", slots.tensor, " and ", slots.list,
             ": expected one of them at most");
  const HashedName slot = tensor ? slots.tensor : slots.list;
  const size_t inputs = InputSize(slot);
  int64_t found = tensor ? 0 : static_cast<int64_t>(inputs);
  DDim values;
  for (size_t i = 0; i < inputs; ++i) {
    const int64_t elements = CountInts(slot, i, !tensor);
    found = tensor ? elements : found;
    if (!InShapeInference()) {
      Append(slot, i, &values);
    }
  }
  if (!InShapeInference()) {
    return {"input ", slot, std::move(values)};
  }
  const DDim written = infer_->IsRuntime() ? DDim{} : AttrInts(slots.attr);  // during the run, inputs alone count
  if (found < 0 && (count || !written.empty())) {
    found = static_cast<int64_t>(count ? *count : written.size());
  }
  HR_ENFORCE(found >= 0, InvalidArgument, "input ", slot, ": expected a known number of elements, got dims ",
             ToString(InputDim(slot, 0)));
  values.resize(static_cast<size_t>(found), kUnknown);
  for (size_t i = 0; told && written.size() == values.size() && i < values.size(); ++i) {
    values[i] = written[i] < 0 ? kUnknown : written[i];  // where an input is to be read, layers write -1
  }
  return {"input ", slot, std::move(values)};
}

int64_t OpArgs::Int(HashedName attr, HashedName tensor, size_t i) const {
  if (!HasInput(tensor)) {
    return Attr<int32_t>(attr);
  }
  CountInts(tensor, i, true);
  if (InShapeInference()) {
    return kUnknown;
  }
  DDim values;
  Append(tensor, i, &values);
  return values[0];
}

std::optional<size_t> OpArgs::Axis(HashedName attr, HashedName tensor, size_t rank) const {
  const int64_t axis = Int(attr, tensor);
  if (axis == kUnknown) {
    return std::nullopt;
  }
  const auto signed_rank = static_cast<int64_t>(rank);
  HR_ENFORCE(!HasInput(tensor) || (-signed_rank <= axis && axis < signed_rank), InvalidArgument, "input ", tensor,
             ": expected a dimension in [", -signed_rank, ", ", signed_rank, ") of a tensor of rank ", rank, ", got ",
             axis);
  return FrontAxis(axis, rank, attr);
}

DDim OpArgs::Shape() const {
  const IntsArg shape = Ints(kShapeSlots);
  DDim dims;
  for (size_t d = 0; d < shape.size(); ++d) {
    HR_ENFORCE(shape[d] >= 0 || shape[d] == kUnknown, InvalidArgument, shape.Name(),
               ": expected known dimensions, got ", shape.Values());
    dims.push_back(shape[d] == kUnknown ? -1 : shape[d]);
  }
  (void)Numel(dims);  // throws if there are too many elements
  return dims;
}

OpRegistrar&& IntsInputs(OpRegistrar&& op, const IntsSlots& slots) {
  OpRegistrar&& with_tensor = TensorOfInts(std::move(op), slots);
  return slots.list.empty()
             ? std::move(with_tensor)
             : std::move(with_tensor)
                   .Input(slots.list.ToString(),
                          StrCat("int32 or int64 [1] each: the numbers, instead of attribute ", slots.attr),
                          kDuplicable | kDispensable);
}

GradientUses WithInts(GradientUses uses, std::initializer_list<IntsSlots> slots, bool read) {
  for (const IntsSlots& from : slots) {
    for (const HashedName slot : HashedNames{from.tensor, from.list}) {
      if (!slot.empty()) {
        uses.no_gradient.push_back(slot.ToString());
        if (read) {
          uses.inputs.push_back(slot.ToString());
        }
      }
    }
  }
  return uses;
}

void SetKnownOutput(InferShapeContext& ctx, HashedName slot, const DDim& dims, DataType dtype, size_t i) {
  if (!ctx.IsRuntime() || Numel(dims) >= 0) {
    SetOutput(ctx, slot, dims, dtype, i);
  }
}

}  // namespace headrace::ops
