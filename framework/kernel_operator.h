// The operator that runs a registered kernel.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "framework/op_registry.h"
#include "framework/operator.h"

namespace headrace {

// Looks its variables up at the first run on a scope and again only when the scope has changed. A run infers shapes and
// chooses the kernel by dtype, unless the inputs have the dims, dtypes and LoD depths, and the outputs the dims, that
// they had when it last did so; then it calls the kernel.
//
// An output that is an input as well (a parameter that an optimizer updates in place) keeps its contents: if its memory
// is not the variable's alone, because it was handed out or came from outside, it gets a copy of its own before the
// kernel runs (copy on write), so that mutable_data gives the kernel the memory that the input already shows.
class KernelOperator : public OperatorBase {
 public:
  KernelOperator(OpDesc desc, const OpInfo& info);

 private:
  class RuntimeContext;

  // What the shapes of the results depend on, as it was. What is not a tensor is never as it was.
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

  void RunImpl(const Scope& scope, const Place& place) override;
  void Resolve(const Scope& scope);
  void CheckInputs() const;
  bool InputsAreAsBefore() const;
  bool OutputsAreAsBefore() const;
  void Infer();
  void PassLoDsOn() const;
  const KernelFn& ChooseKernel() const;

  const OpInfo& info_;
  const Scope* scope_ = nullptr;  // never followed, only compared
  uint64_t scope_revision_ = 0;
  std::optional<ExecutionContext> context_;
  std::vector<Variable*> in_place_;  // both input and output

  // What Infer found; a kernel only if it has come to its end.
  const KernelFn* kernel_ = nullptr;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;  // those that are tensors
};

}  // namespace headrace
