// The operator that runs a registered kernel.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "framework/op_registry.h"
#include "framework/operator.h"

namespace headrace {

// Looks its variables up at the first run on a scope and again only when the scope has changed; then each run infers
// shapes, chooses the kernel by dtype and calls it.
//
// An output that is an input as well (a parameter that an optimizer updates in place) keeps its contents: if its memory
// is not the variable's alone, because it was handed out or came from outside, it gets a copy of its own before the
// kernel runs (copy on write), so that mutable_data gives the kernel the memory that the input already shows.
class KernelOperator : public OperatorBase {
 public:
  KernelOperator(OpDesc desc, const OpInfo& info);

 private:
  void RunImpl(const Scope& scope, const Place& place) override;
  void Resolve(const Scope& scope);
  void CheckInputs() const;
  const KernelFn& ChooseKernel() const;

  const OpInfo& info_;
  const Scope* scope_ = nullptr;  // never followed, only compared
  uint64_t scope_revision_ = 0;
  std::optional<ExecutionContext> context_;
  std::vector<Variable*> in_place_;  // both input and output
};

}  // namespace headrace
