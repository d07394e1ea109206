// Tests the declarations of an operator about its memory, InPlace and kShapeOnly: the plan of a program relies on them.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "framework/lod_tensor.h"
#include "framework/memory_plan.h"
#include "framework/op_registry.h"
#include "framework/operator.h"
#include "framework/scope.h"
#include "framework/selected_rows.h"

namespace headrace {

namespace memory_declarations_internal {

// Shape, dtype, LoD and elements of a tensor as text.
inline std::string Image(const LoDTensor& tensor) {
  if (!tensor.initialized()) {
    return "nothing";
  }
  std::string image = StrCat(ToString(tensor.dims()), " ", DataTypeName(tensor.dtype()), " ", ToString(tensor.lod()));
  if (tensor.nbytes() > 0) {
    image.append(static_cast<const char*>(tensor.raw_data()), tensor.nbytes());
  }
  return image;
}

inline std::string Image(const Variable& variable) {
  if (variable.IsType<LoDTensor>()) {
    return Image(variable.Get<LoDTensor>());
  }
  if (!variable.IsType<SelectedRows>()) {
    return "something else";
  }
  const auto& rows = variable.Get<SelectedRows>();
  std::string image = StrCat("height ", rows.height(), ", rows");
  for (const int64_t row : rows.rows()) {
    image += StrCat(" ", row);
  }
  return image + Image(rows.value());
}

// The runs of one use of an operator.
class Trials {
 public:
  Trials(const OpDesc& op, std::function<void(Scope*)> fill) : op_(op), fill_(std::move(fill)) {
    OpRegistry::Check(op_);
  }

  std::vector<std::string> Faults() {
    const OpInfo& info = OpRegistry::Get(op_.type);
    if (info.kernels.empty() || !HasDeclarations(info)) {
      return {};
    }
    expected_ = Run(op_, [](Scope*) {}, &results_);
    Scope again;
    if (Run(op_, [](Scope*) {}, &again) != expected_) {
      return {};  // random numbers
    }
    const std::vector<std::string> inputs = op_.InputNames();
    for (const InPlacePair& pair : info.in_place) {
      for (const std::string& output : op_.Output(pair.output)) {
        if (std::ranges::find(inputs, output) != inputs.end()) {
          continue;  // it is in the memory of an input already
        }
        for (const std::string& input : op_.Input(pair.input)) {
          if (IsOnlyIn(op_, pair.input, input) && IsTensor(results_, input) && IsTensor(results_, output)) {
            TryInPlace(pair, output, input);
          }
        }
      }
    }
    for (const SlotInfo& slot : info.inputs) {
      for (const std::string& input : op_.Input(slot.name)) {
        if (slot.shape_only && IsTensor(results_, input)) {
          Try(
              op_, [&](Scope* scope) { Tensor(scope, input)->SetMemory(Allocation::OnHeap(0)); },
              StrCat("where ", input, " has no elements, which slot ", slot.name,
                     " declares by kShapeOnly not to read"));
        }
      }
    }
    return faults_;
  }

 private:
  static bool HasDeclarations(const OpInfo& info) {
    return !info.in_place.empty() ||
           std::any_of(info.inputs.begin(), info.inputs.end(), [](const SlotInfo& slot) { return slot.shape_only; });
  }
  static bool IsTensor(const Scope& scope, const std::string& name) {
    const Variable* variable = scope.FindVar(name);
    return variable != nullptr && variable->IsType<LoDTensor>() && variable->Get<LoDTensor>().initialized();
  }
  static LoDTensor* Tensor(Scope* scope, const std::string& name) { return scope->Var(name)->GetMutable<LoDTensor>(); }

  // Runs `op` on the inputs as `prepare` has changed them. Returns its outputs, in their order.
  template <typename Prepare>
  std::vector<std::string> Run(const OpDesc& op, const Prepare& prepare, Scope* scope) const {
    fill_(scope);
    for (const std::string& name : op.OutputNames()) {
      if (name != kEmptyVarName) {
        scope->Var(name);
      }
    }
    prepare(scope);
    OpRegistry::Create(op)->Run(*scope, CPUPlace());
    std::vector<std::string> images;
    for (const std::string& name : op.OutputNames()) {
      images.push_back(name == kEmptyVarName ? "" : Image(scope->GetVar(name)));
    }
    return images;
  }

  template <typename Prepare>
  void Try(const OpDesc& op, const Prepare& prepare, const std::string& where) {
    std::string what;
    try {
      Scope scope;
      const std::vector<std::string> images = Run(op, prepare, &scope);
      const std::vector<std::string> names = op_.OutputNames();
      for (size_t i = 0; i < images.size(); ++i) {
        if (images[i] != expected_[i]) {
          what += StrCat(what.empty() ? "" : ", ", names[i]);
        }
      }
      what += what.empty() ? "" : " differs";
    } catch (const std::exception& error) {
      what = error.what();
    }
    if (!what.empty()) {
      faults_.push_back(StrCat(op_.type, ": ", what, " ", where));
    }
  }

  void TryInPlace(const InPlacePair& pair, const std::string& output, const std::string& input) {
    const std::string declared = StrCat("where ", output, " has the memory of ", input, ", which InPlace(\"",
                                        pair.output, "\", \"", pair.input, "\") declares to be possible");
    const size_t bytes =
        std::max(results_.GetVar(input).Get<LoDTensor>().nbytes(), results_.GetVar(output).Get<LoDTensor>().nbytes());
    Try(
        op_,
        [&](Scope* scope) {
          LoDTensor* tensor = Tensor(scope, input);
          const auto memory = Allocation::OnHeap(bytes);
          if (tensor->nbytes() > 0) {
            std::memcpy(memory->data(), tensor->raw_data(), tensor->nbytes());
          }
          tensor->SetMemory(Allocation::Part(memory, 0, bytes));
          Tensor(scope, output)->SetMemory(Allocation::Part(memory, 0, bytes));
        },
        declared);
    const auto& before = results_.GetVar(input).Get<LoDTensor>();
    const auto& after = results_.GetVar(output).Get<LoDTensor>();
    if (before.dims() == after.dims() && before.dtype() == after.dtype()) {
      OpDesc in_place = op_;
      std::ranges::replace(in_place.outputs.at(pair.output), output, input);
      Try(in_place, [](Scope*) {}, StrCat(declared, " (as one variable)"));
    }
  }

  OpDesc op_;
  const std::function<void(Scope*)> fill_;
  Scope results_;  // of a run in which each variable has memory of its own
  std::vector<std::string> expected_;
  std::vector<std::string> faults_;
};

}  // namespace memory_declarations_internal

// Runs `op`, whose inputs `fill` puts into a scope, once for each output that it declares to write in place of an
// input, in the memory of that, and once for each input of which it declares to read only the shape, without elements.
// Returns the differences from a run in which each variable has its own memory, a line for each run; nothing for
// operators that are no kernels or give other results each time. Throws the exceptions of the operator on its own
// memory.
inline std::vector<std::string> BrokenMemoryDeclarations(const OpDesc& op, std::function<void(Scope*)> fill) {
  return memory_declarations_internal::Trials(op, std::move(fill)).Faults();
}

}  // namespace headrace
