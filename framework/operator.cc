#include "framework/operator.h"

#include <algorithm>
#include <new>
#include <stdexcept>

#include "framework/profiler.h"

namespace headrace {
namespace {

const std::string& OnlyName(const OpDesc& op, const std::vector<std::string>& names, std::string_view direction,
                            std::string_view slot) {
  HR_ENFORCE(names.size() == 1, InvalidArgument, direction, " slot '", slot, "' of '", op.type,
             "' must hold one variable, holds ", names.size());
  return names.front();
}

const ExecutionContext::Slot* FindSlot(const std::vector<ExecutionContext::Slot>& slots, HashedName name) {
  const auto it = std::find_if(slots.begin(), slots.end(), [name](const auto& slot) { return slot.name == name; });
  return it == slots.end() ? nullptr : &*it;
}

Variable* VariableIn(const std::vector<ExecutionContext::Slot>& slots, HashedName name, size_t i) {
  const ExecutionContext::Slot* slot = FindSlot(slots, name);
  return slot != nullptr && i < slot->variables.size() ? slot->variables[i] : nullptr;
}

size_t SizeIn(const std::vector<ExecutionContext::Slot>& slots, HashedName name) {
  const ExecutionContext::Slot* slot = FindSlot(slots, name);
  return slot == nullptr ? 0 : slot->variables.size();
}

std::vector<ExecutionContext::Slot> ResolveSlots(const Scope& scope, const OpDesc& op, const VarNameMap& slots,
                                                 std::string_view direction) {
  std::vector<ExecutionContext::Slot> resolved;
  for (const auto& [slot, names] : slots) {
    auto& variables = resolved.emplace_back(ExecutionContext::Slot{slot, {}}).variables;
    for (const std::string& name : names) {
      Variable* variable = name == kEmptyVarName ? nullptr : scope.FindVar(name);
      if (variable == nullptr && name != kEmptyVarName) {
        NotFound error(StrCat("the scope has no variable '", name, "', which is in ", direction, " slot '", slot,
                              "' of '", op.type, "'"));
        error.SetVariable(name);
        throw error;
      }
      variables.push_back(variable);
    }
  }
  return resolved;
}

size_t BytesOf(const Tensor& tensor) { return tensor.initialized() ? tensor.nbytes() : 0; }

size_t BytesOf(const Variable& variable) {
  if (!variable.initialized()) {
    return 0;
  }
  if (variable.IsType<LoDTensor>()) {
    return BytesOf(variable.Get<LoDTensor>());
  }
  if (variable.IsType<SelectedRows>()) {
    return BytesOf(variable.Get<SelectedRows>().value());
  }
  size_t bytes = 0;
  if (variable.IsType<LoDTensorArray>()) {
    for (const LoDTensor& tensor : variable.Get<LoDTensorArray>()) {
      bytes += BytesOf(tensor);
    }
  }
  return bytes;
}

// Tells the profiler of a run, if that was on when the run began.
class RunSpan {
 public:
  RunSpan(const OpDesc& op, const Scope& scope)
      : op_(op), scope_(scope), begin_ns_(Profiler::is_on() ? Profiler::Now() : 0) {}
  RunSpan(const RunSpan&) = delete;
  RunSpan& operator=(const RunSpan&) = delete;
  ~RunSpan() {
    if (begin_ns_ != 0) {
      Profiler::Record(ProfiledSpan::Kind::kOperator, op_.type, begin_ns_, done_ ? OutputBytes() : 0);
    }
  }

  void Done() { done_ = true; }

 private:
  size_t OutputBytes() const {
    size_t bytes = 0;
    for (const auto& [slot, names] : op_.outputs) {
      for (const std::string& name : names) {
        const Variable* variable = scope_.FindVar(name);
        bytes += variable == nullptr ? 0 : BytesOf(*variable);
      }
    }
    return bytes;
  }

