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

bool VarDesc::IsTrainable() const {
  const auto it = attrs.find("trainable");
  const bool* trainable = it == attrs.end() ? nullptr : std::get_if<bool>(&it->second);
  return is_parameter && (trainable == nullptr || *trainable);
}

}  // namespace headrace
