// A list of operators and the variables that they use, in a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/export.h"
#include "framework/op_desc.h"
#include "framework/var_desc.h"

namespace headrace {

class ProgramDesc;

// Thread-safety: as the program that it is part of.
class HEADRACE_API BlockDesc {
 public:
  BlockDesc(ProgramDesc* program, int32_t index, int32_t parent) : program_(program), index_(index), parent_(parent) {}

  ProgramDesc& program() { return *program_; }
  const ProgramDesc& program() const { return *program_; }
  int32_t index() const { return index_; }
  int32_t parent() const { return parent_; }  // -1 for the root

  // The variable `name` of this very block, to be declared; created if it does not exist. Counts as a change of the
  // program. Throws InvalidArgument for an empty or reserved name.
  VarDesc& Var(const std::string& name);
  // The variable `name` of this block or of an ancestor; nullptr if there is none.
  const VarDesc* FindVar(std::string_view name) const;
  // As FindVar, but throws NotFound naming the variable.
  const VarDesc& GetVar(std::string_view name) const;
  // As GetVar, to change the declaration. Counts as a change of the program.
  VarDesc& MutableVar(std::string_view name);
  bool HasLocalVar(std::string_view name) const;
  // Throws NotFound if this very block lacks it. Operators that use it are the caller's to remove.
  void RemoveVar(std::string_view name);
  // In order of creation.
  std::vector<const VarDesc*> LocalVars() const;

  // Adds a checked operator: its type must be registered, its slots and attributes must be those that it declares
  // (missing attributes get their defaults), its variables must exist; then shapes and dtypes of its outputs are
  // inferred. Throws an error that names the operator and the problem, leaving the block unchanged.
  const OpDesc& AppendOp(OpDesc op);
  const OpDesc& InsertOp(size_t position, OpDesc op);
  // AppendOp after declaring the outputs that neither this block nor an ancestor declares.
  const OpDesc& Append(std::string type, VarNameMap inputs, VarNameMap outputs, AttributeMap attrs = {});
  void RemoveOps(size_t begin, size_t end);
  const std::vector<std::unique_ptr<const OpDesc>>& ops() const { return ops_; }
  // An operator, to change it. Counts as a change of the program; the new contents are checked when the program is
  // prepared. Throws OutOfRange.
  OpDesc& MutableOp(size_t position);

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  friend class ProgramDesc;
  ProgramDesc* program_;
  int32_t index_;
  int32_t parent_;
  std::vector<std::unique_ptr<VarDesc>> vars_;
  std::map<std::string, VarDesc*, std::less<>> vars_by_name_;
  std::vector<std::unique_ptr<const OpDesc>> ops_;
};

}  // namespace headrace
