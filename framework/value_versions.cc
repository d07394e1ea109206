#include "framework/value_versions.h"

#include <algorithm>
#include <utility>

#include "framework/errors.h"
#include "framework/gradient_influence.h"
#include "framework/op_role.h"

namespace headrace {

ValueVersions::ValueVersions(BlockDesc& block, size_t end, const ValueVersions* outer, size_t outer_index)
    : block_(block), end_(end), outer_(outer), outer_index_(outer_index) {
  for (size_t i = 0; i < block_.ops().size(); ++i) {
    if (HasRole(*block_.ops()[i], kRoleOptimize)) {
      continue;
    }
    const Access access(block_, *block_.ops()[i]);
    for (const std::string& name : access.writes) {
      std::vector<size_t>& indices = writers_[name];
      if (indices.empty() || indices.back() != i) {
        indices.push_back(i);
      }
    }
  }
}

size_t ValueVersions::Version(const std::string& name, size_t index, bool after) const {
  const auto it = writers_.find(name);
  if (it == writers_.end()) {
    return 0;
  }
  const auto& indices = it->second;
  const auto end = after ? std::upper_bound(indices.begin(), indices.end(), index)
                         : std::lower_bound(indices.begin(), indices.end(), index);
  return static_cast<size_t>(end - indices.begin());
}

std::string ValueVersions::Key(const std::string& name, size_t version) const {
  return IsArray(block_, name) || version == LastVersion(name) ? name : name + "@VERSION@" + std::to_string(version);
}

// Whether what `name` is after operator `index` will be there when the gradient is computed.
bool ValueVersions::Stays(const std::string& name, size_t index) const {
  const auto it = writers_.find(name);
  if (block_.HasLocalVar(name)) {
    return it == writers_.end() || it->second.back() <= index;
  }
  return it == writers_.end() && outer_ != nullptr && outer_->Stays(name, outer_index_);
}

std::string ValueVersions::SavedValue(const std::string& name, size_t index, bool after) {
  const VarDesc* var = block_.FindVar(name);
  if (var == nullptr || var->kind != VarKind::kLoDTensor) {
    return name;
  }
  const size_t version = Version(name, index, after);
  const auto writers = writers_.find(name);
  const bool is_last = writers == writers_.end() || version == writers->second.size();
  if (is_last && Stays(name, index)) {
    return name;
  }
  HR_ENFORCE(!var->persistable, InvalidArgument, "the gradient of '", block_.ops()[index]->type, "' needs '", name,
             "', which ", is_last ? "a later operator" : StrCat("'", block_.ops()[writers->second.back()]->type, "'"),
             " overwrites; append that one behind this backward pass");
  const auto [saved, is_new] = saved_.try_emplace(name + "@VERSION@" + std::to_string(version));
  if (is_new) {
    for (size_t i = 0; saved->second.empty() || block_.FindVar(saved->second) != nullptr; ++i) {
      saved->second = StrCat(name, "@SAVED@", version, i == 0 ? std::string() : StrCat("@", i));
    }
    saves_.push_back({index + (after ? 1 : 0), name, saved->second});
  }
  return saved->second;
}

void ValueVersions::InsertSaves() {
  std::sort(saves_.begin(), saves_.end(), [](const Save& a, const Save& b) {
    return a.position != b.position ? a.position > b.position : a.to < b.to;
  });
  for (const Save& save : saves_) {
    VarDesc& var = block_.Var(save.to);
    var.tensor = block_.GetVar(save.from).tensor;
    var.stop_gradient = true;
    OpDesc assign;
    assign.type = "assign";
    assign.inputs["X"] = {save.from};
    assign.outputs["Out"] = {save.to};
    assign.attrs[std::string(kOpRoleAttr)] = int32_t{kRoleBackward};
    block_.InsertOp(save.position, std::move(assign));
  }
}

}  // namespace headrace
