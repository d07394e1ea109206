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
  explicit RuntimeContext(KernelOperator* op) : op_(*op), context_(*op->context_) {}

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
    if (variable != nullptr && variable->IsType<SelectedRows>() && TakesRows(op_.info_.FindOutput(slot))) {
      return;  // the kernel gives them their dims
    }
    LoDTensor* output = context_.OutputOrNull(slot, i);
    if (output == nullptr || output->dims() == dims) {
      return;
    }
    // The kernel would take the new shape for that of its input.
    const auto& in_place = op_.in_place_;
    HR_ENFORCE(
        Product(dims) == output->numel() || std::find(in_place.begin(), in_place.end(), variable) == in_place.end(),
        InvalidArgument, "'", variable->name(), "' of shape ", ToString(output->dims()), " is an input of '", op().type,
        "' and cannot take its result of shape ", ToString(dims), "; give the result a variable of its own");
    output->Resize(dims);
  }
  void SetOutputType(std::string_view, DataType, size_t) override {}
  void ShareLoD(std::string_view input, std::string_view output, size_t i, size_t j) override {
    const Variable* to = context_.OutputVar(output, j);
    for (Output& known : op_.outputs_) {
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
    return context_.IsSelectedRows(slot, i) && TakesRows(op_.info_.FindInput(slot)) ? &context_.InputRows(slot, i)
                                                                                    : nullptr;
  }

  KernelOperator& op_;
  const ExecutionContext& context_;
};

KernelOperator::KernelOperator(OpDesc desc, const OpInfo& info) : OperatorBase(std::move(desc)), info_(info) {}

void KernelOperator::Resolve(const Scope& scope) {
  const uint64_t revision = scope.revision();
  if (scope_ == &scope && scope_revision_ == revision) {
    return;
  }
  scope_ = nullptr;
  kernel_ = nullptr;
  auto inputs = ResolveSlots(scope, desc(), desc().inputs, "input");
  auto outputs = ResolveSlots(scope, desc(), desc().outputs, "output");
  in_place_.clear();
  for (const auto& output : outputs) {
    for (Variable* variable : output.variables) {
      const bool is_input =
          variable != nullptr && std::any_of(inputs.begin(), inputs.end(), [variable](const auto& input) {
            return std::find(input.variables.begin(), input.variables.end(), variable) != input.variables.end();
          });
      if (is_input) {
        in_place_.push_back(variable);
      }
    }
  }
  context_.emplace(desc(), std::move(inputs), std::move(outputs));
  scope_ = &scope;
  scope_revision_ = revision;
}

void KernelOperator::CheckInputs() const {
  for (const auto& [slot, names] : desc().inputs) {
    for (size_t i = 0; i < names.size(); ++i) {
      const Variable* variable = context_->InputVar(slot, i);
      // Variables of other types are the kernel's own concern.
      if (variable != nullptr && (!variable->initialized() || variable->IsType<LoDTensor>())) {
        (void)context_->Input(slot, i);
      } else if (variable != nullptr && variable->IsType<SelectedRows>()) {
        CheckRows(*variable);
      }
    }
  }
}

