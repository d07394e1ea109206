#include "framework/prepared_program.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "framework/block_runner.h"
#include "framework/errors.h"
#include "framework/memory_plan.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/program_check.h"
#include "framework/program_feeds.h"
#include "framework/running_order.h"
#include "framework/spelling.h"
#include "framework/wait_hook.h"

namespace headrace {
namespace {

using NameSet = std::set<std::string, std::less<>>;

// A copy of the program that is complete and can run.
ProgramDesc CheckedCopy(const ProgramDesc& source, size_t block) {
  ProgramDesc program(source);
  CheckProgram(&program, block);
  CheckTypes(program, block);
  return program;
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

// Takes the fed tensors out when the run ends, however it ends.
class FeedGuard {
 public:
  explicit FeedGuard(ProgramFeeds* feeds) : feeds_(feeds) {}
  ~FeedGuard() { feeds_->TakeOut(); }
  FeedGuard(const FeedGuard&) = delete;
  FeedGuard& operator=(const FeedGuard&) = delete;

 private:
  ProgramFeeds* feeds_;
};

}  // namespace

struct PreparedProgram::Impl {
  Impl(const ProgramDesc& source, size_t block_index);

  void FindNeeded();

  void Run(Scope* scope, const std::map<std::string, LoDTensor>& feeds, std::vector<LoDTensor>* fetched,
           const Place& place, ThreadPool* threads);
  void Bind(Scope* scope);
  void CheckNeeded() const;
  void Unbind();
  void SetFetches(const std::vector<std::string>& names);
  void Fetch(std::vector<LoDTensor>* fetched) const;

  const ProgramDesc program;  // a checked copy
  const BlockDesc& block;
  MemoryPool pool;
  std::vector<const OpDesc*> order;  // in which the operators run
  std::vector<std::unique_ptr<OperatorBase>> ops;
  ProgramFeeds fed;
  std::optional<MemoryPlan> plan;
  std::atomic<bool> running{false};

  // What kernels read before any operator has written it: parameters and feeds, mostly.
  struct Needed {
    std::string name;
    std::string slot;
    std::string op_type;
    const Variable* variable = nullptr;  // once bound
  };
  std::vector<Needed> needed;
  NameSet made_anew;  // what nothing reads in a run before it is written
  std::string MissingValue(const Needed& need) const;

  struct Fetched {
    std::string name;
    bool handed_out;                // its memory becomes the caller's, if nothing else has it
    std::optional<size_t> same_as;  // an earlier one
    Variable* variable = nullptr;   // once bound
  };
  std::vector<Fetched> fetches;
  NameSet kept;  // all that has ever been fetched

  std::vector<Variable*> left;  // once bound: what each run starts without

