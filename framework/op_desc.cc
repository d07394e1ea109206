#include "framework/op_desc.h"

#include <algorithm>
#include <cctype>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "framework/op_role.h"

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

// Where `message` has "<direction> <slot>" or "<direction> slot '<slot>'" for the first time; npos: nowhere.
size_t Mention(std::string_view message, std::string_view direction, std::string_view slot) {
  const std::string name = StrCat(direction, " ", slot);
  const auto is_part_of_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '@'; };
  size_t at = message.find(name);
  while (at != std::string_view::npos && at + name.size() != message.size() &&
         is_part_of_name(static_cast<unsigned char>(message[at + name.size()]))) {
    at = message.find(name, at + 1);
  }
  return std::min(at, message.find(StrCat(direction, " slot '", slot, "'")));
}

// What a message is about comes first in it; what it is compared with, later. Null: it mentions no slot.
const std::vector<std::string>* NamesItIsAbout(std::string_view message, const OpDesc& op) {
  const std::vector<std::string>* about = nullptr;
  size_t first = std::string_view::npos;
  for (const auto& [direction, slots] : {std::pair("input", &op.inputs), std::pair("output", &op.outputs)}) {
    for (const auto& [slot, names] : *slots) {
      if (const size_t at = Mention(message, direction, slot); at < first) {
        first = at;
        about = &names;
      }
    }
  }
  return about;
}

void AddContext(const OpDesc& op, Error* error) {
  if (!error->op_type().empty()) {
    return;  // it is about an operator within this one
  }
  const std::vector<std::string>* names = NamesItIsAbout(error->message(), op);
  if (names == nullptr) {
    error->SetOpType(op.type, SlotsToString(op.inputs.empty() ? op.outputs : op.inputs));
    return;
  }
  error->SetOpType(op.type);
  std::string list;
  for (const std::string& name : *names) {
    list += (list.empty() ? "" : "', '") + name;
  }
  error->SetVariable(list);
}

template <typename E>
[[noreturn]] void ThrowWithContext(const OpDesc& op, std::string message) {
  E error(std::move(message));
  AddContext(op, &error);
  throw error;
}

}  // namespace

const std::vector<std::string>& OpDesc::Input(std::string_view slot) const { return NamesOf(inputs, slot); }
const std::vector<std::string>& OpDesc::Output(std::string_view slot) const { return NamesOf(outputs, slot); }
std::vector<std::string> OpDesc::InputNames() const { return AllNames(inputs); }
std::vector<std::string> OpDesc::OutputNames() const { return AllNames(outputs); }

std::vector<BlockRef> OpDesc::Blocks() const {
  std::vector<BlockRef> blocks;
  for (const auto& [name, attr] : attrs) {
    if (const auto* block = std::get_if<BlockRef>(&attr)) {
      blocks.push_back(*block);
    }
  }
  return blocks;
}

void OpDesc::RethrowWithContext() const {
  try {
    throw;
  } catch (Error& error) {
    AddContext(*this, &error);
    throw;
  } catch (const std::bad_alloc&) {
    ThrowWithContext<ResourceExhausted>(*this, "out of memory");
  } catch (const std::length_error& error) {
    ThrowWithContext<ResourceExhausted>(*this, StrCat("something is longer than it can be: ", error.what()));
  } catch (const std::out_of_range& error) {
    ThrowWithContext<OutOfRange>(*this, error.what());
  } catch (const std::invalid_argument& error) {
    ThrowWithContext<InvalidArgument>(*this, error.what());
  } catch (const std::domain_error& error) {
    ThrowWithContext<InvalidArgument>(*this, error.what());
  } catch (const std::system_error& error) {
    ThrowWithContext<IoError>(*this, error.what());
  } catch (const std::exception& error) {
    ThrowWithContext<FailedPrecondition>(*this, error.what());
  }
}

std::string OpDesc::ToString() const { return type + "(" + SlotsToString(inputs) + ") → " + SlotsToString(outputs); }

int32_t RoleOf(const OpDesc& op) {
  const auto it = op.attrs.find(kOpRoleAttr);
  const int32_t* role = it == op.attrs.end() ? nullptr : std::get_if<int32_t>(&it->second);
  return role == nullptr ? int32_t{kRoleForward} : *role;
}

}  // namespace headrace
