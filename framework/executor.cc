#include "framework/executor.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "framework/block_runner.h"
#include "framework/memory_plan.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/program_check.h"
#include "framework/spelling.h"
#include "framework/wait_hook.h"

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

// The environment variable CPU_NUM, as in Fluid.
int CpuNumFromEnvironment() {
  const char* value = std::getenv("CPU_NUM");
  if (value == nullptr || *value == '\0') {
    return 1;
  }
  const std::string_view text(value);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  HR_ENFORCE(
      error == std::errc() && end == text.data() + text.size() && 1 <= number && number <= ThreadPool::kMaxThreads,
      InvalidArgument, "environment variable CPU_NUM: expected a number of threads in [1, ", ThreadPool::kMaxThreads,
      "], got '", text, "'");
  return number;
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

// Whether a variable has an attribute that is true.
bool HasTrue(const VarDesc& desc, std::string_view attr) {
  const auto it = desc.attrs.find(attr);
  const bool* value = it == desc.attrs.end() ? nullptr : std::get_if<bool>(&it->second);
  return value != nullptr && *value;
}

// Whether the shape and the dtype that are declared are those of what is fed: fluid.data asks for it, and what persists
// stays as it is. Others are checked where an operator needs it, as in Fluid, whose programs declare the longest
// sentence, say, and feed shorter ones.
bool IsFedAsDeclared(const VarDesc& desc) { return desc.persistable || HasTrue(desc, "need_check_feed"); }

}  // namespace

struct PreparedProgram::Impl {
  Impl(const ProgramDesc& source, size_t block_index) : program(source), block(program.block(block_index)) {}

  void Check();
  void FindNeeded();

  void Bind(Scope* scope);
  void CheckNeeded() const;
  void Unbind();
  // What the last run was given, in the order of the map.
  struct Fed {
    std::string name;
    const VarDesc* desc;
    Variable* variable = nullptr;  // once bound
    bool is_in = false;            // and to be taken out
  };
  void Expect(const std::map<std::string, LoDTensor>& feeds);
  static void CheckFeed(const Fed& feed, const LoDTensor& value);
  std::string Deviations(const std::map<std::string, LoDTensor>& feeds) const;
  void Feed(const std::map<std::string, LoDTensor>& feeds);
  void TakeFeedsOut();
  void SetFetches(const std::vector<std::string>& names);
  void Fetch(std::vector<LoDTensor>* fetched) const;

  ProgramDesc program;  // not changed after Check
  BlockDesc& block;
  MemoryPool pool;
  std::vector<const OpDesc*> order;  // in which the operators run
  std::vector<std::unique_ptr<OperatorBase>> ops;
  std::vector<std::string> feed_outputs;   // what the operators `feed` write, unless it is fed by its name
  std::vector<Variable*> from_feed_lists;  // the same, once bound
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
  std::vector<Fed> fed;

  std::vector<Variable*> left;  // once bound: what each run starts without

  uint64_t scope_id = 0;  // of the scope of the last run; 0: none
  uint64_t scope_revision = 0;
  std::optional<Scope> temporaries;  // inside that scope
};

// Takes the fed tensors out when the run ends, however it ends.
class FeedGuard {
 public:
  explicit FeedGuard(PreparedProgram::Impl* program) : program_(program) {}
  ~FeedGuard() { program_->TakeFeedsOut(); }
  FeedGuard(const FeedGuard&) = delete;
  FeedGuard& operator=(const FeedGuard&) = delete;

 private:
  PreparedProgram::Impl* program_;
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
      for (const BlockRef ref : op.Blocks()) {
        const auto inner = static_cast<size_t>(ref.index);
        HR_ENFORCE(!has_operator[inner], InvalidArgument, "block ", inner, " belongs to two operators, the second a '",
                   op.type, "' in block ", b, "; each needs a block of its own");
        has_operator[inner] = true;
        depth[inner] = std::max(depth[inner], depth[b] + 1);
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
  if (desc != nullptr && HasTrue(*desc, "is_data")) {
    return which + "is not fed";
  }
  if (desc != nullptr && desc->persistable) {
    return which +
           "has no value in this scope: run the startup program, and again after layers or an optimizer have been "
           "added";
  }
  return which + "has no value: it is not fed, and no operator before this one writes it";
}

// So that nothing is changed by a program that cannot be run to its end.
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
  for (Fed& feed : fed) {
    feed.variable = feed.desc == nullptr ? nullptr : &temporaries->GetVar(feed.name);
  }
  from_feed_lists.clear();
  for (const std::string& name : feed_outputs) {
    from_feed_lists.push_back(&temporaries->GetVar(name));
  }
  left.clear();
  for (const std::string& name : LeftFromRuns(block)) {
    left.push_back(&temporaries->GetVar(name));
  }
  plan->Bind(*temporaries);
  scope_revision = scope->revision();
}