  uint64_t scope_id = 0;  // of the scope of the last run; 0: none
  uint64_t scope_revision = 0;
  std::optional<Scope> temporaries;  // inside that scope
};

PreparedProgram::Impl::Impl(const ProgramDesc& source, size_t block_index)
    : program(CheckedCopy(source, block_index)),
      block(program.block(block_index)),
      order(RunningOrder(block)),
      fed(block, order) {
  FindNeeded();
  for (const OpDesc* op : order) {
    ops.push_back(PreparedOperator(block, *op));
  }
}

// What blocks within the block read is left out: whether they run is known only then.
void PreparedProgram::Impl::FindNeeded() {
  NameSet seen;     // by kernels, or written
  NameSet touched;  // by anything
  for (const OpDesc* op : order) {
    const bool is_kernel = !OpRegistry::Get(op->type).kernels.empty();
    for (const auto& [slot, names] : op->inputs) {
      for (const std::string& name : names) {
        const VarDesc* desc = name == kEmptyVarName ? nullptr : block.FindVar(name);
        if (is_kernel && desc != nullptr && desc->kind == VarKind::kLoDTensor && seen.insert(name).second) {
          needed.push_back({name, slot, op->type, nullptr});
        }
      }
    }
    std::vector<std::string> reads = op->InputNames();
    std::vector<std::string> writes = op->OutputNames();
    touched.insert(reads.begin(), reads.end());
    if (op->Blocks().empty()) {  // a block may not run
      std::copy_if(writes.begin(), writes.end(), std::inserter(made_anew, made_anew.end()),
                   [&touched](const std::string& name) { return !touched.contains(name); });
    }
    AddInnerNames(block, *op, &reads, &writes);
    touched.insert(reads.begin(), reads.end());
    touched.insert(writes.begin(), writes.end());
    seen.insert(writes.begin(), writes.end());
  }
  const std::vector<std::string> cleared = LeftFromRuns(block);
  made_anew.insert(cleared.begin(), cleared.end());
}

// Why a variable has no value, and what to do.
std::string PreparedProgram::Impl::MissingValue(const Needed& need) const {
  const VarDesc* desc = block.FindVar(need.name);
  const std::string which = StrCat("'", need.name, "', in input slot '", need.slot, "' of '", need.op_type, "', ");
  if (desc != nullptr && desc->BoolAttr("is_data", false)) {
    return which + "is not fed";
  }
  if (desc != nullptr && desc->persistable) {
    return which +
           "has no value in this scope: run the startup program, and again after layers or an optimizer have been "
           "added";
  }
  return which + "has no value: it is not fed, and no operator before this one has written it";
}

// Before any operator runs, so that a program that lacks a value changes nothing. What is left to a block to read or to
// write, operators find missing when they run.
void PreparedProgram::Impl::CheckNeeded() const {
  for (const Needed& need : needed) {
    const Variable& variable = *need.variable;
    if (!variable.initialized() || (variable.IsType<LoDTensor>() && !variable.Get<LoDTensor>().initialized())) {
      FailedPrecondition error(MissingValue(need));
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
  plan->Unbind();
  left.clear();
  temporaries.reset();
  pool.Trim();
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
  for (Fetched& fetch : fetches) {
    fetch.variable = &temporaries->GetVar(fetch.name);
  }
  fed.Bind(*temporaries);
  left = temporaries->GetVars(LeftFromRuns(block));
  plan->Bind(*temporaries);
  scope_revision = scope->revision();
}

void PreparedProgram::Impl::SetFetches(const std::vector<std::string>& names) {
  if (plan.has_value() &&
      std::equal(fetches.begin(), fetches.end(), names.begin(), names.end(),
                 [](const Fetched& fetch, const std::string& name) { return fetch.name == name; })) {
    return;
  }
  std::vector<Fetched> wanted;
  for (const std::string& name : names) {
    const VarDesc* desc = block.FindVar(name);
    if (desc == nullptr) {
      std::vector<std::string> known;
      for (const VarDesc* var : block.LocalVars()) {
        known.push_back(var->name);
      }
      Throw<NotFound>("cannot fetch '", name, "': the program declares no such variable", DidYouMean(name, known));
    }
    HR_ENFORCE(desc->kind == VarKind::kLoDTensor, TypeMismatch, "cannot fetch '", name, "': it is a ",
               VarKindName(desc->kind), ", not a LoDTensor",
               desc->kind == VarKind::kSelectedRows ? "; fetch what get_tensor_from_selected_rows makes of it" : "");
    const auto same =
        std::find_if(wanted.begin(), wanted.end(), [&](const Fetched& each) { return each.name == name; });
    wanted.push_back({.name = name,
                      .handed_out = !desc->persistable && made_anew.contains(name),
                      .same_as = same == wanted.end() ? std::nullopt : std::optional<size_t>(same - wanted.begin())});
  }
  NameSet all = kept;
  all.insert(names.begin(), names.end());
  if (!plan.has_value() || all.size() != kept.size()) {
    if (plan.has_value()) {
      Unbind();
    }
    plan.emplace(block, order, std::vector<std::string>(all.begin(), all.end()));
    kept = std::move(all);
  }
  fetches = std::move(wanted);
  scope_revision = 0;  // so that their variables are found
}

// What the next run makes anew, and nobody else holds, is handed out as it is: the caller may write into it.
void PreparedProgram::Impl::Fetch(std::vector<LoDTensor>* fetched) const {
  fetched->reserve(fetches.size());
  for (const Fetched& fetch : fetches) {
    LoDTensor* tensor = fetch.same_as ? &(*fetched)[*fetch.same_as] : fetch.variable->GetMutable<LoDTensor>();
    HR_ENFORCE(tensor->initialized(), FailedPrecondition, "cannot fetch '", fetch.name,
               "': nothing has been written to it");
    if (fetch.handed_out && !fetch.same_as && tensor->IsSoleHolder()) {
      fetched->push_back(*tensor);
      tensor->SetMemory(nullptr);
    } else {
      Tensor copy;
      copy.CopyFrom(*tensor);
      fetched->emplace_back(std::move(copy), tensor->lod());
    }
  }
}

void PreparedProgram::Impl::Run(Scope* scope, const std::map<std::string, LoDTensor>& feeds,
                                std::vector<LoDTensor>* fetched, const Place& place, ThreadPool* threads) {
  const RunningGuard guard(&running);
  if (fetched != nullptr) {
    fetched->clear();
  }
  const MemoryPool::Use use(&pool);
  if (fed.Expect(feeds)) {
    scope_revision = 0;  // so that their variables are found
  }
  fed.Check(feeds);
  Bind(scope);
  for (Variable* variable : left) {
    Clear(variable);
  }
  plan->Begin(&pool);
  const FeedGuard feed_guard(&fed);
  fed.Put(feeds);
  CheckNeeded();
  const ScopedThreadPool use_threads(threads);
  for (size_t i = 0; i < ops.size(); ++i) {
    ScopedWaitHook::CallIfDue();
    plan->Before(i);
    try {
      ops[i]->Run(*temporaries, place);
    } catch (Error& error) {
      // An operator further on names its own variable; the user has to know which of theirs it comes from.
      const std::string deviations = fed.Deviations(feeds, *temporaries);
      if (!deviations.empty() && dynamic_cast<const EndOfData*>(&error) == nullptr) {
        error.AddNote(deviations);
      }
      throw;
    }
    plan->After(i);
  }
  if (fetched != nullptr) {
    Fetch(fetched);
  }
  plan->End();
}

PreparedProgram::PreparedProgram(const ProgramDesc& program, const std::vector<std::string>& fetches, size_t block)
    : impl_(std::make_unique<Impl>(program, block)) {
  impl_->SetFetches(fetches);
}

PreparedProgram::~PreparedProgram() = default;

void PreparedProgram::SetFetches(const std::vector<std::string>& fetches) {
  const RunningGuard guard(&impl_->running);
  impl_->SetFetches(fetches);
}

void PreparedProgram::Reset() {
  const RunningGuard guard(&impl_->running);
  impl_->Unbind();
}

size_t PreparedProgram::memory() const { return impl_->pool.held(); }

void PreparedProgram::Run(Scope* scope, const std::map<std::string, LoDTensor>& feeds, std::vector<LoDTensor>* fetched,
                          const Place& place, ThreadPool* threads) {
  impl_->Run(scope, feeds, fetched, place, threads);
}

}  // namespace headrace
