#include "framework/executor.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "framework/block_runner.h"
#include "framework/op_registry.h"
#include "framework/program_check.h"

namespace headrace {
namespace {

using NameSet = std::set<std::string, std::less<>>;

bool Intersects(const NameSet& known, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&known](const auto& name) { return name != kEmptyVarName && known.contains(name); });
}

// The operators of a block in the order in which they run: those that read data, and what must precede them, come
// first; otherwise the order of the program is kept. An operator must precede a later one if it writes what that one
// reads or writes, or reads what that one writes.
std::vector<const OpDesc*> RunningOrder(const BlockDesc& block) {
  const auto& ops = block.ops();
  std::vector<bool> first(ops.size());
  NameSet inputs;  // of the operators chosen so far, all of which are later in the program
  NameSet outputs;
  for (size_t i = ops.size(); i-- > 0;) {
    const OpDesc& op = *ops[i];
    std::vector<std::string> op_inputs = op.InputNames();
    std::vector<std::string> op_outputs = op.OutputNames();
    AddInnerNames(block, op, &op_inputs, &op_outputs);
    first[i] = OpRegistry::Get(op.type).reads_data || Intersects(inputs, op_outputs) ||
               Intersects(outputs, op_outputs) || Intersects(outputs, op_inputs);
    if (first[i]) {
      inputs.insert(op_inputs.begin(), op_inputs.end());
      outputs.insert(op_outputs.begin(), op_outputs.end());
    }
  }
  std::vector<const OpDesc*> order;
  for (const bool wanted : {true, false}) {
    for (size_t i = 0; i < ops.size(); ++i) {
      if (first[i] == wanted) {
        order.push_back(ops[i].get());
      }
    }
  }
  return order;
}

// Sets a flag for as long as it lives; refuses if it is set already.
class RunningGuard {
 public:
  explicit RunningGuard(std::atomic<bool>* flag) : flag_(flag) {
    HR_ENFORCE(!flag_->exchange(true, std::memory_order_acquire), FailedPrecondition,
               "the prepared program is running already; each thread needs one of its own");
  }
  ~RunningGuard() { flag_->store(false, std::memory_order_release); }
  RunningGuard(const RunningGuard&) = delete;
  RunningGuard& operator=(const RunningGuard&) = delete;

 private:
  std::atomic<bool>* flag_;
};

}  // namespace

struct PreparedProgram::Impl {
  Impl(const ProgramDesc& source, size_t block_index) : program(source), block(program.block(block_index)) {}

  void Check();
  void FindNeeded();

  void Bind(Scope* scope);
  void CheckNeeded() const;
  void Unbind();
  void CheckFeed(const std::string& name, const LoDTensor& value) const;
  void Fetch(std::vector<LoDTensor>* fetched) const;

  ProgramDesc program;  // not changed after Check
  BlockDesc& block;
  std::vector<std::unique_ptr<OperatorBase>> ops;
  std::vector<std::string> fetches;
  std::atomic<bool> running{false};

  // What kernels read before any operator has written it: parameters and feeds, mostly.
  struct Needed {
    std::string name;
    std::string slot;
    std::string op_type;
    const Variable* variable = nullptr;  // once bound
  };
  std::vector<Needed> needed;

  uint64_t scope_id = 0;  // of the scope of the last run; 0: none
  uint64_t scope_revision = 0;
  std::optional<Scope> temporaries;  // inside that scope
};

// Takes the fed tensors out of the temporaries when the run ends, so that memory which may be a slot of an arena goes
// back to its owner, and so that a feed forgotten next time is noticed.
class FeedGuard {
 public:
  explicit FeedGuard(const Scope& scope) : scope_(scope) {}
  ~FeedGuard() {
    for (Variable* variable : fed_) {
      if (variable->IsType<LoDTensor>()) {  // an operator may have put something else there
        *variable->GetMutable<LoDTensor>() = LoDTensor();
      }
    }
  }
  FeedGuard(const FeedGuard&) = delete;
  FeedGuard& operator=(const FeedGuard&) = delete;

  // What is to stay is copied: the memory of the value may be the caller's, who goes on writing to it.
  void Feed(const std::string& name, const LoDTensor& value, bool keep) {
    Variable& variable = scope_.GetVar(name);
    auto* tensor = variable.GetMutable<LoDTensor>();
    if (keep) {
      tensor->CopyFrom(value);
      tensor->set_lod(value.lod());
    } else {
      fed_.push_back(&variable);
      *tensor = value;
    }
  }

 private:
  const Scope& scope_;
  std::vector<Variable*> fed_;
};

