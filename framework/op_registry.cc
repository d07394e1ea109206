#include "framework/op_registry.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "framework/kernel_operator.h"
#include "framework/op_check.h"
#include "framework/op_registration_log.h"
#include "framework/spelling.h"
#include "framework/thread_annotations.h"

namespace headrace {

template <uint64_t layout, uint64_t standard_library>
void OpLibraryAbi() {}
template HEADRACE_API void OpLibraryAbi<kOpLibraryLayout, kStandardLibrary>();

namespace {

struct Registry {
  Mutex mutex;
  // Entries are never removed or changed.
  std::map<std::string, std::unique_ptr<const OpInfo>, std::less<>> infos HR_GUARDED_BY(mutex);
  // Of these operators, what was added to the kernels that they declare.
  std::map<std::pair<std::string, DataType>, KernelFn> kernels HR_GUARDED_BY(mutex);
};

// Never destroyed: operators may be looked up while the process ends.
Registry& GlobalRegistry() {
  static auto* registry = new Registry;
  return *registry;
}

thread_local OpRegistrationLog* current_log = nullptr;

template <typename Infos>
auto FindByName(const Infos& infos, std::string_view name) {
  const auto it = std::find_if(infos.begin(), infos.end(), [name](const auto& info) { return info.name == name; });
  return it == infos.end() ? nullptr : &*it;
}

template <typename Infos>
void CheckNames(const OpInfo& op, const Infos& infos, std::string_view what) {
  std::set<uint32_t> seen;
  for (const auto& info : infos) {
    HR_ENFORCE(!info.name.empty() && seen.insert(HashedName(info.name).hash()).second, InvalidArgument, "operator '",
               op.type, "' declares ", what, " '", info.name, "' twice, without a name, or with the hash of another");
  }
}

void CheckInfo(const OpInfo& info) {
  HR_ENFORCE(!info.type.empty(), InvalidArgument, "an operator needs a type");
  HR_ENFORCE(info.version >= 0, InvalidArgument, "operator '", info.type, "' has version ", info.version,
             ", expected 0 or more");
  HR_ENFORCE(info.version == 0 || info.upgrade, InvalidArgument, "operator '", info.type, "' has version ",
             info.version, ", but nothing that upgrades those of older programs");
  CheckNames(info, info.inputs, "input");
  CheckNames(info, info.outputs, "output");
  CheckNames(info, info.attrs, "attribute");
  for (const InPlacePair& pair : info.in_place) {
    HR_ENFORCE(info.FindOutput(pair.output) != nullptr && info.FindInput(pair.input) != nullptr, InvalidArgument,
               "operator '", info.type, "' writes output '", pair.output, "' in place of input '", pair.input,
               "', but does not declare both");
  }
  HR_ENFORCE(!info.kernels.empty() || info.factory, InvalidArgument, "operator '", info.type,
             "' must have kernels or a class");
  for (const auto& [dtype, kernel] : info.kernels) {
    HR_ENFORCE(kernel != nullptr, InvalidArgument, "operator '", info.type, "' has an empty kernel for ",
               DataTypeName(dtype), ", or several");
  }
  HR_ENFORCE(info.kernel_type_slot.empty() || info.FindInput(info.kernel_type_slot) != nullptr, InvalidArgument,
             "operator '", info.type, "' chooses its kernel by input '", info.kernel_type_slot,
             "', which it does not declare");
  if (!info.kernel_type_attr.empty()) {
    const AttrInfo* attr = info.FindAttr(info.kernel_type_attr);
    HR_ENFORCE(attr != nullptr && std::holds_alternative<int32_t>(attr->like), InvalidArgument, "operator '", info.type,
               "' chooses its kernel by attribute '", info.kernel_type_attr,
               "', which is not an int32 that it declares");
  }
  if (info.block_gradient.has_value()) {
    const auto& [reads, writes, scopes, runs_at_most_once] = *info.block_gradient;
    HR_ENFORCE(info.gradient == nullptr && info.FindInput(reads) != nullptr && info.FindOutput(writes) != nullptr &&
                   info.FindOutput(scopes) != nullptr && info.FindAttr("sub_block") != nullptr,
               InvalidArgument, "operator '", info.type, "' is differentiated by its block, but lacks attribute ",
               "'sub_block' or one of the slots '", reads, "', '", writes, "' and '", scopes, "'");
  }
  HR_ENFORCE(!info.steps_gradient || (info.gradient == nullptr && !info.block_gradient.has_value() &&
                                      info.FindAttr("sub_block") != nullptr),
             InvalidArgument, "operator '", info.type, "' is differentiated by its steps, but has another gradient as ",
             "well, or no attribute 'sub_block'");
  HR_ENFORCE(info.kernels.size() <= 1 || !info.inputs.empty() || !info.kernel_type_attr.empty(), InvalidArgument,
             "operator '", info.type, "' has several kernels, but neither inputs nor an attribute to choose by");
}

// `info` is nullptr if there is no such operator.
void CheckKernel(const Registry& registry, const OpInfo* info, const std::string& type, DataType dtype,
                 const KernelFn& kernel) HR_REQUIRES(registry.mutex) {
  HR_ENFORCE(info != nullptr, NotFound, "there is no operator '", type, "' to add a kernel for ", DataTypeName(dtype),
             " to");
  HR_ENFORCE(!info->kernels.empty() && kernel != nullptr, InvalidArgument, "operator '", type,
             "' cannot take a kernel for ", DataTypeName(dtype),
             kernel == nullptr ? ": it is empty" : ": it is not made of kernels");
  HR_ENFORCE(!info->kernels.contains(dtype) && !registry.kernels.contains({type, dtype}), AlreadyExists, "operator '",
             type, "' has a kernel for ", DataTypeName(dtype), " already");
}

// What to say of an operator that does not exist: what to do without it, or which names are close to its own.
std::string AdviceFor(std::string_view type) {
  constexpr std::string_view kOfManyMachines[] = {"checkpoint_notify",
                                                  "distributed_lookup_table",
                                                  "extract_rows",
                                                  "fake_init",
                                                  "fetch_barrier",
                                                  "get_places",
                                                  "listen_and_serv",
                                                  "lookup_sparse_table",
                                                  "parallel_do",
                                                  "prefetch",
                                                  "recv",
                                                  "send",
                                                  "send_barrier",
                                                  "split_byref",
                                                  "split_selected_rows"};
  if (std::find(std::begin(kOfManyMachines), std::end(kOfManyMachines), type) != std::end(kOfManyMachines)) {
    return "; Fluid puts it into programs for several machines or devices: run the program that they were made from";
  }
  return DidYouMean(type, OpRegistry::Types());
}

}  // namespace

const SlotInfo* OpInfo::FindInput(std::string_view slot) const { return FindByName(inputs, slot); }
const SlotInfo* OpInfo::FindOutput(std::string_view slot) const { return FindByName(outputs, slot); }
const AttrInfo* OpInfo::FindAttr(std::string_view name) const { return FindByName(attrs, name); }
bool OpInfo::MayBeInPlace(std::string_view output, std::string_view input) const {
  return std::any_of(in_place.begin(), in_place.end(),
                     [&](const InPlacePair& pair) { return pair.output == output && pair.input == input; });
}

GradientMaker DefaultGradient(GradientUses uses) {
  return [uses = std::move(uses)](const OpDesc& op) {
    OpDesc grad;
    grad.type = op.type + "_grad";
    grad.attrs = op.attrs;
    const auto grad_names = [](const std::vector<std::string>& names) {
      std::vector<std::string> grads;
      grads.reserve(names.size());
      for (const std::string& name : names) {
        grads.push_back(name == kEmptyVarName ? name : GradVarName(name));
      }
      return grads;
    };
    for (const std::string& slot : uses.inputs) {
      grad.inputs[slot] = op.Input(slot);
    }
    for (const std::string& slot : uses.outputs) {
      grad.inputs[slot] = op.Output(slot);
    }
    for (const auto& [slot, names] : op.outputs) {
      grad.inputs[GradVarName(slot)] = grad_names(names);
    }
    for (const auto& [slot, names] : op.inputs) {
      if (std::find(uses.no_gradient.begin(), uses.no_gradient.end(), slot) == uses.no_gradient.end()) {
        grad.outputs[GradVarName(slot)] = grad_names(names);
      }
    }
    return std::vector<OpDesc>{std::move(grad)};
  };
}

OpRegistrationLog::OpRegistrationLog() : previous_(current_log) { current_log = this; }

OpRegistrationLog::~OpRegistrationLog() { Detach(); }

void OpRegistrationLog::Detach() {
  if (current_log == this) {
    current_log = previous_;
  }
}

std::vector<std::string> OpRegistrationLog::Commit() {
  Detach();
  std::set<std::string> types;
  for (const OpInfo& info : infos_) {
    CheckInfo(info);
    HR_ENFORCE(types.insert(info.type).second, AlreadyExists, "the library registers operator '", info.type, "' twice");
  }
  Registry& registry = GlobalRegistry();
  const MutexLock lock(registry.mutex);
  for (const std::string& type : types) {
    HR_ENFORCE(!registry.infos.contains(type), AlreadyExists, "operator '", type, "' is registered already");
  }
  std::set<std::pair<std::string_view, DataType>> added;
  for (const Kernel& kernel : kernels_) {
    const auto known = registry.infos.find(kernel.type);
    const auto own = std::find_if(infos_.begin(), infos_.end(), [&](const auto& op) { return op.type == kernel.type; });
    const OpInfo* info = known != registry.infos.end() ? known->second.get() : own != infos_.end() ? &*own : nullptr;
    CheckKernel(registry, info, kernel.type, kernel.dtype, kernel.kernel);
    HR_ENFORCE(added.emplace(kernel.type, kernel.dtype).second, AlreadyExists, "the library registers a kernel of '",
               kernel.type, "' for ", DataTypeName(kernel.dtype), " twice");
  }
  for (OpInfo& info : infos_) {
    std::string type = info.type;
    registry.infos.emplace(std::move(type), std::make_unique<const OpInfo>(std::move(info)));
  }
  for (Kernel& kernel : kernels_) {
    registry.kernels.emplace(std::pair(std::move(kernel.type), kernel.dtype), std::move(kernel.kernel));
  }
  infos_.clear();
  kernels_.clear();
  return {types.begin(), types.end()};
}

void OpRegistry::Register(OpInfo info) {
  if (current_log != nullptr) {
    current_log->infos_.push_back(std::move(info));
    return;
  }
  CheckInfo(info);
  Registry& registry = GlobalRegistry();
  const MutexLock lock(registry.mutex);
  HR_ENFORCE(!registry.infos.contains(info.type), AlreadyExists, "operator '", info.type, "' is registered already");
  std::string type = info.type;
  registry.infos.emplace(std::move(type), std::make_unique<const OpInfo>(std::move(info)));
}

void OpRegistry::RegisterKernel(std::string_view type, DataType dtype, KernelFn kernel) {
  if (current_log != nullptr) {
    current_log->kernels_.push_back({std::string(type), dtype, std::move(kernel)});
    return;
  }
  Registry& registry = GlobalRegistry();
  const MutexLock lock(registry.mutex);
  const auto it = registry.infos.find(type);
  const std::string name(type);
  CheckKernel(registry, it == registry.infos.end() ? nullptr : it->second.get(), name, dtype, kernel);
  registry.kernels.emplace(std::pair(name, dtype), std::move(kernel));
}

const KernelFn* OpRegistry::FindKernel(const OpInfo& info, DataType dtype) {
  if (const auto own = info.kernels.find(dtype); own != info.kernels.end()) {
    return &own->second;
  }
  Registry& registry = GlobalRegistry();
  const MutexLock lock(registry.mutex);
  const auto added = registry.kernels.find({info.type, dtype});
  return added == registry.kernels.end() ? nullptr : &added->second;
}

const KernelFn& OpRegistry::GetKernel(const OpInfo& info, DataType dtype) {
  if (const KernelFn* kernel = FindKernel(info, dtype)) {
    return *kernel;
  }
  std::string available;
  for (const DataType type : KernelTypes(info)) {
    available += (available.empty() ? "" : ", ") + std::string(DataTypeName(type));
  }
  Throw<Unimplemented>("'", info.type, "' has no kernel for ", DataTypeName(dtype), "; it has kernels for ", available);
}

std::vector<DataType> OpRegistry::KernelTypes(const OpInfo& info) {
  std::set<DataType> types;
  for (const auto& [type, kernel] : info.kernels) {
    types.insert(type);
  }
  Registry& registry = GlobalRegistry();
  const MutexLock lock(registry.mutex);
  for (const auto& [key, kernel] : registry.kernels) {
    if (key.first == info.type) {
      types.insert(key.second);
    }
  }
  return {types.begin(), types.end()};
}

const OpInfo* OpRegistry::Find(std::string_view type) {
  Registry& registry = GlobalRegistry();
  const MutexLock lock(registry.mutex);
  const auto it = registry.infos.find(type);
  return it == registry.infos.end() ? nullptr : it->second.get();
}

const OpInfo& OpRegistry::Get(std::string_view type) {
  const OpInfo* info = Find(type);
  HR_ENFORCE(info != nullptr, NotFound, "there is no operator '", type, "'", AdviceFor(type));
  return *info;
}

std::vector<std::string> OpRegistry::Types() {
  Registry& registry = GlobalRegistry();
  const MutexLock lock(registry.mutex);
  std::vector<std::string> types;
  types.reserve(registry.infos.size());
  for (const auto& [type, info] : registry.infos) {
    types.push_back(type);
  }
  return types;
}

void OpRegistry::Check(OpDesc& op) {
  try {
    const OpInfo& info = Get(op.type);
    CheckAgainstDeclaration(info, &op);
  } catch (...) {
    op.RethrowWithContext();
  }
}

bool OpRegistry::HasAttrLike(std::string_view type, const std::string& name) {
  return headrace::HasAttrLike(Get(type), name);
}

std::unique_ptr<OperatorBase> OpRegistry::Create(const OpDesc& op) {
  const OpInfo& info = Get(op.type);
  return info.factory ? info.factory(op) : std::make_unique<KernelOperator>(op, info);
}

void OpRegistrar::Register() && { OpRegistry::Register(std::move(info_)); }

OpRegistrar&& OpRegistrar::Comment(std::string text) && {
  info_.comment = std::move(text);
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::Version(int32_t version, OpUpgrade upgrade) && {
  info_.version = version;
  info_.upgrade = std::move(upgrade);
  return std::move(*this);
}

namespace {

SlotInfo MakeSlot(std::string slot, std::string comment, unsigned flags) {
  return {std::move(slot),
          std::move(comment),
          (flags & kDuplicable) != 0,
          (flags & kDispensable) != 0,
          (flags & kSelectedRows) != 0,
          (flags & kShapeOnly) != 0};
}

}  // namespace

OpRegistrar&& OpRegistrar::Input(std::string slot, std::string comment, unsigned flags) && {
  info_.inputs.push_back(MakeSlot(std::move(slot), std::move(comment), flags));
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::Output(std::string slot, std::string comment, unsigned flags) && {
  info_.outputs.push_back(MakeSlot(std::move(slot), std::move(comment), flags));
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::InPlace(std::string output, std::string input) && {
  info_.in_place.push_back({std::move(output), std::move(input)});
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::InferShape(InferShapeFn fn) && {
  info_.infer_shape = std::move(fn);
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::KernelTypeFrom(std::string slot) && {
  info_.kernel_type_slot = std::move(slot);
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::KernelTypeFromAttr(std::string attr) && {
  info_.kernel_type_attr = std::move(attr);
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::Gradient(GradientMaker maker) && {
  info_.gradient = std::move(maker);
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::ArrayGradient(GradientMaker maker) && {
  info_.array_gradient = std::move(maker);
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::GradientByBlock(BlockGradient slots) && {
  info_.block_gradient = std::move(slots);
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::GradientBySteps(StepsGradientMaker maker) && {
  info_.steps_gradient = std::move(maker);
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::ReadsData() && {
  info_.reads_data = true;
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::AddAttr(AttrInfo attr) && {
  info_.attrs.push_back(std::move(attr));
  return std::move(*this);
}

OpRegistrar&& OpRegistrar::AddKernel(DataType type, KernelFn fn) && {
  // A second one empties it, which CheckInfo reports: an error here would end a program that opens a library.
  const auto [it, is_first] = info_.kernels.emplace(type, std::move(fn));
  if (!is_first) it->second = nullptr;
  return std::move(*this);
}

}  // namespace headrace
