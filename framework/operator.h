// A runnable operator, made from an OpDesc.
//
// Most operators are a kernel, a function of an ExecutionContext, registered per dtype (op_registry.h). An operator
// that deals with scopes or with variables that are not tensors (readers, control flow) derives from OperatorBase.
//
// Thread-safety: an operator is run by one thread at a time; two operators may run at once where they do not share
// variables.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "framework/data_type.h"
#include "framework/ddim.h"
#include "framework/export.h"
#include "framework/hashed_name.h"
#include "framework/lod_tensor.h"
#include "framework/place.h"
#include "framework/program_desc.h"
#include "framework/scope.h"
#include "framework/scope_bindings.h"
#include "framework/selected_rows.h"

namespace headrace {

// Name of the gradient of a variable.
inline std::string GradVarName(const std::string& name) { return name + "@GRAD"; }
// Stands in a slot for a gradient that is not needed.
inline constexpr std::string_view kEmptyVarName = "@EMPTY@";

// The attributes of an operator, found by the hashes of their names. Refers to the OpDesc, which must not change.
//
// Thread-safety: any number of threads may read it.
class HEADRACE_API AttributeIndex {
 public:
  explicit AttributeIndex(const OpDesc& op);

  // nullptr if there is none.
  const Attribute* Find(HashedName name) const;
  bool Has(HashedName name) const { return Find(name) != nullptr; }

  // Throws as OpDesc::Attr does.
  template <typename T>
  const T& Attr(HashedName name) const {
    const Attribute* attr = Find(name);
    const T* value = attr == nullptr ? nullptr : std::get_if<T>(attr);
    return value != nullptr ? *value : op_.Attr<T>(name.ToString());
  }

  // An attribute that is a string, for comparisons: Text("mode") == "edge". Throws as Attr.
  HashedName Text(HashedName name) const;

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  struct Entry {
    HashedName name;
    const Attribute* attr;
    HashedName text;  // its value, if that is a string
  };

  const Entry* FindEntry(HashedName name) const;

  const OpDesc& op_;
  std::vector<Entry> entries_;
};

// The context of a kernel: its variables, resolved, and its attributes.
class HEADRACE_API ExecutionContext {
 public:
  struct Slot {
    HashedName name;                   // part of the OpDesc
    std::vector<Variable*> variables;  // nullptr where the OpDesc says kEmptyVarName
  };

  ExecutionContext(const OpDesc& op, const AttributeIndex& attrs, std::vector<Slot> inputs, std::vector<Slot> outputs)
      : op_(op), attrs_(attrs), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}

  const OpDesc& op() const { return op_; }
  const AttributeIndex& attrs() const { return attrs_; }
  template <typename T>
  const T& Attr(HashedName name) const {
    return attrs_.Attr<T>(name);
  }
  HashedName Text(HashedName attr) const { return attrs_.Text(attr); }

  bool HasInput(HashedName slot, size_t i = 0) const;
  bool HasOutput(HashedName slot, size_t i = 0) const;
  size_t InputSize(HashedName slot) const;
  size_t OutputSize(HashedName slot) const;

  // Throw NotFound naming slot and operator if the slot is empty, FailedPrecondition naming the variable if it holds no
  // tensor yet.
  const LoDTensor& Input(HashedName slot, size_t i = 0) const;
  LoDTensor* Output(HashedName slot, size_t i = 0) const;
  // nullptr if the slot is empty.
  const LoDTensor* InputOrNull(HashedName slot, size_t i = 0) const;
  LoDTensor* OutputOrNull(HashedName slot, size_t i = 0) const;

  // Slots that take SelectedRows (see SlotFlags). The first is false, too, if the slot is empty; the others throw as
  // Input and Output do; the contents of an input have been checked.
  bool IsSelectedRows(HashedName slot, size_t i = 0) const;
  const SelectedRows& InputRows(HashedName slot, size_t i = 0) const;
  SelectedRows* OutputRows(HashedName slot, size_t i = 0) const;

  Variable* InputVar(HashedName slot, size_t i = 0) const;   // nullptr if absent
  Variable* OutputVar(HashedName slot, size_t i = 0) const;  // nullptr if absent
  // Throws as Input does if the slot is empty.
  const Variable& InputVariable(HashedName slot, size_t i = 0) const { return PresentVar(inputs_, "input", slot, i); }
  // The contents of a variable that is no tensor: an array, a rank table. Throw as Input and Output do, and
  // TypeMismatch if it holds something else.
  template <typename T>
  const T& InputAs(HashedName slot, size_t i = 0) const {
    return PresentVar(inputs_, "input", slot, i).Get<T>();
  }
  template <typename T>
  T* OutputAs(HashedName slot, size_t i = 0) const {
    return PresentVar(outputs_, "output", slot, i).GetMutable<T>();
  }
  const std::vector<Slot>& inputs() const { return inputs_; }
  // Call visit(Variable*) for each variable of the slots.
  template <typename Visit>
  void ForEachInput(Visit&& visit) const {
    ForEachIn(inputs_, visit);
  }
  template <typename Visit>
  void ForEachOutput(Visit&& visit) const {
    ForEachIn(outputs_, visit);
  }

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  template <typename Visit>
  static void ForEachIn(const std::vector<Slot>& slots, Visit& visit) {
    for (const Slot& slot : slots) {
      for (Variable* variable : slot.variables) {
        if (variable != nullptr) {
          visit(variable);
        }
      }
    }
  }

