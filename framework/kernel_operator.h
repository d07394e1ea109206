// The operator that runs a registered kernel.
#pragma once

#include <cstddef>
#include <vector>

#include "framework/op_registry.h"
#include "framework/operator.h"

namespace headrace {

// Looks its variables up at the first run on a scope and again only when the scope has changed. A run infers shapes and
// chooses the kernel by dtype, unless the inputs have the dims, dtypes and LoD depths, and the outputs the dims, that
// they had when it last did so on this scope; then it calls the kernel.
//
// An output that is an input as well (a parameter that an optimizer updates in place) keeps its contents: if its memory
// is not the variable's alone, because it was handed out or came from outside, it gets a copy of its own before the
// kernel runs (copy on write), so that mutable_data gives the kernel the memory that the input already shows.
class KernelOperator : public OperatorBase {
 public:
  KernelOperator(OpDesc desc, const OpInfo& info);

  void Unbind() override { bindings_.Clear(); }

 private:
  class RuntimeContext;

  // The previous state of the inputs that the shapes of the results depend on. Inputs that are no tensors count as
  // changed.
  struct Input {
    const Variable* variable;
    DDim dims;
    DataType dtype;
    size_t lod_level;
  };
  struct Output {
    Variable* variable;
    DDim dims;
    const Variable* lod;  // whose LoD it shares; nullptr: it has none
  };

  // The operator on one scope.
  struct Binding {
    explicit Binding(ExecutionContext variables);

    ExecutionContext context;
    std::vector<Variable*> in_place;  // both input and output

    // The result of Infer; a kernel only if it has completed.
    const KernelFn* kernel = nullptr;
    const KernelFn* last_kernel = nullptr;  // whether it has come to its end or not
    DataType last_type{};                   // that chose it
    std::vector<Input> inputs;
    std::vector<Output> outputs;  // those that are tensors
  };

  // A slot that the operator declares.
  struct DeclaredSlot {
    HashedName name;
    bool selected_rows;
  };

  void RunImpl(const Scope& scope, const Place& place) override;
  void RunKernel(const Scope& scope);
  void CheckInputs(const Binding& binding) const;
  static bool InputsAreAsBefore(const Binding& binding);
  static bool OutputsAreAsBefore(const Binding& binding);
  void Infer(Binding* binding) const;
  void PassLoDsOn(const Binding& binding) const;
  DataType KernelType(const ExecutionContext& context) const;
  const KernelFn& ChooseKernel(Binding* binding) const;

  static std::vector<DeclaredSlot> Declared(const std::vector<SlotInfo>& slots);
  static bool TakesRows(const std::vector<DeclaredSlot>& slots, HashedName name);

  const OpInfo& info_;
  const std::vector<DeclaredSlot> inputs_;
  const std::vector<DeclaredSlot> outputs_;
  const HashedName type_slot_;  // OpInfo::kernel_type_slot
  const HashedName type_attr_;  // OpInfo::kernel_type_attr
  ScopeBindings<Binding> bindings_;
};

}  // namespace headrace
