#include "framework/operator.h"

#include <new>
#include <stdexcept>

namespace headrace {
namespace {

const std::string& OnlyName(const OpDesc& op, const std::vector<std::string>& names, std::string_view direction,
                            std::string_view slot) {
  HR_ENFORCE(names.size() == 1, InvalidArgument, direction, " slot '", slot, "' of '", op.type,
             "' must hold one variable, holds ", names.size());
  return names.front();
}

Variable* VariableIn(const std::vector<ExecutionContext::Slot>& slots, std::string_view name, size_t i) {
  for (const ExecutionContext::Slot& slot : slots) {
    if (slot.name == name) {
      return i < slot.variables.size() ? slot.variables[i] : nullptr;
    }
  }
  return nullptr;
}

size_t SizeIn(const std::vector<ExecutionContext::Slot>& slots, std::string_view name) {
  for (const ExecutionContext::Slot& slot : slots) {
    if (slot.name == name) {
      return slot.variables.size();
    }
  }
  return 0;
}

}  // namespace

OperatorBase::~OperatorBase() = default;
void OperatorBase::Prepare(const BlockDesc&) {}
void OperatorBase::Unbind() {}

void OperatorBase::Run(const Scope& scope, const Place& place) {
  try {  // what else is thrown, by feeders and wait hooks, keeps its type
    RunImpl(scope, place);
  } catch (const Error&) {
    desc_.RethrowWithContext();
  } catch (const std::bad_alloc&) {
    desc_.RethrowWithContext();
  } catch (const std::length_error&) {
    desc_.RethrowWithContext();
  }
}

const std::string& OperatorBase::Input(std::string_view slot) const {
  return OnlyName(desc_, desc_.Input(slot), "input", slot);
}
const std::string& OperatorBase::Output(std::string_view slot) const {
  return OnlyName(desc_, desc_.Output(slot), "output", slot);
}

Variable* ExecutionContext::InputVar(std::string_view slot, size_t i) const { return VariableIn(inputs_, slot, i); }
Variable* ExecutionContext::OutputVar(std::string_view slot, size_t i) const { return VariableIn(outputs_, slot, i); }
bool ExecutionContext::HasInput(std::string_view slot, size_t i) const { return InputVar(slot, i) != nullptr; }
bool ExecutionContext::HasOutput(std::string_view slot, size_t i) const { return OutputVar(slot, i) != nullptr; }
size_t ExecutionContext::InputSize(std::string_view slot) const { return SizeIn(inputs_, slot); }
size_t ExecutionContext::OutputSize(std::string_view slot) const { return SizeIn(outputs_, slot); }

const LoDTensor* ExecutionContext::InputOrNull(std::string_view slot, size_t i) const {
  const Variable* variable = InputVar(slot, i);
  if (variable == nullptr) {
    return nullptr;
  }
  if (!variable->initialized() || (variable->IsType<LoDTensor>() && !variable->Get<LoDTensor>().initialized())) {
    FailedPrecondition error(StrCat("'", variable->name(), "', in input slot '", slot, "' of '", op_.type,
                                    "', has not been written yet; was the startup program run, and is it fed?"));
    error.SetVariable(variable->name());
    throw error;
  }
  return &variable->Get<LoDTensor>();
}

LoDTensor* ExecutionContext::OutputOrNull(std::string_view slot, size_t i) const {
  Variable* variable = OutputVar(slot, i);
  return variable == nullptr ? nullptr : variable->GetMutable<LoDTensor>();
}

bool ExecutionContext::IsSelectedRows(std::string_view slot, size_t i) const {
  const Variable* variable = InputVar(slot, i);
  return variable != nullptr && variable->IsType<SelectedRows>();
}

const SelectedRows& ExecutionContext::InputRows(std::string_view slot, size_t i) const {
  const Variable* variable = InputVar(slot, i);
  HR_ENFORCE(variable != nullptr, NotFound, "input slot '", slot, "' of '", op_.type,
             "' holds no variable at position ", i);
  return variable->Get<SelectedRows>();
}

SelectedRows* ExecutionContext::OutputRows(std::string_view slot, size_t i) const {
  Variable* variable = OutputVar(slot, i);
  HR_ENFORCE(variable != nullptr, NotFound, "output slot '", slot, "' of '", op_.type,
             "' holds no variable at position ", i);
  return variable->GetMutable<SelectedRows>();
}

const LoDTensor& ExecutionContext::Input(std::string_view slot, size_t i) const {
  const LoDTensor* tensor = InputOrNull(slot, i);
  HR_ENFORCE(tensor != nullptr, NotFound, "input slot '", slot, "' of '", op_.type, "' holds no variable at position ",
             i);
  return *tensor;
}

LoDTensor* ExecutionContext::Output(std::string_view slot, size_t i) const {
  LoDTensor* tensor = OutputOrNull(slot, i);
  HR_ENFORCE(tensor != nullptr, NotFound, "output slot '", slot, "' of '", op_.type, "' holds no variable at position ",
             i);
  return tensor;
}

InferShapeContext::~InferShapeContext() = default;

void InferShapeContext::ShareAll(std::string_view input, std::string_view output) {
  SetOutputDim(output, InputDim(input));
  SetOutputType(output, InputType(input));
  ShareLoD(input, output);
}

}  // namespace headrace
