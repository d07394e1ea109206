#include "reader/custom_reader.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "framework/wait_hook.h"
#include "reader/reader_op_util.h"

namespace headrace {
namespace {

using NameList = std::vector<std::string>;

// What the block's own variables declare.
std::vector<TensorSpec> SpecsOf(const BlockDesc& block, const char* attr, const NameList& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) {
    HR_ENFORCE(block.HasLocalVar(name), NotFound, "attribute '", attr, "': block ", block.index(),
               " declares no variable '", name, "' of its own");
    const VarDesc& var = block.GetVar(name);
    HR_ENFORCE(var.kind == VarKind::kLoDTensor, TypeMismatch, "attribute '", attr, "': '", name, "' is a ",
               VarKindName(var.kind), ", expected a tensor");
    specs.push_back(var.tensor);
  }
  return specs;
}

// A program need not say what a reader yields: then it is seen when the reader is there.
void EnforceSpecs(const std::vector<TensorSpec>& declared, const std::vector<TensorSpec>& specs,
                  const std::string& reader, const char* attr) {
  if (declared.empty()) return;
  HR_ENFORCE(declared.size() == specs.size(), InvalidArgument, "the reader '", reader, "' yields ", declared.size(),
             " tensors, but attribute '", attr, "' names ", specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    HR_ENFORCE(declared[i] == specs[i], InvalidArgument, "tensor ", i, " of the reader '", reader, "' is declared as ",
               DataTypeName(declared[i].dtype), " of shape ", ToString(declared[i].dims), " with ",
               declared[i].lod_level, " levels of LoD, its variable in attribute '", attr, "' as ",
               DataTypeName(specs[i].dtype), " of shape ", ToString(specs[i].dims), " with ", specs[i].lod_level);
  }
}

// Where the batches of `below` need not be as they are declared, what becomes of them need not be either.
BatchContract SinkContract(const BlockDesc& block, const OpDesc& op, const BatchContract& below) {
  const BlockDesc& inner = block.program().block(static_cast<size_t>(op.Attr<BlockRef>("sub_block").index));
  BatchContract contract{.specs = SpecsOf(inner, "sink_var_names", op.Attr<NameList>("sink_var_names"))};
  const bool strict = std::find(below.checked.begin(), below.checked.end(), false) == below.checked.end();
  contract.checked.assign(contract.specs.size(), strict);
  contract.any_dtype = below.any_dtype;
  return contract;
}

const LoDTensor& WrittenTensor(const Variable& variable) {
  if (!variable.initialized() || !variable.Get<LoDTensor>().initialized()) {
    FailedPrecondition error(
        StrCat("'", variable.name(), "', which the block of a reader uses, has not been written yet"));
    error.SetVariable(variable.name());
    throw error;
  }
  return variable.Get<LoDTensor>();
}

}  // namespace

CustomReader::Wiring CustomReader::Check(const BlockDesc& block, const OpDesc& op) {
  Wiring wiring{op.Attr<NameList>("source_var_names"), op.Attr<NameList>("sink_var_names"), {}};
  const BlockRunner runner(block, op.Attr<BlockRef>("sub_block"), wiring.sources);
  const auto declared = [&](const std::string& name) { return block.GetVar(name).reader; };
  const std::string& below = op.Input("UnderlyingReader").front();
  const std::string& out = op.Output("Out").front();
  EnforceSpecs(declared(below), SpecsOf(runner.block(), "source_var_names", wiring.sources), below, "source_var_names");
  EnforceSpecs(declared(out), SpecsOf(runner.block(), "sink_var_names", wiring.sinks), out, "sink_var_names");
  HR_ENFORCE(!wiring.sinks.empty(), InvalidArgument, "attribute 'sink_var_names': a reader yields a tensor at least");
  NameList writes;
  AddInnerNames(block, op, &wiring.outer, &writes);
  std::erase(writes, kEmptyVarName);
  std::erase(wiring.outer, kEmptyVarName);
  HR_ENFORCE(writes.empty(), InvalidArgument, "the block of a reader writes '", writes.empty() ? "" : writes.front(),
             "', which belongs to the block around it");
  std::sort(wiring.outer.begin(), wiring.outer.end());
  wiring.outer.erase(std::unique(wiring.outer.begin(), wiring.outer.end()), wiring.outer.end());
  for (const std::string& name : wiring.outer) {
    const VarDesc& var = block.GetVar(name);
    HR_ENFORCE(var.kind == VarKind::kLoDTensor && var.persistable, InvalidArgument, "the block of a reader reads '",
               name, "' of the block around it, which is not a persistable tensor");
  }
  return wiring;
}

