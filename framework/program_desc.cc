#include "framework/program_desc.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "framework/compile_time_infer_shape.h"
#include "framework/op_registry.h"
#include "framework/operator.h"
#include "framework/program_check.h"

namespace headrace {
namespace {

const std::vector<std::string>& NamesOf(const VarNameMap& slots, std::string_view slot) {
  static const std::vector<std::string> kNone;
  const auto it = slots.find(slot);
  return it == slots.end() ? kNone : it->second;
}

std::vector<std::string> AllNames(const VarNameMap& slots) {
  std::vector<std::string> all;
  for (const auto& [slot, names] : slots) {
    all.insert(all.end(), names.begin(), names.end());
  }
  return all;
}

std::string SlotsToString(const VarNameMap& slots) {
  std::string text;
  for (const auto& [slot, names] : slots) {
    text += (text.empty() ? "" : ", ") + slot + "=[";
    for (size_t i = 0; i < names.size(); ++i) {
      text += (i == 0 ? "" : ", ") + names[i];
    }
    text += ']';
  }
  return text;
}

void Print(std::ostream& out, const TensorSpec& spec) {
  out << DataTypeName(spec.dtype) << ToString(spec.dims);
  if (spec.lod_level != 0) {
    out << " lod " << spec.lod_level;
  }
}

}  // namespace

std::string_view VarKindName(VarKind kind) {
  switch (kind) {
    case VarKind::kLoDTensor:
      return "LoDTensor";
    case VarKind::kFeedMinibatch:
      return "FeedMinibatch";
    case VarKind::kFetchList:
      return "FetchList";
    case VarKind::kStepScopes:
      return "StepScopes";
    case VarKind::kLoDTensorArray:
      return "LoDTensorArray";
    case VarKind::kReader:
      return "Reader";
    case VarKind::kRaw:
      return "Raw";
  }
  Throw<InvalidArgument>(static_cast<int32_t>(kind), " is not a kind of variable");
}

const std::vector<std::string>& OpDesc::Input(std::string_view slot) const { return NamesOf(inputs, slot); }
const std::vector<std::string>& OpDesc::Output(std::string_view slot) const { return NamesOf(outputs, slot); }
std::vector<std::string> OpDesc::InputNames() const { return AllNames(inputs); }
std::vector<std::string> OpDesc::OutputNames() const { return AllNames(outputs); }

std::string OpDesc::ToString() const { return type + "(" + SlotsToString(inputs) + ") → " + SlotsToString(outputs); }

VarDesc& BlockDesc::Var(const std::string& name) {
  HR_ENFORCE(!name.empty() && name != kEmptyVarName, InvalidArgument, "'", name, "' cannot be the name of a variable");
  program_->Touch();
  if (const auto it = vars_by_name_.find(name); it != vars_by_name_.end()) {
    return *it->second;
  }
  auto& var = vars_.emplace_back(std::make_unique<VarDesc>());
  var->name = name;
  vars_by_name_.emplace(name, var.get());
  return *var;
}

const VarDesc* BlockDesc::FindVar(std::string_view name) const {
  for (const BlockDesc* block = this;; block = &program_->block(static_cast<size_t>(block->parent_))) {
    if (const auto it = block->vars_by_name_.find(name); it != block->vars_by_name_.end()) {
      return it->second;
    }
    if (block->parent_ < 0) {
      return nullptr;
    }
  }
}

const VarDesc& BlockDesc::GetVar(std::string_view name) const {
  const VarDesc* var = FindVar(name);
  HR_ENFORCE(var != nullptr, NotFound, "block ", index_, " and its ancestors declare no variable '", name, "'");
  return *var;
}

VarDesc& BlockDesc::MutableVar(std::string_view name) {
  auto& var = const_cast<VarDesc&>(GetVar(name));  // it belongs to this program
  program_->Touch();
  return var;
}

bool BlockDesc::HasLocalVar(std::string_view name) const { return vars_by_name_.find(name) != vars_by_name_.end(); }

void BlockDesc::RemoveVar(std::string_view name) {
  const auto it = vars_by_name_.find(name);
  HR_ENFORCE(it != vars_by_name_.end(), NotFound, "block ", index_, " has no variable '", name, "' to remove");
  const VarDesc* var = it->second;
  vars_by_name_.erase(it);
  std::erase_if(vars_, [var](const auto& v) { return v.get() == var; });
  program_->Touch();
}

std::vector<const VarDesc*> BlockDesc::LocalVars() const {
  std::vector<const VarDesc*> vars;
  vars.reserve(vars_.size());
  for (const auto& var : vars_) {
    vars.push_back(var.get());
  }
  return vars;
}

const OpDesc& BlockDesc::AppendOp(OpDesc op) { return InsertOp(ops_.size(), std::move(op)); }

const OpDesc& BlockDesc::InsertOp(size_t position, OpDesc op) {
  HR_ENFORCE(position <= ops_.size(), OutOfRange, "cannot insert an operator at ", position, " into a block of ",
             ops_.size());
  const std::string type = op.type;
  try {
    OpRegistry::Check(op);
    CheckVariablesExist(*this, op);
    CheckBlockRefs(*this, op);
    auto owned = std::make_unique<const OpDesc>(std::move(op));
    ops_.reserve(ops_.size() + 1);  // nothing may fail once shape inference has written to the outputs
    InferShapeAtCompileTime(this, *owned);
    program_->Touch();
    return **ops_.insert(ops_.begin() + static_cast<std::ptrdiff_t>(position), std::move(owned));
  } catch (Error& error) {
    error.SetOpType(type);
    throw;
  }
}

OpDesc& BlockDesc::MutableOp(size_t position) {
  HR_ENFORCE(position < ops_.size(), OutOfRange, "there is no operator ", position, " in a block of ", ops_.size());
  auto changeable = std::make_unique<OpDesc>(*ops_[position]);
  OpDesc& op = *changeable;
  ops_[position] = std::move(changeable);
  program_->Touch();
  return op;
}

void BlockDesc::RemoveOps(size_t begin, size_t end) {
  HR_ENFORCE(begin <= end && end <= ops_.size(), OutOfRange, "operators [", begin, ", ", end,
             ") are not within a block of ", ops_.size());
  ops_.erase(ops_.begin() + static_cast<std::ptrdiff_t>(begin), ops_.begin() + static_cast<std::ptrdiff_t>(end));
  program_->Touch();
}

ProgramDesc::ProgramDesc() { blocks_.push_back(std::make_unique<BlockDesc>(this, 0, -1)); }
ProgramDesc::~ProgramDesc() = default;

ProgramDesc::ProgramDesc(const ProgramDesc& other) : revision_(other.revision_) {
  for (const auto& from : other.blocks_) {
    auto& to = *blocks_.emplace_back(std::make_unique<BlockDesc>(this, from->index_, from->parent_));
    for (const auto& var : from->vars_) {
      auto& copy = to.vars_.emplace_back(std::make_unique<VarDesc>(*var));
      to.vars_by_name_.emplace(copy->name, copy.get());
    }
    for (const auto& op : from->ops_) {
      to.ops_.push_back(std::make_unique<const OpDesc>(*op));
    }
  }
}

BlockDesc& ProgramDesc::block(size_t index) { return const_cast<BlockDesc&>(std::as_const(*this).block(index)); }

const BlockDesc& ProgramDesc::block(size_t index) const {
  HR_ENFORCE(index < blocks_.size(), OutOfRange, "the program has ", blocks_.size(), " blocks, there is no block ",
             index);
  return *blocks_[index];
}

BlockDesc& ProgramDesc::AppendBlock(int32_t parent) {
  HR_ENFORCE(parent >= 0 && static_cast<size_t>(parent) < blocks_.size(), OutOfRange, "block ", parent,
             " cannot be a parent: the program has ", blocks_.size(), " blocks");
  Touch();
  return *blocks_.emplace_back(std::make_unique<BlockDesc>(this, static_cast<int32_t>(blocks_.size()), parent));
}

std::string ProgramDesc::ToString() const {
  std::ostringstream out;
  for (const auto& block : blocks_) {
    out << "block " << block->index_ << " (parent " << block->parent_ << ")\n";
    for (const auto& var : block->vars_) {
      out << "  var " << var->name << ": " << VarKindName(var->kind);
      if (var->kind == VarKind::kLoDTensor || var->kind == VarKind::kLoDTensorArray) {
        out << ' ';
        Print(out, var->tensor);
      }
      for (const TensorSpec& spec : var->reader) {
        out << ' ';
        Print(out, spec);
      }
      out << (var->persistable ? " persistable" : "") << (var->stop_gradient ? " stop_gradient" : "")
          << (var->is_parameter ? " parameter" : "") << '\n';
    }
    for (const auto& op : block->ops_) {
      out << "  op  " << op->ToString();
      for (const auto& [name, attr] : op->attrs) {
        out << ' ' << name << '=' << headrace::ToString(attr);
      }
      out << '\n';
    }
  }
  return out.str();
}

}  // namespace headrace
