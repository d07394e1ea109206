#include "framework/kernel_operator.h"

#include <algorithm>
#include <string>
#include <utility>

namespace headrace {
namespace {

void CheckRows(const Variable& variable) {
  try {
    variable.Get<SelectedRows>().Check();
  } catch (Error& error) {
    error.SetVariable(variable.name());
    throw;
  }
}

}  // namespace

// Shape inference over tensors, just before the kernel runs.
class KernelOperator::RuntimeContext : public InferShapeContext {
 public:
  RuntimeContext(const KernelOperator& kernel_op, Binding* binding)
      : kernel_op_(kernel_op), binding_(*binding), context_(binding->context) {}

  const OpDesc& op() const override { return context_.op(); }
  const AttributeIndex& attrs() const override { return context_.attrs(); }
  bool IsRuntime() const override { return true; }
  bool HasInput(HashedName slot, size_t i) const override { return context_.HasInput(slot, i); }
  bool HasOutput(HashedName slot, size_t i) const override { return context_.HasOutput(slot, i); }
  size_t InputSize(HashedName slot) const override { return context_.InputSize(slot); }
  size_t OutputSize(HashedName slot) const override { return context_.OutputSize(slot); }
  DDim InputDim(HashedName slot, size_t i) const override {
    const SelectedRows* rows = Rows(slot, i);
    return rows == nullptr ? context_.Input(slot, i).dims() : rows->complete_dims();
  }
  DataType InputType(HashedName slot, size_t i) const override {
    const SelectedRows* rows = Rows(slot, i);
    return rows == nullptr ? context_.Input(slot, i).dtype() : rows->value().dtype();
  }
  int32_t InputLoDLevel(HashedName slot, size_t i) const override {
    return Rows(slot, i) == nullptr ? static_cast<int32_t>(context_.Input(slot, i).lod_level()) : 0;
  }
  bool InputIsSelectedRows(HashedName slot, size_t i) const override { return context_.IsSelectedRows(slot, i); }
  bool OutputIsSelectedRows(HashedName slot, size_t i) const override {
    const Variable* variable = context_.OutputVar(slot, i);
    return variable != nullptr && variable->IsType<SelectedRows>();
  }
  void SetOutputSelectedRows(HashedName, size_t) override {}
  void SetOutputDim(HashedName slot, const DDim& dims, size_t i) override {
    Variable* variable = context_.OutputVar(slot, i);
    if (variable != nullptr && variable->IsType<SelectedRows>() && TakesRows(kernel_op_.outputs_, slot)) {
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
  void SetOutputType(HashedName, DataType, size_t) override {}
  void ShareLoD(HashedName input, HashedName output, size_t i, size_t j) override {
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
  void SetOutputLoDLevel(HashedName, int32_t, size_t) override {}
  const VarDesc* InputDesc(HashedName, size_t) const override { return nullptr; }
  VarDesc* OutputDesc(HashedName, size_t) override { return nullptr; }

 private:
  // What the input holds if it is SelectedRows and may be.
  const SelectedRows* Rows(HashedName slot, size_t i) const {
    return context_.IsSelectedRows(slot, i) && TakesRows(kernel_op_.inputs_, slot) ? &context_.InputRows(slot, i)
                                                                                   : nullptr;
  }

  const KernelOperator& kernel_op_;
  Binding& binding_;
  const ExecutionContext& context_;
};

KernelOperator::KernelOperator(OpDesc desc, const OpInfo& info)
    : OperatorBase(std::move(desc)),
      info_(info),
      inputs_(Declared(info.inputs)),
      outputs_(Declared(info.outputs)),
      type_slot_(info.kernel_type_slot),
      type_attr_(info.kernel_type_attr) {}

std::vector<KernelOperator::DeclaredSlot> KernelOperator::Declared(const std::vector<SlotInfo>& slots) {
  std::vector<DeclaredSlot> declared;
  declared.reserve(slots.size());
  for (const SlotInfo& slot : slots) {
    declared.push_back({slot.name, slot.selected_rows});
  }
  return declared;
}

bool KernelOperator::TakesRows(const std::vector<DeclaredSlot>& slots, HashedName name) {
  return std::any_of(slots.begin(), slots.end(),
                     [name](const DeclaredSlot& slot) { return slot.selected_rows && slot.name == name; });
}

KernelOperator::Binding::Binding(ExecutionContext variables) : context(std::move(variables)) {
  context.ForEachOutput([this](Variable* output) {
    bool is_input = false;
    context.ForEachInput([&is_input, output](const Variable* input) { is_input = is_input || input == output; });
    if (is_input) {
      in_place.push_back(output);
    }
  });
}

void KernelOperator::CheckInputs(const Binding& binding) const {
  for (const ExecutionContext::Slot& slot : binding.context.inputs()) {
    for (size_t i = 0; i < slot.variables.size(); ++i) {
      const Variable* variable = slot.variables[i];
      // Variables of other types are the kernel's own concern.
      if (variable != nullptr && (!variable->initialized() || variable->IsType<LoDTensor>())) {
        (void)binding.context.Input(slot.name, i);
      } else if (variable != nullptr && variable->IsType<SelectedRows>()) {
        CheckRows(*variable);
      }
    }
  }
}

bool KernelOperator::InputsAreAsBefore(const Binding& binding) {
  return std::all_of(binding.inputs.begin(), binding.inputs.end(), [](const Input& input) {
    if (input.variable->IsType<LoDTensor>()) {
      const auto& tensor = input.variable->Get<LoDTensor>();
      return tensor.initialized() && tensor.dtype() == input.dtype && tensor.dims() == input.dims &&
             tensor.lod_level() == input.lod_level;
    }
    if (!input.variable->IsType<SelectedRows>()) {
      return false;
    }
    CheckRows(*input.variable);
    const auto& rows = input.variable->Get<SelectedRows>();
    return rows.value().dtype() == input.dtype && rows.complete_dims() == input.dims;
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
  context.ForEachInput([&inputs](const Variable* variable) {
    if (variable->IsType<LoDTensor>()) {
      const auto& tensor = variable->Get<LoDTensor>();
      inputs.push_back({variable, tensor.dims(), tensor.dtype(), tensor.lod_level()});
    } else if (variable->IsType<SelectedRows>()) {
      const auto& rows = variable->Get<SelectedRows>();
      inputs.push_back({variable, rows.complete_dims(), rows.value().dtype(), 0});
    } else {
      inputs.push_back({variable, {}, {}, 0});
    }
  });
  context.ForEachOutput([&outputs](Variable* variable) { outputs.push_back({variable, {}, nullptr}); });
  if (info_.infer_shape) {
    RuntimeContext shapes(*this, binding);
    info_.infer_shape(shapes);
  }
  std::erase_if(outputs, [](const Output& output) { return !output.variable->IsType<LoDTensor>(); });
  for (Output& output : outputs) {
    output.dims = output.variable->Get<LoDTensor>().dims();
  }
  binding->kernel = &ChooseKernel(binding);
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

DataType KernelOperator::KernelType(const ExecutionContext& context) const {
  if (!type_attr_.empty()) {
    return static_cast<DataType>(Attr<int32_t>(type_attr_));
  }
  const Tensor* decisive = nullptr;
  const auto look_at = [&](const DeclaredSlot& slot, size_t i) {
    decisive = slot.selected_rows && context.IsSelectedRows(slot.name, i) ? &context.InputRows(slot.name, i).value()
                                                                          : context.InputOrNull(slot.name, i);
  };
  if (!type_slot_.empty()) {
    look_at({type_slot_, TakesRows(inputs_, type_slot_)}, 0);
  }
  for (auto slot = inputs_.begin(); decisive == nullptr && slot != inputs_.end(); ++slot) {
    for (size_t i = 0; decisive == nullptr && i < context.InputSize(slot->name); ++i) {
      look_at(*slot, i);
    }
  }
  HR_ENFORCE(decisive != nullptr, FailedPrecondition, "'", Type(), "' has no input whose type could select its kernel");
  return decisive->dtype();
}

const KernelFn& KernelOperator::ChooseKernel(Binding* binding) const {
  if (info_.kernels.size() == 1 && info_.inputs.empty() && type_attr_.empty()) {
    return info_.kernels.begin()->second;
  }
  const DataType type = KernelType(binding->context);
  if (binding->last_kernel == nullptr || binding->last_type != type) {
    binding->last_kernel = &OpRegistry::GetKernel(info_, type);
    binding->last_type = type;
  }
  return *binding->last_kernel;
}

void KernelOperator::RunImpl(const Scope& scope, const Place&) {
  try {
    RunKernel(scope);
  } catch (...) {
    desc().RethrowWithContext();
  }
}

void KernelOperator::RunKernel(const Scope& scope) {
  Binding& binding = bindings_.At(scope, [&] { return Binding(LookUp(scope)); });
  const bool warm = binding.kernel != nullptr && InputsAreAsBefore(binding);
  if (!warm) {
    CheckInputs(binding);
  }
  for (Variable* variable : binding.in_place) {
    if (variable->IsType<LoDTensor>()) {
      variable->GetMutable<LoDTensor>()->Unshare();
    }
  }
  if (!warm || !OutputsAreAsBefore(binding)) {
    Infer(&binding);
  }
  PassLoDsOn(binding);
  (*binding.kernel)(binding.context);
}

}  // namespace headrace
