// Data that operators keep about the scopes they run on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "framework/scope.h"

namespace headrace {

// Keeps a Binding, pointers to variables mostly, for each scope, and makes it again when a look-up through the scope
// may find something else. Remembers some scopes, so that the steps of a loop may have one each: they come in the same
// order every time.
//
// Thread-safety: none; it belongs to an operator, which one thread runs at a time.
template <typename Binding>
class ScopeBindings {
 public:
  // The binding of `scope`; make() gives a Binding. Valid until the next call.
  template <typename Make>
  Binding& At(const Scope& scope, Make&& make) {
    const auto is_of_scope = [&scope](const Entry& entry) { return entry.scope_id == scope.id(); };
    auto found = entries_.begin() + static_cast<std::ptrdiff_t>(expected_);
    if (found == entries_.end() || !is_of_scope(*found)) {
      found = std::find_if(entries_.begin(), entries_.end(), is_of_scope);
    }
    const uint64_t revision = scope.revision();
    if (found == entries_.end()) {
      if (entries_.size() == kMaxEntries) {
        Clear();
      }
      found = entries_.insert(entries_.end(), Entry{scope.id(), revision, std::make_unique<Binding>(make())});
    } else if (found->scope_revision != revision) {
      *found = Entry{scope.id(), revision, std::make_unique<Binding>(make())};
    }
    expected_ = static_cast<size_t>(found - entries_.begin() + 1) % entries_.size();
    return *found->binding;
  }

  void Clear() {
    entries_.clear();
    expected_ = 0;
  }

 private:
  friend struct AbiLayout;                     // see op_library_abi.h
  static constexpr size_t kMaxEntries = 2048;  // so that those of scopes which are gone do not add up

  struct Entry {
    uint64_t scope_id;
    uint64_t scope_revision;
    std::unique_ptr<Binding> binding;
  };

  std::vector<Entry> entries_;
  size_t expected_ = 0;  // the entry that the next run probably uses
};

}  // namespace headrace
