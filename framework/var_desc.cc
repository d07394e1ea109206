#include "framework/var_desc.h"

#include "framework/errors.h"

namespace headrace {

std::string_view VarKindName(VarKind kind) {
  switch (kind) {
    case VarKind::kLoDTensor:
      return "LoDTensor";
    case VarKind::kSelectedRows:
      return "SelectedRows";
    case VarKind::kFeedMinibatch:
      return "FeedMinibatch";
    case VarKind::kFetchList:
      return "FetchList";
    case VarKind::kStepScopes:
      return "StepScopes";
    case VarKind::kLoDRankTable:
      return "LoDRankTable";
    case VarKind::kLoDTensorArray:
      return "LoDTensorArray";
    case VarKind::kReader:
      return "Reader";
    case VarKind::kRaw:
      return "Raw";
  }
  Throw<InvalidArgument>(static_cast<int32_t>(kind), " is not a kind of variable");
}

bool VarDesc::BoolAttr(std::string_view attr, bool default_value) const {
  const auto it = attrs.find(attr);
  const bool* value = it == attrs.end() ? nullptr : std::get_if<bool>(&it->second);
  return value == nullptr ? default_value : *value;
}

bool VarDesc::MayBeFedOtherwise() const {
  return BoolAttr("is_data", false) && !BoolAttr("need_check_feed", false) && !is_parameter;
}

bool VarDesc::IsTrainable() const { return is_parameter && BoolAttr("trainable", true); }

}  // namespace headrace
