#include "framework/kernel_operator.h"

#include <algorithm>
#include <string>
#include <utility>

namespace headrace {
namespace {

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

bool TakesRows(const SlotInfo* slot) { return slot != nullptr && slot->selected_rows; }

void CheckRows(const Variable& variable) {
  try {
    variable.Get<SelectedRows>().Check();
  } catch (Error& error) {
    error.SetVariable(variable.name());
    throw;
  }
}

// Gives the tensor memory of its own, with the same contents, unless it has that already.
void Unshare(Tensor* tensor) {
  if (tensor->initialized() && (tensor->allocation().use_count() != 1 || !tensor->allocation()->on_heap())) {
    tensor->CopyFrom(*tensor);
  }
}

}  // namespace

// Shape inference over tensors, just before the kernel runs.
class KernelOperator::RuntimeContext : public InferShapeContext {
 public:
  RuntimeContext(const OpInfo& info, Binding* binding) : info_(info), binding_(*binding), context_(binding->context) {}

  const OpDesc& op() const override { return context_.op(); }
  bool IsRuntime() const override { return true; }
  bool HasInput(std::string_view slot, size_t i) const override { return context_.HasInput(slot, i); }
  bool HasOutput(std::string_view slot, size_t i) const override { return context_.HasOutput(slot, i); }
  DDim InputDim(std::string_view slot, size_t i) const override {
    const SelectedRows* rows = Rows(slot, i);
    return rows == nullptr ? context_.Input(slot, i).dims() : rows->complete_dims();
  }
  DataType InputType(std::string_view slot, size_t i) const override {
    const SelectedRows* rows = Rows(slot, i);
    return rows == nullptr ? context_.Input(slot, i).dtype() : rows->value().dtype();
  }
  int32_t InputLoDLevel(std::string_view slot, size_t i) const override {
    return Rows(slot, i) == nullptr ? static_cast<int32_t>(context_.Input(slot, i).lod_level()) : 0;
  }
  bool InputIsSelectedRows(std::string_view slot, size_t i) const override { return context_.IsSelectedRows(slot, i); }
  void SetOutputSelectedRows(std::string_view, size_t) override {}
  void SetOutputDim(std::string_view slot, const DDim& dims, size_t i) override {
    Variable* variable = context_.OutputVar(slot, i);
    if (variable != nullptr && variable->IsType<SelectedRows>() && TakesRows(info_.FindOutput(slot))) {
      return;  // the kernel gives them their dims
    }
    LoDTensor* output = context_.OutputOrNull(slot, i);
    if (output == nullptr || output->dims() == dims) {
      return;
    }
    // The kernel would take the new shape for that of its input.
    const auto& in_place = binding_.in_place;
    HR_ENFORCE(
        Product(dims) == output->numel() || std::find(in_place.begin(), in_place.end(), variable) == in_place.end(),
        InvalidArgument, "'", variable->name(), "' of shape ", ToString(output->dims()), " is an input of '", op().type,
        "' and cannot take its result of shape ", ToString(dims), "; give the result a variable of its own");
    output->Resize(dims);
  }
  void SetOutputType(std::string_view, DataType, size_t) override {}
  void ShareLoD(std::string_view input, std::string_view output, size_t i, size_t j) override {
    const Variable* to = context_.OutputVar(output, j);
    for (Output& known : binding_.outputs) {
      if (known.variable == to) {
        if (Rows(input, i) == nullptr) {
          (void)context_.Input(input, i);  // throws if there is none
          known.lod = context_.InputVar(input, i);
        }
      }
    }
  }
  void SetOutputLoDLevel(std::string_view, int32_t, size_t) override {}
  const VarDesc* InputDesc(std::string_view, size_t) const override { return nullptr; }
  VarDesc* OutputDesc(std::string_view, size_t) override { return nullptr; }

 private:
  // What the input holds if it is SelectedRows and may be.
  const SelectedRows* Rows(std::string_view slot, size_t i) const {
    return context_.IsSelectedRows(slot, i) && TakesRows(info_.FindInput(slot)) ? &context_.InputRows(slot, i)
                                                                                : nullptr;
  }

