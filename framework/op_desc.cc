#include "framework/op_desc.h"

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

}  // namespace

const std::vector<std::string>& OpDesc::Input(std::string_view slot) const { return NamesOf(inputs, slot); }
const std::vector<std::string>& OpDesc::Output(std::string_view slot) const { return NamesOf(outputs, slot); }
std::vector<std::string> OpDesc::InputNames() const { return AllNames(inputs); }
std::vector<std::string> OpDesc::OutputNames() const { return AllNames(outputs); }

std::string OpDesc::ToString() const { return type + "(" + SlotsToString(inputs) + ") → " + SlotsToString(outputs); }

}  // namespace headrace
