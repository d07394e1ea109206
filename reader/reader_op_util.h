// Common code of operators that create readers, including those of plugins.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "framework/export.h"
#include "framework/op_registry.h"
#include "framework/program_desc.h"
#include "framework/scope.h"
#include "reader/batch_check.h"
#include "reader/reader.h"

namespace headrace {

// The attributes by which an operator that creates a source declares the form of its batches:
//   shape_concat     the dims of all tensors, one after the other; -1 fits anything
//   ranks            how many of them belong to each tensor
//   dtypes           DataType of each tensor; empty: kFloat32
//   lod_levels       depth of each tensor's LoD; empty: 0 for all
//   need_check_feed  0 for each tensor that is not to be checked, else 1; empty: all are checked
HEADRACE_API OpRegistrar&& DeclareContractAttrs(OpRegistrar&& op);

// Reads them. Throws InvalidArgument saying which of them do not fit together.
HEADRACE_API BatchContract ContractFromAttrs(const OpDesc& op);
// The same for a reader of files: the contents of a record count, including the dtype, if the tensor is not to be
// checked.
HEADRACE_API BatchContract ContractOfRecords(const OpDesc& op);

// The attribute `name`, an int32. Throws InvalidArgument unless it is positive.
HEADRACE_API uint32_t PositiveAttr(const OpDesc& op, std::string_view name);

// The attribute "seed", an int64. For 0 another seed each time, from the system's entropy.
HEADRACE_API uint64_t SeedAttr(const OpDesc& op);

// Declares the variable in slot Out to be a reader of these tensors. It is persistable: a reader lives from run to run.
HEADRACE_API void DeclareReader(InferShapeContext& context, const std::vector<TensorSpec>& specs);
// The form of the batches of the reader in slot UnderlyingReader, by the program. Throws TypeMismatch if it is not a
// reader.
HEADRACE_API const std::vector<TensorSpec>& DeclaredSpecs(InferShapeContext& context, HashedName slot);
// The shape inference of a decorated reader that does not change the form of batches.
HEADRACE_API void DeclareReaderLikeUnderlying(InferShapeContext& context);

// The reader that the variable holds. Throws FailedPrecondition naming the variable if there is none yet.
HEADRACE_API std::shared_ptr<ReaderBase> GetReader(const Variable& variable);

// The RunImpl of operators that create a reader: puts make() into `output`, unless it holds a reader already; so
// running twice is harmless.
HEADRACE_API void CreateReader(const Scope& scope, const std::string& output,
                               const std::function<std::shared_ptr<ReaderBase>()>& make);

// The RunImpl of operators that create a decorated reader: puts make(underlying) into `output`, unless it holds one
// over the very same reader already; so running twice is harmless, and a program continues with a new reader below.
HEADRACE_API void CreateDecoratedReader(
    const Scope& scope, const std::string& input, const std::string& output,
    const std::function<std::shared_ptr<ReaderBase>(const std::shared_ptr<ReaderBase>& below)>& make);

}  // namespace headrace
