// A program as data: blocks of variables and operators. Built by Python or by C++, checked as it is built, serialised
// to Protocol Buffers (framework.proto), run by an Executor. Protocol Buffers do not appear here, so that their version
// is nobody's concern.
//
// Thread-safety: none; a program is built by one thread. A finished program may be read by any number of threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/attribute.h"
#include "framework/data_type.h"
#include "framework/ddim.h"
#include "framework/export.h"

namespace headrace {

// What a variable holds; the values are those of VarType.Type in framework.proto.
enum class VarKind : int32_t {
  kLoDTensor = 7,
  kFeedMinibatch = 9,
  kFetchList = 10,
  kStepScopes = 11,
  kLoDTensorArray = 13,
  kReader = 15,
  kRaw = 17,
};
HEADRACE_API std::string_view VarKindName(VarKind kind);

// Shape, element type and LoD depth of a tensor that a program declares. -1 in `dims` is known only at run time.
struct TensorSpec {
  DDim dims;
  DataType dtype = DataType::kFloat32;
  int32_t lod_level = 0;
  bool operator==(const TensorSpec&) const = default;
};

struct VarDesc {
  std::string name;
  VarKind kind = VarKind::kLoDTensor;
  TensorSpec tensor;               // of a kLoDTensor or kLoDTensorArray
  std::vector<TensorSpec> reader;  // of a kReader: what it yields, in order
  bool persistable = false;        // lives in the executor's scope and survives a run
  bool stop_gradient = false;      // append_backward does not go past it
  bool is_parameter = false;       // trained by optimizers
};

// Slot name → names of the variables in it.
using VarNameMap = std::map<std::string, std::vector<std::string>, std::less<>>;

struct OpDesc {
  std::string type;
  VarNameMap inputs;
  VarNameMap outputs;
  AttributeMap attrs;

  // The variables of a slot; empty if the slot is absent.
  HEADRACE_API const std::vector<std::string>& Input(std::string_view slot) const;
  HEADRACE_API const std::vector<std::string>& Output(std::string_view slot) const;
  HEADRACE_API std::vector<std::string> InputNames() const;   // of all slots
  HEADRACE_API std::vector<std::string> OutputNames() const;  // of all slots

  // The attribute `name`. Throws NotFound, or TypeMismatch if it holds another type.
  template <typename T>
  const T& Attr(std::string_view name) const;

  // "conv2d(Input=[img], Filter=[conv_w]) → Output=[tmp_0]".
  HEADRACE_API std::string ToString() const;
};

class ProgramDesc;

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
  // inferred. Throws naming the operator and what is wrong, leaving the block as it was.
  const OpDesc& AppendOp(OpDesc op);
  const OpDesc& InsertOp(size_t position, OpDesc op);
  void RemoveOps(size_t begin, size_t end);
  const std::vector<std::unique_ptr<const OpDesc>>& ops() const { return ops_; }
  // An operator, to change it. Counts as a change of the program; what is written is checked when the program is
  // prepared. Throws OutOfRange.
  OpDesc& MutableOp(size_t position);

 private:
  friend class ProgramDesc;
  ProgramDesc* program_;
  int32_t index_;
  int32_t parent_;
  std::vector<std::unique_ptr<VarDesc>> vars_;
  std::map<std::string, VarDesc*, std::less<>> vars_by_name_;
  std::vector<std::unique_ptr<const OpDesc>> ops_;
};

class HEADRACE_API ProgramDesc {
 public:
  ProgramDesc();  // with one empty root block
  ProgramDesc(const ProgramDesc& other);
  ProgramDesc& operator=(const ProgramDesc&) = delete;
  ~ProgramDesc();

  BlockDesc& block(size_t index);  // OutOfRange
  const BlockDesc& block(size_t index) const;
  size_t num_blocks() const { return blocks_.size(); }
  BlockDesc& AppendBlock(int32_t parent);

  // framework.proto's ProgramDesc. Deterministic: equal programs give equal bytes.
  std::string Serialize() const;

  // Throws DataLoss if `bytes` is not a program, or one that contradicts itself (a block's parent, an operator's block,
  // a bad enum value); NotFound for an unregistered operator or a variable that no block declares.
  static std::unique_ptr<ProgramDesc> Parse(std::string_view bytes);

  // Grows with every change and whenever a declaration or an operator is handed out to be changed; while it stays what
  // it was, nothing has changed. References must not be kept to change the program later.
  uint64_t revision() const { return revision_; }
  void Touch() { ++revision_; }

  // A readable listing.
  std::string ToString() const;

 private:
  std::vector<std::unique_ptr<BlockDesc>> blocks_;
  uint64_t revision_ = 0;
};

}  // namespace headrace

#include "framework/program_desc_inl.h"
