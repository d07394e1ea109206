// The declaration of a variable in a program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "framework/attribute.h"
#include "framework/data_type.h"
#include "framework/ddim.h"
#include "framework/export.h"

namespace headrace {

// The kind of a variable; the values are those of VarType.Type in framework.proto.
enum class VarKind : int32_t {
  kLoDTensor = 7,
  kSelectedRows = 8,
  kFeedMinibatch = 9,
  kFetchList = 10,
  kStepScopes = 11,
  kLoDRankTable = 12,
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
  std::string name;  // that it is declared by, which must not change
  VarKind kind = VarKind::kLoDTensor;
  TensorSpec tensor;               // of a kLoDTensor, kLoDTensorArray or kSelectedRows
  std::vector<TensorSpec> reader;  // of a kReader: the tensors of a batch, in order
  bool persistable = false;        // lives in the executor's scope and survives a run
  bool stop_gradient = false;      // append_backward does not go past it
  bool is_parameter = false;       // trained by optimizers
  // Further properties that are stored with it, for code that builds on it: how a parameter is trained, say. Known
  // here are "trainable"; "is_data": it is to be fed; and "need_check_feed": as it is declared. All are bools.
  AttributeMap attrs;

  // The attribute `attr` if it is a bool, otherwise `default_value`.
  HEADRACE_API bool BoolAttr(std::string_view attr, bool default_value) const;
  // Whether it is to be fed, and need not be as it is declared: the run checks what it is.
  HEADRACE_API bool MayBeFedOtherwise() const;
  // Whether it is a parameter that optimizers change by default.
  HEADRACE_API bool IsTrainable() const;
};

}  // namespace headrace
