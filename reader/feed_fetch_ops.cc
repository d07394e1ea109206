// feed and fetch: a program's arguments and results, numbered, in lists of tensors. Fluid's saved inference programs
// have them.
#include <cstddef>
#include <cstdint>
#include <string>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "reader/batch_check.h"

namespace headrace {
namespace {

// The list, whose kind is checked, and its column: there are never more columns than operators.
size_t ColumnOf(const OpDesc& op, const BlockDesc& block, const std::string& list, VarKind kind) {
  const VarDesc& desc = block.GetVar(list);
  HR_ENFORCE(desc.kind == kind, TypeMismatch, "'", list, "' is a ", VarKindName(desc.kind), ", but '", op.type,
             "' needs a ", VarKindName(kind));
  const auto column = op.Attr<int32_t>("col");
  HR_ENFORCE(column >= 0 && static_cast<size_t>(column) < block.ops().size(), OutOfRange, "attribute 'col' of '",
             op.type, "': expected one of the ", block.ops().size(), " operators of its block at most, got ", column);
  return static_cast<size_t>(column);
}

class FeedOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

  void Prepare(const BlockDesc& block) override {
    HR_ENFORCE(block.index() == 0, InvalidArgument, "'feed' belongs into block 0, not into block ", block.index());
    column_ = ColumnOf(desc(), block, Input("X"), VarKind::kFeedMinibatch);
    const VarDesc& out = block.GetVar(Output("Out"));
    HR_ENFORCE(out.kind == VarKind::kLoDTensor && !out.persistable, InvalidArgument, "'", out.name,
               "' in output slot 'Out' of 'feed' must be a LoDTensor that does not persist");
    contract_.specs = {out.tensor};
  }

 private:
  // The executor has emptied Out, unless it has fed it by its name.
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    LoDTensor* out = ctx.Output("Out");
    if (out->initialized()) return;
    const std::string& name = ctx.OutputVar("Out")->name();
    const Variable* list = ctx.InputVar("X");
    const LoDTensorArray none;
    const LoDTensorArray& given = list != nullptr && list->initialized() ? list->Get<LoDTensorArray>() : none;
    if (column_ >= given.size() || !given[column_].initialized()) {
      FailedPrecondition error(
          StrCat("'", name, "' is fed neither by its name nor in column ", column_, " of '", Input("X"), "'"));
      error.SetVariable(name);
      throw error;
    }
    CheckBatch(contract_, {name}, {given[column_]}, runs_++);
    *out = given[column_];
  }

  size_t column_ = 0;
  BatchContract contract_;
  uint64_t runs_ = 0;
};

class FetchOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

  void Prepare(const BlockDesc& block) override {
    column_ = ColumnOf(desc(), block, Output("Out"), VarKind::kFetchList);
  }

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const LoDTensor& tensor = ctx.Input("X");
    auto* list = ctx.OutputAs<LoDTensorArray>("Out");
    if (column_ >= list->size()) list->resize(column_ + 1);
    (*list)[column_] = LoDTensor();  // what was fetched before may be somebody's by now
    (*list)[column_].CopyFrom(tensor);
    (*list)[column_].set_lod(tensor.lod());
  }

  size_t column_ = 0;
};

HEADRACE_REGISTER_OP(feed)
    .Comment("Takes a tensor from a list that the caller has filled. Does nothing if Out is fed by its name.")
    .Input("X", "FeedMinibatch: the list")
    .Output("Out", "the tensor, which must fit its declaration; shares its memory, until the end of the run")
    .Attr<int32_t>("col", "the tensor's place in the list")
    .Operator<FeedOp>();

HEADRACE_REGISTER_OP(fetch)
    .Comment("Puts a copy of a tensor into a list.")
    .Input("X", "any tensor")
    .Output("Out", "FetchList: the list, which grows as it has to")
    .Attr<int32_t>("col", "the tensor's place in the list")
    .Operator<FetchOp>();

}  // namespace
}  // namespace headrace
