#include "reader/batch_check.h"

#include <cstddef>
#include <sstream>

#include "framework/data_type.h"
#include "framework/ddim.h"
#include "framework/errors.h"

namespace headrace {
namespace {

template <typename E, typename... Args>
[[noreturn]] void Refuse(uint64_t number, const std::vector<std::string>& names, size_t i, const Args&... args) {
  const bool named = i < names.size() && !names[i].empty();
  E error(StrCat("batch ", number, ", ", named ? "variable '" + names[i] + "'" : StrCat("tensor ", i), ": ", args...));
  if (named) error.SetVariable(names[i]);
  throw error;
}

void CheckTensor(const TensorSpec& spec, bool dims_only, const std::vector<std::string>& names, size_t i,
                 const LoDTensor& tensor, uint64_t number) {
  if (!Matches(spec.dims, tensor.dims())) {
    Refuse<InvalidArgument>(number, names, i, "expected shape ", ToString(spec.dims), ", got ",
                            ToString(tensor.dims()));
  }
  if (dims_only) return;
  if (tensor.dtype() != spec.dtype) {
    Refuse<TypeMismatch>(number, names, i, "expected dtype ", DataTypeName(spec.dtype), ", got ",
                         DataTypeName(tensor.dtype()));
  }
  if (tensor.lod_level() != static_cast<size_t>(spec.lod_level)) {
    Refuse<InvalidArgument>(number, names, i, "expected ", spec.lod_level, " levels of LoD, got ", tensor.lod_level());
  }
}

// A malformed LoD would send kernels outside of the data, so it is looked at even where nothing is declared.
void CheckWellFormed(const std::vector<std::string>& names, size_t i, const LoDTensor& tensor, uint64_t number) {
  if (!tensor.initialized()) Refuse<InvalidArgument>(number, names, i, "the tensor holds no data");
  try {
    (void)tensor.raw_data();  // a Resize may have outgrown its memory
  } catch (const Error& error) {
    Refuse<InvalidArgument>(number, names, i, error.message());
  }
  if (tensor.lod_level() == 0) return;
  if (tensor.dims().empty()) Refuse<InvalidArgument>(number, names, i, "a scalar cannot have a LoD");
  try {
    CheckLoD(tensor.lod(), tensor.dims()[0]);
  } catch (const Error& error) {
    Refuse<InvalidArgument>(number, names, i, error.message());
  }
}

// The variables that a batch has a tensor for, to be put after their number: ", for img, label", as far as they have
// names.
std::string ForVariables(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) {
    if (!name.empty()) list += (list.empty() ? ", for " : ", ") + name;
  }
  return list;
}

}  // namespace

void CheckBatch(const BatchContract& contract, const std::vector<std::string>& names, const LoDTensorArray& batch,
                uint64_t number) {
  if (contract.undeclared) {
    HR_ENFORCE(!batch.empty(), InvalidArgument, "batch ", number, ": expected at least one tensor, got none");
    for (size_t i = 0; i < batch.size(); ++i) CheckWellFormed(names, i, batch[i], number);
    return;
  }
  HR_ENFORCE(batch.size() == contract.specs.size(), InvalidArgument, "batch ", number, ": expected ",
             contract.specs.size(), contract.specs.size() == 1 ? " tensor" : " tensors", ForVariables(names), ", got ",
             batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    CheckWellFormed(names, i, batch[i], number);
    if (contract.checked.empty() || contract.checked[i]) {
      CheckTensor(contract.specs[i], contract.dims_only, names, i, batch[i], number);
    } else if (!contract.any_dtype && !MayBeGivenAs(contract.specs[i].dtype, batch[i].dtype())) {
      Refuse<TypeMismatch>(number, names, i, "expected dtype ", DataTypeName(contract.specs[i].dtype), ", got ",
                           DataTypeName(batch[i].dtype()));
    }
  }
}

void CheckContract(const BatchContract& contract, const std::string& what) {
  const std::vector<TensorSpec>& specs = contract.specs;
  HR_ENFORCE(!contract.undeclared, InvalidArgument, what, ": its tensors must be declared");
  HR_ENFORCE(!specs.empty(), InvalidArgument, what, ": at least one tensor must be declared");
  for (size_t i = 0; i < specs.size(); ++i) {
    for (const int64_t dim : specs[i].dims) {
      HR_ENFORCE(dim >= -1, InvalidArgument, what, ": dimensions are -1 (any) or not negative; tensor ", i,
                 " is declared as ", ToString(specs[i].dims));
    }
    HR_ENFORCE(specs[i].lod_level >= 0, InvalidArgument, what, ": tensor ", i, " is declared with a LoD of depth ",
               specs[i].lod_level);
  }
  const size_t checked = contract.checked.size();
  HR_ENFORCE(checked == 0 || checked == specs.size(), InvalidArgument, what,
             ": expected a value of `checked` for each of its ", specs.size(), " tensors, got ", checked);
}

}  // namespace headrace
