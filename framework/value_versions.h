// The values that the variables of a block stand for, one after another, and which of them a backward pass must save.
//
// Version 0 of a name is what the block finds; each operator that writes the name makes the next one. An operator of
// the backward pass runs after all of the forward pass and may need a value that has been overwritten by then, in the
// same step of a loop or in a later one. Such a value is copied when it is there, by an `assign` next to the operator
// that reads or writes it, into a variable "name@SAVED@n" of its block.
//
// An array is written element by element and keeps what is not written, so all its versions are one.
//
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "framework/block_desc.h"

namespace headrace {

class ValueVersions {
 public:
  // Of the operators of `block`, those from `end` on come after what is differentiated: they make no versions that
  // count, but may overwrite. `outer`: the values of the block around this one, whose operator `outer_index` runs this
  // one; nullptr: the root block. Both must outlive this. What an optimizer's operator writes stays the same value, as
  // in Fluid.
  ValueVersions(BlockDesc& block, size_t end, const ValueVersions* outer, size_t outer_index);

  // How many operators have written `name` before operator `index`, that one included if `after`.
  size_t Version(const std::string& name, size_t index, bool after) const;
  size_t LastVersion(const std::string& name) const { return Version(name, end_, false); }
  // The operator that has made a version, from 1 on.
  size_t Writer(const std::string& name, size_t version) const { return writers_.at(name)[version - 1]; }

  // A key stands for one value: the name for its last version, and "name@VERSION@n" for the others.
  std::string Key(const std::string& name, size_t version) const;
  std::string KeyBefore(const std::string& name, size_t index) const { return Key(name, Version(name, index, false)); }
  std::string KeyAfter(const std::string& name, size_t index) const { return Key(name, Version(name, index, true)); }
  static std::string NameOf(const std::string& key) { return key.substr(0, key.find("@VERSION@")); }

  // The variable that holds, when the gradient is computed, what `name` is before or after operator `index`: itself, or
  // one in which the value will be saved. Throws InvalidArgument if a later operator overwrites a persistable variable.
  std::string SavedValue(const std::string& name, size_t index, bool after);

  // Puts the operators that save into the block. The indices of its operators are no longer those of before.
  void InsertSaves();

 private:
  struct Save {
    size_t position;  // in the block: it is inserted before this operator
    std::string from;
    std::string to;
  };

  bool Stays(const std::string& name, size_t index) const;

  BlockDesc& block_;
  const size_t end_;
  const ValueVersions* const outer_;
  const size_t outer_index_;
  std::map<std::string, std::vector<size_t>> writers_;  // which operators write a variable, those after `end` included
  std::map<std::string, std::string> saved_;            // "name@VERSION@n" → variable
  std::vector<Save> saves_;
};

}  // namespace headrace