CustomReader::CustomReader(const std::shared_ptr<ReaderBase>& below, const BlockDesc& block, const OpDesc& op,
                           Wiring wiring)
    : DecoratedReader(below, SinkContract(block, op, below->contract())),
      program_(block.program()),
      wiring_(std::move(wiring)),
      inner_(&outer_),
      runner_(program_.block(static_cast<size_t>(block.index())), op.Attr<BlockRef>("sub_block"), wiring_.sources) {
  HR_ENFORCE(below->specs().size() == wiring_.sources.size(), InvalidArgument, "the reader below yields ",
             below->specs().size(), " tensors, but attribute 'source_var_names' names ", wiring_.sources.size());
  for (const std::string& name : wiring_.outer) {
    outer_.Var(name)->GetMutable<LoDTensor>();
  }
  runner_.Declare(&inner_);
  sources_ = inner_.GetVars(wiring_.sources);
  sinks_ = inner_.GetVars(wiring_.sinks);
}

void CustomReader::SetOuter(std::map<std::string, LoDTensor> values) {
  const MutexLock lock(values_mutex_);
  values_ = std::move(values);
}

void CustomReader::TakeOuter() {
  const MutexLock lock(values_mutex_);
  for (auto& [name, value] : values_) {
    *outer_.GetVar(name).GetMutable<LoDTensor>() = std::move(value);
  }
  values_.clear();
}

void CustomReader::ReadNextImpl(LoDTensorArray* out) {
  LoDTensorArray batch;
  uint64_t number = 0;
  if (!underlying()->ReadIfRunning(&batch, &number) || batch.empty()) return;
  CheckBatch(underlying()->contract(), wiring_.sources, batch, number);
  TakeOuter();
  // However the block ends, the memory of its batches is given back: it may be what a feeder waits for.
  const struct Release {
    const CustomReader& reader;
    ~Release() {
      for (const auto* variables : {&reader.sources_, &reader.sinks_}) {
        for (Variable* variable : *variables) {
          variable->GetMutable<LoDTensor>()->SetMemory(nullptr);
        }
      }
    }
  } release{*this};
  const MemoryPool::Use use(&pool_);
  for (size_t i = 0; i < batch.size(); ++i) {
    *sources_[i]->GetMutable<LoDTensor>() = std::move(batch[i]);
  }
  // A loop of the block need not end by itself: Shutdown, which waits for this call, ends it.
  struct Stopped : std::exception {};
  const std::function<void()>* const outer_hook = ScopedWaitHook::Current();
  const ScopedWaitHook hook([this, outer_hook] {
    if (outer_hook != nullptr) (*outer_hook)();
    if (state() == State::kStopped) throw Stopped{};
  });
  try {
    runner_.Run(inner_, {});
  } catch (const Stopped&) {
    return;
  }
  LoDTensorArray made;
  for (const Variable* sink : sinks_) {
    made.push_back(WrittenTensor(*sink));
  }
  *out = std::move(made);
}

namespace {

class CreateCustomReaderOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

  void Prepare(const BlockDesc& block) override {
    wiring_ = CustomReader::Check(block, desc());
    block_ = &block;
  }

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    HR_ENFORCE(block_ != nullptr, FailedPrecondition, "the operator has not been prepared with its program");
    CreateDecoratedReader(scope, Input("UnderlyingReader"), Output("Out"),
                          [this](const std::shared_ptr<ReaderBase>& below) {
                            return DecoratedReader::Make<CustomReader>(below, *block_, desc(), wiring_);
                          });
    if (wiring_.outer.empty()) return;
    std::map<std::string, LoDTensor> values;
    for (const std::string& name : wiring_.outer) values.emplace(name, WrittenTensor(scope.GetVar(name)));
    const auto reader = std::dynamic_pointer_cast<CustomReader>(GetReader(scope.GetVar(Output("Out"))));
    if (reader != nullptr) reader->SetOuter(std::move(values));
  }

  const BlockDesc* block_ = nullptr;
  CustomReader::Wiring wiring_;
};

HEADRACE_REGISTER_OP(create_custom_reader)
    .Comment(
        "Creates a reader that runs a block on each batch of another one. If it exists, the block gets the present "
        "values of the variables around it, which must be persistable tensors.")
    .Input("UnderlyingReader", "reader variable")
    .Output("Out", "reader variable")
    .Attr<BlockRef>("sub_block", "the block that is run")
    .Attr<std::vector<std::string>>("source_var_names", "variables of the block in which it finds the batch")
    .Attr<std::vector<std::string>>("sink_var_names", "variables of the block that are the new batch")
    .InferShape([](InferShapeContext& context) {
      DeclaredSpecs(context, "UnderlyingReader");
      // What the block leaves is seen when the operator is prepared.
      const VarDesc* out = context.OutputDesc("Out");
      DeclareReader(context, out == nullptr ? std::vector<TensorSpec>() : std::vector<TensorSpec>(out->reader));
    })
    .Operator<CreateCustomReaderOp>();

}  // namespace
}  // namespace headrace