  const OpInfo& info_;
  Binding& binding_;
  const ExecutionContext& context_;
};

KernelOperator::KernelOperator(OpDesc desc, const OpInfo& info) : OperatorBase(std::move(desc)), info_(info) {}

KernelOperator::Binding::Binding(const OpDesc& op, const Scope& scope)
    : scope_id(scope.id()),
      scope_revision(scope.revision()),
      context(op, ResolveSlots(scope, op, op.inputs, "input"), ResolveSlots(scope, op, op.outputs, "output")) {
  context.ForEachOutput([this](Variable* output) {
    bool is_input = false;
    context.ForEachInput([&is_input, output](const Variable* input) { is_input = is_input || input == output; });
    if (is_input) {
      in_place.push_back(output);
    }
  });
}

KernelOperator::Binding& KernelOperator::Bind(const Scope& scope) {
  constexpr size_t kMaxBindings = 2048;  // so that those of scopes which are gone do not add up
  const auto is_of_scope = [&scope](const auto& binding) { return binding->scope_id == scope.id(); };
  auto found = bindings_.begin() + static_cast<std::ptrdiff_t>(expected_);
  if (found == bindings_.end() || !is_of_scope(*found)) {
    found = std::find_if(bindings_.begin(), bindings_.end(), is_of_scope);
  }
  if (found == bindings_.end()) {
    if (bindings_.size() == kMaxBindings) {
      bindings_.clear();
    }
    found = bindings_.insert(bindings_.end(), std::make_unique<Binding>(desc(), scope));
  } else if ((*found)->scope_revision != scope.revision()) {
    *found = std::make_unique<Binding>(desc(), scope);
  }
  expected_ = static_cast<size_t>(found - bindings_.begin() + 1) % bindings_.size();
  return **found;
}

void KernelOperator::CheckInputs(const Binding& binding) const {
  for (const auto& [slot, names] : desc().inputs) {
    for (size_t i = 0; i < names.size(); ++i) {
      const Variable* variable = binding.context.InputVar(slot, i);
      // Variables of other types are the kernel's own concern.
      if (variable != nullptr && (!variable->initialized() || variable->IsType<LoDTensor>())) {
        (void)binding.context.Input(slot, i);
      } else if (variable != nullptr && variable->IsType<SelectedRows>()) {
        CheckRows(*variable);
      }
    }
  }
}

bool KernelOperator::InputsAreAsBefore(const Binding& binding) {
  return std::all_of(binding.inputs.begin(), binding.inputs.end(), [](const Input& input) {
    if (input.variable->IsType<SelectedRows>()) {
      CheckRows(*input.variable);
      const auto& rows = input.variable->Get<SelectedRows>();
      return rows.value().dtype() == input.dtype && rows.complete_dims() == input.dims;
    }
    if (!input.variable->IsType<LoDTensor>()) {
      return false;
    }
    const auto& tensor = input.variable->Get<LoDTensor>();
    return tensor.initialized() && tensor.dtype() == input.dtype && tensor.dims() == input.dims &&
           tensor.lod_level() == input.lod_level;
  });
}

bool KernelOperator::OutputsAreAsBefore(const Binding& binding) {
  return std::all_of(binding.outputs.begin(), binding.outputs.end(), [](const Output& output) {
    return output.variable->IsType<LoDTensor>() && output.variable->Get<LoDTensor>().dims() == output.dims;
  });
}

// Gives the outputs their dims and chooses the kernel.
void KernelOperator::Infer(Binding* binding) const {
  const ExecutionContext& context = binding->context;
  std::vector<Input>& inputs = binding->inputs;
  std::vector<Output>& outputs = binding->outputs;
  binding->kernel = nullptr;
  inputs.clear();
  outputs.clear();
  for (const auto& [slot, names] : desc().inputs) {
    for (size_t i = 0; i < names.size(); ++i) {
      const Variable* variable = context.InputVar(slot, i);
      if (variable != nullptr && variable->IsType<LoDTensor>()) {
        const auto& tensor = variable->Get<LoDTensor>();
        inputs.push_back({variable, tensor.dims(), tensor.dtype(), tensor.lod_level()});
      } else if (variable != nullptr && variable->IsType<SelectedRows>()) {
        const auto& rows = variable->Get<SelectedRows>();
        inputs.push_back({variable, rows.complete_dims(), rows.value().dtype(), 0});
      } else if (variable != nullptr) {
        inputs.push_back({variable, {}, {}, 0});
      }
    }
  }
  context.ForEachOutput([&outputs](Variable* variable) { outputs.push_back({variable, {}, nullptr}); });
  if (info_.infer_shape) {
    RuntimeContext shapes(info_, binding);
    info_.infer_shape(shapes);
  }
  std::erase_if(outputs, [](const Output& output) { return !output.variable->IsType<LoDTensor>(); });
  for (Output& output : outputs) {
    output.dims = output.variable->Get<LoDTensor>().dims();
  }
  binding->kernel = &ChooseKernel(context);
}

// An output that shares no LoD has none: it must not keep that of a former run.
void KernelOperator::PassLoDsOn(const Binding& binding) const {
  if (!info_.infer_shape) {
    return;
  }
  for (const Output& output : binding.outputs) {
    auto* to = output.variable->GetMutable<LoDTensor>();
    static const LoD kNone;
    const LoD& lod = output.lod == nullptr ? kNone : output.lod->Get<LoDTensor>().lod();
    if (to->lod() != lod) {
      to->set_lod(lod);
    }
  }
}

const KernelFn& KernelOperator::ChooseKernel(const ExecutionContext& context) const {
  if (info_.kernels.size() == 1 && info_.inputs.empty() && info_.kernel_type_attr.empty()) {
    return info_.kernels.begin()->second;
  }
  DataType wanted{};
  if (!info_.kernel_type_attr.empty()) {
    wanted = static_cast<DataType>(desc().Attr<int32_t>(info_.kernel_type_attr));
  } else {
    const Tensor* decisive = nullptr;
    const auto tensor_in = [&context](const SlotInfo& slot, size_t i) -> const Tensor* {
      return context.IsSelectedRows(slot.name, i) && slot.selected_rows ? &context.InputRows(slot.name, i).value()
                                                                        : context.InputOrNull(slot.name, i);
    };
    if (!info_.kernel_type_slot.empty()) {
      decisive = tensor_in(*info_.FindInput(info_.kernel_type_slot), 0);
    }
    for (auto slot = info_.inputs.begin(); decisive == nullptr && slot != info_.inputs.end(); ++slot) {
      for (size_t i = 0; decisive == nullptr && i < context.InputSize(slot->name); ++i) {
        decisive = tensor_in(*slot, i);
      }
    }
    HR_ENFORCE(decisive != nullptr, FailedPrecondition, "'", Type(),
               "' has no input whose type could select its kernel");
    wanted = decisive->dtype();
  }
  return OpRegistry::GetKernel(info_, wanted);
}

void KernelOperator::RunImpl(const Scope& scope, const Place&) {
  try {
    RunKernel(scope);
  } catch (...) {
    desc().RethrowWithContext();
  }
}

void KernelOperator::RunKernel(const Scope& scope) {
  Binding& binding = Bind(scope);
  const bool warm = binding.kernel != nullptr && InputsAreAsBefore(binding);
  if (!warm) {
    CheckInputs(binding);
  }
  for (Variable* variable : binding.in_place) {
    if (variable->IsType<LoDTensor>()) {
      Unshare(variable->GetMutable<LoDTensor>());
    }
  }
  if (!warm || !OutputsAreAsBefore(binding)) {
    Infer(&binding);
  }
  PassLoDsOn(binding);
  (*binding.kernel)(binding.context);
}

}  // namespace headrace