  const OpDesc& op_;
  const Scope& scope_;
  const uint64_t begin_ns_;
  bool done_ = false;
};

}  // namespace

OperatorBase::~OperatorBase() = default;
void OperatorBase::Prepare(const BlockDesc&) {}
void OperatorBase::Unbind() { bindings_.Clear(); }

void OperatorBase::Run(const Scope& scope, const Place& place) {
  RunSpan span(desc_, scope);
  try {  // what else is thrown, by feeders and wait hooks, keeps its type
    RunImpl(scope, place);
    span.Done();
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

const ExecutionContext& OperatorBase::Bind(const Scope& scope) {
  return bindings_.At(scope, [&] { return LookUp(scope); });
}
ExecutionContext OperatorBase::LookUp(const Scope& scope) const {
  return {desc_, attrs_, ResolveSlots(scope, desc_, desc_.inputs, "input"),
          ResolveSlots(scope, desc_, desc_.outputs, "output")};
}

AttributeIndex::AttributeIndex(const OpDesc& op) : op_(op) {
  entries_.reserve(op.attrs.size());
  for (const auto& [name, attr] : op.attrs) {
    const auto* text = std::get_if<std::string>(&attr);
    entries_.push_back({name, &attr, text == nullptr ? HashedName("") : HashedName(*text)});
  }
}

const AttributeIndex::Entry* AttributeIndex::FindEntry(HashedName name) const {
  const auto it = std::find_if(entries_.begin(), entries_.end(), [name](const Entry& e) { return e.name == name; });
  return it == entries_.end() ? nullptr : &*it;
}

const Attribute* AttributeIndex::Find(HashedName name) const {
  const Entry* entry = FindEntry(name);
  return entry == nullptr ? nullptr : entry->attr;
}

HashedName AttributeIndex::Text(HashedName name) const {
  const Entry* entry = FindEntry(name);
  return entry != nullptr && std::holds_alternative<std::string>(*entry->attr)
             ? entry->text
             : HashedName(op_.Attr<std::string>(name.ToString()));
}

Variable* ExecutionContext::InputVar(HashedName slot, size_t i) const { return VariableIn(inputs_, slot, i); }
Variable* ExecutionContext::OutputVar(HashedName slot, size_t i) const { return VariableIn(outputs_, slot, i); }
bool ExecutionContext::HasInput(HashedName slot, size_t i) const { return InputVar(slot, i) != nullptr; }
bool ExecutionContext::HasOutput(HashedName slot, size_t i) const { return OutputVar(slot, i) != nullptr; }
size_t ExecutionContext::InputSize(HashedName slot) const { return SizeIn(inputs_, slot); }
size_t ExecutionContext::OutputSize(HashedName slot) const { return SizeIn(outputs_, slot); }

const LoDTensor* ExecutionContext::InputOrNull(HashedName slot, size_t i) const {
  const Variable* variable = InputVar(slot, i);
  if (variable == nullptr) {
    return nullptr;
  }
  if (!variable->initialized() || (variable->IsType<LoDTensor>() && !variable->Get<LoDTensor>().initialized())) {
    FailedPrecondition error(
        StrCat("'", variable->name(), "', in input slot '", slot, "' of '", op_.type,
               "', has no value: it is not fed, and neither an operator before this one nor a startup program has "
               "written it"));
    error.SetVariable(variable->name());
    throw error;
  }
  return &variable->Get<LoDTensor>();
}

LoDTensor* ExecutionContext::OutputOrNull(HashedName slot, size_t i) const {
  Variable* variable = OutputVar(slot, i);
  return variable == nullptr ? nullptr : variable->GetMutable<LoDTensor>();
}

bool ExecutionContext::IsSelectedRows(HashedName slot, size_t i) const {
  const Variable* variable = InputVar(slot, i);
  return variable != nullptr && variable->IsType<SelectedRows>();
}

Variable& ExecutionContext::PresentVar(const std::vector<Slot>& slots, std::string_view direction, HashedName slot,
                                       size_t i) const {
  Variable* variable = VariableIn(slots, slot, i);
  HR_ENFORCE(variable != nullptr, NotFound, direction, " slot '", slot, "' of '", op_.type,
             "' holds no variable at position ", i);
  return *variable;
}

const SelectedRows& ExecutionContext::InputRows(HashedName slot, size_t i) const {
  return InputAs<SelectedRows>(slot, i);
}

SelectedRows* ExecutionContext::OutputRows(HashedName slot, size_t i) const { return OutputAs<SelectedRows>(slot, i); }

const LoDTensor& ExecutionContext::Input(HashedName slot, size_t i) const {
  const LoDTensor* tensor = InputOrNull(slot, i);
  HR_ENFORCE(tensor != nullptr, NotFound, "input slot '", slot, "' of '", op_.type, "' holds no variable at position ",
             i);
  return *tensor;
}

LoDTensor* ExecutionContext::Output(HashedName slot, size_t i) const {
  LoDTensor* tensor = OutputOrNull(slot, i);
  HR_ENFORCE(tensor != nullptr, NotFound, "output slot '", slot, "' of '", op_.type, "' holds no variable at position ",
             i);
  return tensor;
}

InferShapeContext::~InferShapeContext() = default;

void InferShapeContext::ShareAll(HashedName input, HashedName output) {
  SetOutputDim(output, InputDim(input));
  SetOutputType(output, InputType(input));
  ShareLoD(input, output);
}

}  // namespace headrace