bool KernelOperator::InputsAreAsBefore() const {
  return std::all_of(inputs_.begin(), inputs_.end(), [](const Input& input) {
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

bool KernelOperator::OutputsAreAsBefore() const {
  return std::all_of(outputs_.begin(), outputs_.end(), [](const Output& output) {
    return output.variable->IsType<LoDTensor>() && output.variable->Get<LoDTensor>().dims() == output.dims;
  });
}

// Gives the outputs their dims and chooses the kernel.
void KernelOperator::Infer() {
  kernel_ = nullptr;
  inputs_.clear();
  outputs_.clear();
  for (const auto& [slot, names] : desc().inputs) {
    for (size_t i = 0; i < names.size(); ++i) {
      const Variable* variable = context_->InputVar(slot, i);
      if (variable != nullptr && variable->IsType<LoDTensor>()) {
        const auto& tensor = variable->Get<LoDTensor>();
        inputs_.push_back({variable, tensor.dims(), tensor.dtype(), tensor.lod_level()});
      } else if (variable != nullptr && variable->IsType<SelectedRows>()) {
        const auto& rows = variable->Get<SelectedRows>();
        inputs_.push_back({variable, rows.complete_dims(), rows.value().dtype(), 0});
      } else if (variable != nullptr) {
        inputs_.push_back({variable, {}, {}, 0});
      }
    }
  }
  context_->ForEachOutput([this](Variable* variable) { outputs_.push_back({variable, {}, nullptr}); });
  if (info_.infer_shape) {
    RuntimeContext shapes(this);
    info_.infer_shape(shapes);
  }
  std::erase_if(outputs_, [](const Output& output) { return !output.variable->IsType<LoDTensor>(); });
  for (Output& output : outputs_) {
    output.dims = output.variable->Get<LoDTensor>().dims();
  }
  kernel_ = &ChooseKernel();
}

// An output that shares no LoD has none: it must not keep that of a former run.
void KernelOperator::PassLoDsOn() const {
  if (!info_.infer_shape) {
    return;
  }
  for (const Output& output : outputs_) {
    auto* to = output.variable->GetMutable<LoDTensor>();
    static const LoD kNone;
    const LoD& lod = output.lod == nullptr ? kNone : output.lod->Get<LoDTensor>().lod();
    if (to->lod() != lod) {
      to->set_lod(lod);
    }
  }
}

const KernelFn& KernelOperator::ChooseKernel() const {
  if (info_.kernels.size() == 1 && info_.inputs.empty() && info_.kernel_type_attr.empty()) {
    return info_.kernels.begin()->second;
  }
  DataType wanted{};
  if (!info_.kernel_type_attr.empty()) {
    wanted = static_cast<DataType>(desc().Attr<int32_t>(info_.kernel_type_attr));
  } else {
    const Tensor* decisive = nullptr;
    const auto tensor_in = [this](const SlotInfo& slot, size_t i) -> const Tensor* {
      return context_->IsSelectedRows(slot.name, i) && slot.selected_rows ? &context_->InputRows(slot.name, i).value()
                                                                          : context_->InputOrNull(slot.name, i);
    };
    if (!info_.kernel_type_slot.empty()) {
      decisive = tensor_in(*info_.FindInput(info_.kernel_type_slot), 0);
    }
    for (auto slot = info_.inputs.begin(); decisive == nullptr && slot != info_.inputs.end(); ++slot) {
      for (size_t i = 0; decisive == nullptr && i < context_->InputSize(slot->name); ++i) {
        decisive = tensor_in(*slot, i);
      }
    }
    HR_ENFORCE(decisive != nullptr, FailedPrecondition, "'", Type(),
               "' has no input whose type could select its kernel");
    wanted = decisive->dtype();
  }
  const auto it = info_.kernels.find(wanted);
  if (it == info_.kernels.end()) {
    std::string available;
    for (const auto& [type, kernel] : info_.kernels) {
      available += (available.empty() ? "" : ", ") + std::string(DataTypeName(type));
    }
    Throw<Unimplemented>("'", Type(), "' has no kernel for ", DataTypeName(wanted), "; it has kernels for ", available);
  }
  return it->second;
}

void KernelOperator::RunImpl(const Scope& scope, const Place&) {
  Resolve(scope);
  const bool warm = kernel_ != nullptr && InputsAreAsBefore();
  if (!warm) {
    CheckInputs();
  }
  for (Variable* variable : in_place_) {
    if (variable->IsType<LoDTensor>()) {
      Unshare(variable->GetMutable<LoDTensor>());
    }
  }
  if (!warm || !OutputsAreAsBefore()) {
    Infer();
  }
  PassLoDsOn();
  (*kernel_)(*context_);
}

}  // namespace headrace