  Variable& PresentVar(const std::vector<Slot>& slots, std::string_view direction, HashedName slot, size_t i) const;

  const OpDesc& op_;
  const AttributeIndex& attrs_;
  std::vector<Slot> inputs_;
  std::vector<Slot> outputs_;
};

class HEADRACE_API OperatorBase {
 public:
  explicit OperatorBase(OpDesc desc) : desc_(std::move(desc)), attrs_(desc_) {}
  virtual ~OperatorBase();
  OperatorBase(const OperatorBase&) = delete;
  OperatorBase& operator=(const OperatorBase&) = delete;

  const OpDesc& desc() const { return desc_; }
  const std::string& Type() const { return desc_.type; }

  // Called once, before the first Run, with the block that the operator is part of, which outlives it. For operators
  // that run other blocks of its program.
  virtual void Prepare(const BlockDesc& block);

  // Lets go of whatever the operator keeps from run to run inside the scope it ran on; it may be run again. An operator
  // that keeps something itself calls this one, too.
  virtual void Unbind();

  // Runs on the variables that `scope` has under the names of the OpDesc. Errors come out with the operator's type as
  // context.
  void Run(const Scope& scope, const Place& place);

 protected:
  // The only variable of a slot. Throws InvalidArgument if the slot does not hold exactly one.
  const std::string& Input(std::string_view slot) const;
  const std::string& Output(std::string_view slot) const;
  const std::vector<std::string>& Inputs(std::string_view slot) const { return desc_.Input(slot); }
  const std::vector<std::string>& Outputs(std::string_view slot) const { return desc_.Output(slot); }
  template <typename T>
  const T& Attr(HashedName name) const {
    return attrs_.Attr<T>(name);
  }

  // The variables of the slots. They are looked up at the first run on a scope, and again only when it has changed.
  // Throws NotFound, with the variable, if the scope lacks one.
  const ExecutionContext& Bind(const Scope& scope);
  // The same, for an operator that keeps them itself.
  ExecutionContext LookUp(const Scope& scope) const;

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  virtual void RunImpl(const Scope& scope, const Place& place) = 0;

  const OpDesc desc_;
  const AttributeIndex attrs_;
  ScopeBindings<ExecutionContext> bindings_;
};

// The context of shape inference: the same function runs at compile time, over VarDescs with unknown (-1) dimensions,
// and before each run of a kernel, over the tensors.
class HEADRACE_API InferShapeContext {
 public:
  virtual ~InferShapeContext();

  virtual const OpDesc& op() const = 0;
  virtual const AttributeIndex& attrs() const = 0;
  virtual bool IsRuntime() const = 0;
  virtual bool HasInput(HashedName slot, size_t i = 0) const = 0;
  virtual bool HasOutput(HashedName slot, size_t i = 0) const = 0;
  virtual size_t InputSize(HashedName slot) const = 0;
  virtual size_t OutputSize(HashedName slot) const = 0;

  // Throw NotFound naming slot and operator if the slot is empty. SelectedRows have the dims of the whole tensor.
  virtual DDim InputDim(HashedName slot, size_t i = 0) const = 0;
  virtual DataType InputType(HashedName slot, size_t i = 0) const = 0;
  virtual int32_t InputLoDLevel(HashedName slot, size_t i = 0) const = 0;

  // Do nothing if the slot is empty.
  virtual void SetOutputDim(HashedName slot, const DDim& dims, size_t i = 0) = 0;
  // At run time the kernel chooses the type when it asks for the memory; then this does nothing.
  virtual void SetOutputType(HashedName slot, DataType type, size_t i = 0) = 0;
  // Gives the output the LoD of the input (at compile time: its depth). An output to which neither this nor
  // SetOutputLoDLevel is applied has no LoD.
  virtual void ShareLoD(HashedName input, HashedName output, size_t i = 0, size_t j = 0) = 0;

  // The depth of the LoD that the kernel gives the output; does nothing at run time.
  virtual void SetOutputLoDLevel(HashedName slot, int32_t level, size_t i = 0) = 0;

  template <typename T>
  const T& Attr(HashedName name) const {
    return attrs().Attr<T>(name);
  }
  HashedName Text(HashedName attr) const { return attrs().Text(attr); }

  // Whether an input holds SelectedRows; only in slots that take them.
  virtual bool InputIsSelectedRows(HashedName slot, size_t i = 0) const = 0;
  // Declares an output to hold SelectedRows; otherwise it becomes a tensor if its slot may hold either. Does nothing at
  // run time.
  virtual void SetOutputSelectedRows(HashedName slot, size_t i = 0) = 0;

  // The declaration of a variable, for operators whose variables are not tensors (a reader's specs, say). nullptr if
  // the slot is empty, and at run time.
  virtual const VarDesc* InputDesc(HashedName slot, size_t i = 0) const = 0;
  virtual VarDesc* OutputDesc(HashedName slot, size_t i = 0) = 0;

  // Whether an output is declared to hold SelectedRows or, at run time, holds them.
  virtual bool OutputIsSelectedRows(HashedName slot, size_t i = 0) const = 0;

  // dims, dtype and LoD of the output become those of the input.
  void ShareAll(HashedName input, HashedName output);
};

}  // namespace headrace
