#include "framework/program_desc.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "framework/errors.h"

namespace headrace {
namespace {

void Print(std::ostream& out, const TensorSpec& spec) {
  out << DataTypeName(spec.dtype) << ToString(spec.dims);
  if (spec.lod_level != 0) {
    out << " lod " << spec.lod_level;
  }
}

}  // namespace

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

// The blocks that both programs have exchange their contents, so that a reference to a block stays good.
void ProgramDesc::Swap(ProgramDesc* other) {
  const size_t shared = std::min(blocks_.size(), other->blocks_.size());
  for (size_t i = 0; i < shared; ++i) {
    BlockDesc& mine = *blocks_[i];
    BlockDesc& theirs = *other->blocks_[i];
    std::swap(mine.parent_, theirs.parent_);
    mine.vars_.swap(theirs.vars_);
    mine.vars_by_name_.swap(theirs.vars_by_name_);
    mine.ops_.swap(theirs.ops_);
  }
  auto& fewer = blocks_.size() == shared ? blocks_ : other->blocks_;
  auto& more = blocks_.size() == shared ? other->blocks_ : blocks_;
  for (size_t i = shared; i < more.size(); ++i) {
    more[i]->program_ = &more == &blocks_ ? other : this;
    fewer.push_back(std::move(more[i]));
  }
  more.resize(shared);
  revision_ = other->revision_ = std::max(revision_, other->revision_) + 1;
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