// Completes the operators with their defaults, those of the blocks within the block, too. A block belongs to one
// operator: were it run by several, preparing n blocks could take 2^n operators. Blocks are prepared and run by
// recursion, so their depth is limited, too.
void PreparedProgram::Impl::Check() {
  constexpr int kMaxBlockDepth = 64;
  std::vector<int> depth(program.num_blocks(), 0);  // by the blocks around a block, or by those that run one another
  std::vector<bool> has_operator(program.num_blocks(), false);
  std::vector<bool> within(program.num_blocks(), false);
  for (size_t b = static_cast<size_t>(block.index()); b < program.num_blocks(); ++b) {
    BlockDesc& checked = program.block(b);
    const bool is_within = checked.parent() >= 0 && within[static_cast<size_t>(checked.parent())];
    within[b] = is_within || &checked == &block;
    depth[b] = is_within ? std::max(depth[b], depth[static_cast<size_t>(checked.parent())] + 1) : 0;
    HR_ENFORCE(depth[b] <= kMaxBlockDepth, InvalidArgument, "block ", b, " lies more than ", kMaxBlockDepth,
               " blocks deep");
    for (size_t i = 0; within[b] && i < checked.ops().size(); ++i) {
      OpDesc& op = checked.MutableOp(i);
      OpRegistry::Check(op);
      CheckVariablesExist(checked, op);
      CheckBlockRefs(checked, op);
      for (const auto& [name, attr] : op.attrs) {
        if (const auto* ref = std::get_if<BlockRef>(&attr)) {
          const auto inner = static_cast<size_t>(ref->index);
          HR_ENFORCE(!has_operator[inner], InvalidArgument, "block ", inner,
                     " belongs to two operators, the second a '", op.type, "' in block ", b,
                     "; each needs a block of its own");
          has_operator[inner] = true;
          depth[inner] = std::max(depth[inner], depth[b] + 1);
        }
      }
    }
  }
  for (size_t b = 0; b < program.num_blocks(); ++b) {
    HR_ENFORCE(!has_operator[b] || within[b], InvalidArgument, "block ", b, " does not lie within block ",
               block.index(), ", so that no operator of it can run it");
  }
}

// What blocks within the block read is left out: whether they run is known only then.
void PreparedProgram::Impl::FindNeeded() {
  NameSet seen;
  for (const OpDesc* op : RunningOrder(block)) {
    const bool is_kernel = !OpRegistry::Get(op->type).kernels.empty();
    for (const auto& [slot, names] : op->inputs) {
      for (const std::string& name : names) {
        const VarDesc* desc = name == kEmptyVarName ? nullptr : block.FindVar(name);
        if (is_kernel && desc != nullptr && desc->kind == VarKind::kLoDTensor && seen.insert(name).second) {
          needed.push_back({name, slot, op->type, nullptr});
        }
      }
    }
    std::vector<std::string> reads;
    std::vector<std::string> writes = op->OutputNames();
    AddInnerNames(block, *op, &reads, &writes);
    seen.insert(writes.begin(), writes.end());
  }
}

// So that nothing is changed by a program that cannot be run to its end.
void PreparedProgram::Impl::CheckNeeded() const {
  for (const Needed& need : needed) {
    const Variable& variable = *need.variable;
    if (!variable.initialized() || (variable.IsType<LoDTensor>() && !variable.Get<LoDTensor>().initialized())) {
      FailedPrecondition error(StrCat("'", need.name, "', in input slot '", need.slot, "' of '", need.op_type,
                                      "', has not been written yet; was the startup program run, and is it fed?"));
      error.SetOpType(need.op_type);
      error.SetVariable(need.name);
      throw error;
    }
  }
}

void PreparedProgram::Impl::Unbind() {
  for (const auto& op : ops) {
    op->Unbind();
  }
  temporaries.reset();
  scope_id = 0;
  scope_revision = 0;
}

void PreparedProgram::Impl::Bind(Scope* scope) {
  if (scope_id != scope->id()) {
    Unbind();
    temporaries.emplace(scope);
    scope_id = scope->id();
  }
  if (scope_revision == scope->revision()) {
    return;
  }
  NameSet seen;
  for (const BlockDesc* from = &block;; from = &program.block(static_cast<size_t>(from->parent()))) {
    for (const VarDesc* desc : from->LocalVars()) {
      if (!seen.insert(desc->name).second) {
        continue;  // hidden by a variable of an inner block
      }
      if (!OutlivesRuns(*desc)) {
        InitializeVariable(*desc, temporaries->Var(desc->name));
      } else {
        Variable* found = scope->FindVar(desc->name);
        Variable* variable = found == nullptr ? scope->Var(desc->name) : found;
        if (desc->kind == VarKind::kSelectedRows) {
          InitializeVariable(*desc, variable);  // operators decide by it what they write
        }
      }
    }
    if (from->parent() < 0) {
      break;
    }
  }
  for (Needed& need : needed) {
    need.variable = &temporaries->GetVar(need.name);
  }
  scope_revision = scope->revision();
}