// Looks the names up, unless they are those of the last run.
void PreparedProgram::Impl::Expect(const std::map<std::string, LoDTensor>& feeds) {
  if (std::equal(fed.begin(), fed.end(), feeds.begin(), feeds.end(),
                 [](const Fed& known, const auto& feed) { return known.name == feed.first; })) {
    return;
  }
  std::vector<Fed> expected;
  for (const auto& [name, value] : feeds) {
    expected.push_back({.name = name, .desc = block.FindVar(name)});
  }
  fed = std::move(expected);
  scope_revision = 0;  // so that their variables are found
}

// "'x' is declared as float32 [-1, 3], but was given as float32 [2, 4]" for each of what the program was given, feeds
// or what it reads, that is not as it declares it, or is empty; else "".
std::string PreparedProgram::Impl::Deviations(const std::map<std::string, LoDTensor>& feeds) const {
  std::string all;
  const auto compare = [&all, this](const std::string& name, const LoDTensor& value, const std::string& origin) {
    const TensorSpec& spec = block.FindVar(name)->tensor;
    if (value.dtype() == spec.dtype && Matches(spec.dims, value.dims()) && value.numel() > 0 &&
        value.lod_level() == static_cast<size_t>(spec.lod_level)) {
      return;
    }
    const auto levels = [](size_t count) { return count == 0 ? std::string() : StrCat(", LoD level ", count); };
    all += StrCat(all.empty() ? "" : "; ", "'", name, "' is declared as ", DataTypeName(spec.dtype), " ",
                  ToString(spec.dims), levels(static_cast<size_t>(spec.lod_level)), ", but was given as ",
                  DataTypeName(value.dtype()), " ", ToString(value.dims()), levels(value.lod_level()), origin);
  };
  for (const auto& [name, value] : feeds) {
    compare(name, value, "");
  }
  for (const OpDesc* op : order) {
    if (op->type != "read") {
      continue;
    }
    const std::vector<std::string>& names = op->Output("Out");
    for (size_t i = 0; i < names.size(); ++i) {
      const Variable* variable = temporaries->FindVar(names[i]);
      if (block.FindVar(names[i]) != nullptr && variable != nullptr && variable->IsType<LoDTensor>() &&
          variable->Get<LoDTensor>().initialized()) {
        compare(names[i], variable->Get<LoDTensor>(), StrCat(", value ", i, " of '", op->Input("Reader").front(), "'"));
      }
    }
  }
  return all;
}

void PreparedProgram::Impl::CheckFeed(const Fed& feed, const LoDTensor& value) {
  const std::string& name = feed.name;
  const VarDesc* desc = feed.desc;
  HR_ENFORCE(desc != nullptr, NotFound, "cannot feed '", name, "': the program declares no such variable");
  HR_ENFORCE(desc->kind == VarKind::kLoDTensor, TypeMismatch, "cannot feed '", name, "': it is a ",
             VarKindName(desc->kind), ", not a LoDTensor");
  HR_ENFORCE(value.initialized(), InvalidArgument, "the tensor fed to '", name, "' is empty");
  const TensorSpec& spec = desc->tensor;
  const bool strict = IsFedAsDeclared(*desc);
  HR_ENFORCE(value.dtype() == spec.dtype || (!strict && MayBeGivenAs(spec.dtype, value.dtype())), TypeMismatch, "'",
             name, "' is declared as ", DataTypeName(spec.dtype), ", fed with ", DataTypeName(value.dtype()));
  HR_ENFORCE(!strict || Matches(spec.dims, value.dims()), InvalidArgument, "'", name, "' is declared with shape ",
             ToString(spec.dims), ", fed with ", ToString(value.dims()));
  if (!value.lod().empty()) {
    HR_ENFORCE(!value.dims().empty(), InvalidArgument, "'", name, "' is fed with a scalar that has an LoD");
    CheckLoD(value.lod(), value.dims()[0]);
  }
}

