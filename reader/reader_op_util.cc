#include "reader/reader_op_util.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "framework/data_type.h"
#include "framework/errors.h"

namespace headrace {

OpRegistrar&& DeclareContractAttrs(OpRegistrar&& op) {
  return std::move(op)
      .Attr<std::vector<int64_t>>("shape_concat", "the dims of all tensors, one after the other; -1 fits anything")
      .Attr<std::vector<int32_t>>("ranks", "how many entries of shape_concat belong to each tensor")
      .Attr<std::vector<int32_t>>(
          "dtypes", "the element type of each tensor (values of VarType.Type); empty: float32 for all", {})
      .Attr<std::vector<int32_t>>("lod_levels", "depth of the LoD of each tensor; empty: 0 for all", {})
      .Attr<std::vector<int32_t>>(
          "need_check_feed", "for each tensor, 0 if its dims and LoD are not to be checked; empty: all are checked",
          {});
}

BatchContract ContractFromAttrs(const OpDesc& op) {
  const auto& shape_concat = op.Attr<std::vector<int64_t>>("shape_concat");
  const auto& ranks = op.Attr<std::vector<int32_t>>("ranks");
  const auto& dtypes = op.Attr<std::vector<int32_t>>("dtypes");
  const auto& lod_levels = op.Attr<std::vector<int32_t>>("lod_levels");
  const auto& need_check_feed = op.Attr<std::vector<int32_t>>("need_check_feed");

  const auto check_size = [&](std::string_view name, size_t size) {
    HR_ENFORCE(size == ranks.size() || size == 0, InvalidArgument, "'", op.type, "': ranks is about ", ranks.size(),
               " tensors, ", name, " about ", size);
  };
  check_size("dtypes", dtypes.size());
  check_size("lod_levels", lod_levels.size());
  check_size("need_check_feed", need_check_feed.size());

  BatchContract contract;
  size_t used = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    HR_ENFORCE(ranks[i] >= 0 && static_cast<size_t>(ranks[i]) <= shape_concat.size() - used, InvalidArgument, "'",
               op.type, "': ranks does not fit shape_concat, which has ", shape_concat.size(), " entries, at tensor ",
               i);
    const int32_t dtype = dtypes.empty() ? static_cast<int32_t>(DataType::kFloat32) : dtypes[i];
    HR_ENFORCE(IsDataType(dtype), InvalidArgument, "'", op.type, "': ", dtype, ", the dtype of tensor ", i,
               ", is not an element type");
    const auto begin = shape_concat.begin() + static_cast<std::ptrdiff_t>(used);
    contract.specs.push_back({.dims = DDim(begin, begin + ranks[i]),
                              .dtype = static_cast<DataType>(dtype),
                              .lod_level = lod_levels.empty() ? 0 : lod_levels[i]});
    used += static_cast<size_t>(ranks[i]);
  }
  HR_ENFORCE(used == shape_concat.size(), InvalidArgument, "'", op.type, "': shape_concat has ", shape_concat.size(),
             " entries, but ranks asks for ", used);
  for (const int32_t needed : need_check_feed) contract.checked.push_back(needed != 0);
  CheckContract(contract, "'" + op.type + "'");
  return contract;
}

BatchContract ContractOfRecords(const OpDesc& op) {
  BatchContract contract = ContractFromAttrs(op);
  contract.any_dtype = true;
  return contract;
}

uint64_t SeedAttr(const OpDesc& op) {
  const auto seed = static_cast<uint64_t>(op.Attr<int64_t>("seed"));
  if (seed != 0) {
    return seed;
  }
  std::random_device entropy;
  const uint64_t high = entropy();
  return high << 32 | entropy();
}

uint32_t PositiveAttr(const OpDesc& op, std::string_view name) {
  const auto value = op.Attr<int32_t>(name);
  HR_ENFORCE(value > 0, InvalidArgument, "attribute '", name, "' of '", op.type, "' must be positive, got ", value);
  return static_cast<uint32_t>(value);
}

void DeclareReader(InferShapeContext& context, const std::vector<TensorSpec>& specs) {
  if (VarDesc* out = context.OutputDesc("Out")) {
    out->kind = VarKind::kReader;
    out->persistable = true;
    out->reader = specs;
  }
}

const std::vector<TensorSpec>& DeclaredSpecs(InferShapeContext& context, HashedName slot) {
  const VarDesc* reader = context.InputDesc(slot);
  HR_ENFORCE(reader != nullptr, NotFound, "input slot '", slot, "' of '", context.op().type, "' holds no variable");
  HR_ENFORCE(reader->kind == VarKind::kReader, TypeMismatch, "variable '", reader->name, "' in input slot '", slot,
             "' of '", context.op().type, "' is a ", VarKindName(reader->kind), ", expected a reader");
  return reader->reader;
}

void DeclareReaderLikeUnderlying(InferShapeContext& context) {
  DeclareReader(context, DeclaredSpecs(context, "UnderlyingReader"));
}

std::shared_ptr<ReaderBase> GetReader(const Variable& variable) {
  std::shared_ptr<ReaderBase> reader = variable.initialized() ? variable.Get<ReaderHolder>().Get() : nullptr;
  if (reader == nullptr) {
    FailedPrecondition error(
        StrCat("the reader '", variable.name(),
               "' has not been created yet: run the program that creates it, the startup program, first"));
    error.SetVariable(variable.name());
    throw error;
  }
  return reader;
}

void CreateReader(const Scope& scope, const std::string& output,
                  const std::function<std::shared_ptr<ReaderBase>()>& make) {
  auto* holder = scope.GetVar(output).GetMutable<ReaderHolder>();
  if (holder->Get() == nullptr) {
    holder->Reset(make());
  }
}

void CreateDecoratedReader(
    const Scope& scope, const std::string& input, const std::string& output,
    const std::function<std::shared_ptr<ReaderBase>(const std::shared_ptr<ReaderBase>& below)>& make) {
  const std::shared_ptr<ReaderBase> below = GetReader(scope.GetVar(input));
  auto* holder = scope.GetVar(output).GetMutable<ReaderHolder>();
  const std::shared_ptr<ReaderBase> existing = holder->Get();
  if (existing == nullptr || existing->underlying() != below.get()) {
    holder->Reset(make(below));
  }
}

}  // namespace headrace