void PreparedProgram::Impl::CheckFeed(const std::string& name, const LoDTensor& value) const {
  const VarDesc* desc = block.FindVar(name);
  HR_ENFORCE(desc != nullptr, NotFound, "cannot feed '", name, "': the program declares no such variable");
  HR_ENFORCE(desc->kind == VarKind::kLoDTensor, TypeMismatch, "cannot feed '", name, "': it is a ",
             VarKindName(desc->kind), ", not a LoDTensor");
  HR_ENFORCE(value.initialized(), InvalidArgument, "the tensor fed to '", name, "' is empty");
  const TensorSpec& spec = desc->tensor;
  HR_ENFORCE(value.dtype() == spec.dtype, TypeMismatch, "'", name, "' is declared as ", DataTypeName(spec.dtype),
             ", fed with ", DataTypeName(value.dtype()));
  HR_ENFORCE(Matches(spec.dims, value.dims()), InvalidArgument, "'", name, "' is declared with shape ",
             ToString(spec.dims), ", fed with ", ToString(value.dims()));
  HR_ENFORCE(static_cast<size_t>(spec.lod_level) == value.lod_level(), InvalidArgument, "'", name,
             "' is declared with LoD level ", spec.lod_level, ", fed with ", value.lod_level());
  if (!value.lod().empty()) {
    HR_ENFORCE(!value.dims().empty(), InvalidArgument, "'", name, "' is fed with a scalar that has an LoD");
    CheckLoD(value.lod(), value.dims()[0]);
  }
}

void PreparedProgram::Impl::Fetch(std::vector<LoDTensor>* fetched) const {
  fetched->reserve(fetches.size());
  for (const std::string& name : fetches) {
    const auto& tensor = temporaries->GetVar(name).Get<LoDTensor>();
    HR_ENFORCE(tensor.initialized(), FailedPrecondition, "cannot fetch '", name, "': nothing has been written to it");
    if (block.GetVar(name).persistable) {
      Tensor copy;
      copy.CopyFrom(tensor);
      fetched->emplace_back(std::move(copy), tensor.lod());
    } else {
      fetched->push_back(tensor);
    }
  }
}

PreparedProgram::PreparedProgram() = default;
PreparedProgram::~PreparedProgram() = default;

void PreparedProgram::Reset() {
  const RunningGuard guard(&impl_->running);
  impl_->Unbind();
}

std::unique_ptr<PreparedProgram> Executor::Prepare(const ProgramDesc& program, std::vector<std::string> fetches,
                                                   size_t block) const {
  std::unique_ptr<PreparedProgram> prepared(new PreparedProgram);
  prepared->impl_ = std::make_unique<PreparedProgram::Impl>(program, block);
  PreparedProgram::Impl& impl = *prepared->impl_;
  impl.Check();
  CheckTypes(impl.program, block);
  impl.FindNeeded();
  for (const OpDesc* op : RunningOrder(impl.block)) {
    impl.ops.push_back(OpRegistry::Create(*op));
    impl.ops.back()->Prepare(impl.block);
  }
  for (const std::string& fetch : fetches) {
    const VarDesc* desc = impl.block.FindVar(fetch);
    HR_ENFORCE(desc != nullptr, NotFound, "cannot fetch '", fetch, "': the program declares no such variable");
    HR_ENFORCE(desc->kind == VarKind::kLoDTensor, TypeMismatch, "cannot fetch '", fetch, "': it is a ",
               VarKindName(desc->kind), ", not a LoDTensor",
               desc->kind == VarKind::kSelectedRows ? "; fetch what get_tensor_from_selected_rows makes of it" : "");
  }
  impl.fetches = std::move(fetches);
  return prepared;
}

void Executor::Run(PreparedProgram& prepared, Scope* scope, const std::map<std::string, LoDTensor>& feeds,
                   std::vector<LoDTensor>* fetched) const {
  HR_ENFORCE(scope != nullptr, InvalidArgument, "the executor needs a scope");
  PreparedProgram::Impl& impl = *prepared.impl_;
  const RunningGuard running(&impl.running);
  if (fetched != nullptr) {
    fetched->clear();
  }
  for (const auto& [name, value] : feeds) {
    try {
      impl.CheckFeed(name, value);
    } catch (Error& error) {
      error.SetVariable(name);
      throw;
    }
  }
  impl.Bind(scope);
  EmptyArrays(impl.block, *impl.temporaries);
  FeedGuard feeding(*impl.temporaries);
  for (const auto& [name, value] : feeds) {
    feeding.Feed(name, value, impl.block.GetVar(name).persistable);
  }
  impl.CheckNeeded();
  for (const auto& op : impl.ops) {
    op->Run(*impl.temporaries, place_);
  }
  if (fetched != nullptr) {
    impl.Fetch(fetched);
  }
}

void Executor::Run(const ProgramDesc& program, Scope* scope) const { Run(*Prepare(program), scope); }

}  // namespace headrace