// What is to stay is copied: the memory of the value may be the caller's, who goes on writing to it.
void PreparedProgram::Impl::Feed(const std::map<std::string, LoDTensor>& feeds) {
  auto feed = fed.begin();
  for (const auto& [name, value] : feeds) {
    auto* tensor = feed->variable->GetMutable<LoDTensor>();
    if (feed->desc->persistable) {
      tensor->CopyFrom(value);
      tensor->set_lod(value.lod());
    } else {
      feed->is_in = true;
      *tensor = value;
    }
    ++feed;
  }
}

// So that memory which may be a slot of an arena goes back to its owner, and a feed forgotten next time is noticed.
void PreparedProgram::Impl::TakeFeedsOut() {
  for (Fed& feed : fed) {
    if (feed.is_in && feed.variable->IsType<LoDTensor>()) {  // an operator may have put something else there
      *feed.variable->GetMutable<LoDTensor>() = LoDTensor();
    }
    feed.is_in = false;
  }
  for (Variable* variable : from_feed_lists) {
    if (variable->IsType<LoDTensor>()) {
      *variable->GetMutable<LoDTensor>() = LoDTensor();
    }
  }
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

PreparedProgram::PreparedProgram() = default;
PreparedProgram::~PreparedProgram() = default;

void PreparedProgram::SetFetches(const std::vector<std::string>& fetches) {
  const RunningGuard guard(&impl_->running);
  impl_->SetFetches(fetches);
}

void PreparedProgram::Reset() {
  const RunningGuard guard(&impl_->running);
  impl_->Unbind();
}

Executor::Executor(Place place, int cpu_num)
    : place_(place), threads_(std::make_shared<ThreadPool>(cpu_num == 0 ? CpuNumFromEnvironment() : cpu_num)) {}

size_t PreparedProgram::memory() const { return impl_->pool.held(); }

std::unique_ptr<PreparedProgram> Executor::Prepare(const ProgramDesc& program, const std::vector<std::string>& fetches,
                                                   size_t block) const {
  std::unique_ptr<PreparedProgram> prepared(new PreparedProgram);
  prepared->impl_ = std::make_unique<PreparedProgram::Impl>(program, block);
  PreparedProgram::Impl& impl = *prepared->impl_;
  impl.Check();
  CheckTypes(impl.program, block);
  impl.order = RunningOrder(impl.block);
  impl.FindNeeded();
  for (const OpDesc* op : impl.order) {
    impl.ops.push_back(OpRegistry::Create(*op));
    impl.ops.back()->Prepare(impl.block);
    if (op->type == "feed") {
      impl.feed_outputs.push_back(op->Output("Out").front());
    }
  }
  impl.SetFetches(fetches);
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
  const MemoryPool::Use use(&impl.pool);
  impl.Expect(feeds);
  auto expected = impl.fed.begin();
  for (const auto& [name, value] : feeds) {
    try {
      PreparedProgram::Impl::CheckFeed(*expected++, value);
    } catch (Error& error) {
      error.SetVariable(name);
      throw;
    }
  }
  impl.Bind(scope);
  for (Variable* variable : impl.left) {
    Clear(variable);
  }
  impl.plan->Begin(&impl.pool);
  const FeedGuard guard(&impl);
  impl.Feed(feeds);
  impl.CheckNeeded();
  const ScopedThreadPool threads(threads_.get());
  for (size_t i = 0; i < impl.ops.size(); ++i) {
    ScopedWaitHook::CallIfDue();
    impl.plan->Before(i);
    try {
      impl.ops[i]->Run(*impl.temporaries, place_);
    } catch (Error& error) {
      // An operator further on names its own variable; the user has to know which of theirs it comes from.
      const std::string deviations = impl.Deviations(feeds);
      if (!deviations.empty() && dynamic_cast<const EndOfData*>(&error) == nullptr) {
        error.AddNote(deviations);
      }
      throw;
    }
    impl.plan->After(i);
  }
  if (fetched != nullptr) {
    impl.Fetch(fetched);
  }
  impl.plan->End();
}

void Executor::Run(const ProgramDesc& program, Scope* scope) const { Run(*Prepare(program), scope); }

}  // namespace headrace
