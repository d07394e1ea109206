#include "framework/block_desc.h"

#include <utility>

#include "framework/compile_time_infer_shape.h"
#include "framework/op_registry.h"
#include "framework/operator.h"
#include "framework/program_check.h"
#include "framework/program_desc.h"

namespace headrace {

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

const OpDesc& BlockDesc::Append(std::string type, VarNameMap inputs, VarNameMap outputs, AttributeMap attrs) {
  std::vector<std::string> declared;
  try {
    for (const auto& [slot, names] : outputs) {
      for (const std::string& name : names) {
        if (name != kEmptyVarName && FindVar(name) == nullptr) {
          Var(name);
          declared.push_back(name);
        }
      }
    }
    return AppendOp({std::move(type), std::move(inputs), std::move(outputs), std::move(attrs)});
  } catch (...) {
    for (const std::string& name : declared) {
      RemoveVar(name);
    }
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

}  // namespace headrace
