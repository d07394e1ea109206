// Mutates programs as programs, so that most of them pass the checks and reach the kernels: variables and operators are
// added, removed and exchanged, slots and attributes are changed. One mutation in eight is of the bytes, for the
// parser.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "framework/operator.h"
#include "framework/program_desc.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace headrace {
namespace {

class Mutator {
 public:
  Mutator(ProgramDesc* program, uint32_t seed) : program_(*program), random_(seed) {}

  void Mutate() {
    for (size_t edits = 1 + Below(3); edits > 0; --edits) {
      try {
        Edit();
      } catch (const Error&) {
      }
    }
  }

  // Adds what `other` has to the program, as far as it fits.
  void Merge(const ProgramDesc& other) {
    const BlockDesc& from = other.block(0);
    for (const VarDesc* var : from.LocalVars()) {
      if (!Block().HasLocalVar(var->name)) {
        Block().Var(var->name) = *var;
      }
    }
    for (const auto& op : from.ops()) {
      try {
        Block().InsertOp(Below(Block().ops().size() + 1), *op);
      } catch (const Error&) {
      }
    }
  }

 private:
  size_t Below(size_t n) { return n == 0 ? 0 : random_() % n; }
  bool OneIn(size_t n) { return Below(n) == 0; }
  template <typename List>
  const auto& AnyOf(const List& list) {
    return list[Below(std::size(list))];
  }

  // Mostly the root.
  BlockDesc& Block() { return program_.block(OneIn(8) ? Below(program_.num_blocks()) : 0); }

  void Edit() {
    BlockDesc& block = Block();
    const size_t ops = block.ops().size();
    switch (Below(12)) {
      case 0:
      case 1:
        return AddVar(&block);
      case 2:
      case 3:
      case 4:
      case 5:
        return AddOp(&block);
      case 6:
        return ChangeVar(&block);
      case 7:
      case 8:
        return ops == 0 ? AddOp(&block) : ChangeAttr(&block.MutableOp(Below(ops)));
      case 9:
        return ops == 0 ? AddOp(&block) : ChangeSlot(&block, &block.MutableOp(Below(ops)));
      case 10: {
        const size_t at = Below(ops);
        return block.RemoveOps(at, std::min(at + 1, ops));
      }
      default:
        return OneIn(8) ? static_cast<void>(program_.AppendBlock(block.index())) : RemoveVar(&block);
    }
  }

  std::string NewName() { return "v" + std::to_string(Below(1000)); }

  std::string AnyName(const BlockDesc& block) {
    const auto vars = block.LocalVars();
    return vars.empty() || OneIn(16) ? std::string(kEmptyVarName) : AnyOf(vars)->name;
  }

  int64_t AnyDim() {
    static constexpr int64_t kDims[] = {
        1, 2, 3, 4, 6, -1, 0, 16, 100, int64_t{1} << 40, std::numeric_limits<int64_t>::max()};
    return kDims[OneIn(8) ? Below(std::size(kDims)) : Below(5)];
  }

  DataType AnyType() {
    static constexpr DataType kTypes[] = {DataType::kFloat32,  DataType::kFloat64, DataType::kInt64, DataType::kInt32,
                                          DataType::kBool,     DataType::kUInt8,   DataType::kInt8,  DataType::kInt16,
                                          DataType::kBFloat16, DataType::kFloat16, DataType::kUInt64};
    return OneIn(2) ? DataType::kFloat32 : kTypes[Below(OneIn(2) ? 4 : std::size(kTypes))];
  }

  void AddVar(BlockDesc* block) {
    VarDesc& var = block->Var(NewName());
    var.tensor.dims.resize(Below(5));
    for (int64_t& dim : var.tensor.dims) {
      dim = AnyDim();
    }
    var.tensor.dtype = AnyType();
    var.tensor.lod_level = OneIn(3) ? static_cast<int32_t>(1 + Below(2)) : 0;
    var.persistable = OneIn(3);
    var.is_parameter = var.persistable && OneIn(2);
  }

  void ChangeVar(BlockDesc* block) {
    const auto vars = block->LocalVars();
    if (vars.empty()) {
      return AddVar(block);
    }
    VarDesc& var = block->MutableVar(AnyOf(vars)->name);
    switch (Below(6)) {
      case 0:
        var.tensor.dtype = AnyType();
        break;
      case 1:
        var.tensor.lod_level = static_cast<int32_t>(Below(4));
        break;
      case 2:
        var.persistable = !var.persistable;
        break;
      case 3:
        var.stop_gradient = !var.stop_gradient;
        break;
      case 4: {
        static constexpr VarKind kKinds[] = {VarKind::kLoDTensor, VarKind::kLoDTensorArray, VarKind::kReader,
                                             VarKind::kRaw, VarKind::kStepScopes};
        var.kind = AnyOf(kKinds);
        if (var.kind == VarKind::kReader) {
          var.reader = {var.tensor};
        }
        break;
      }
      default:
        if (var.tensor.dims.empty() || OneIn(4)) {
          var.tensor.dims.push_back(AnyDim());
        } else if (OneIn(4)) {
          var.tensor.dims.pop_back();
        } else {
          var.tensor.dims[Below(var.tensor.dims.size())] = AnyDim();
        }
    }
  }

  void RemoveVar(BlockDesc* block) {
    const auto vars = block->LocalVars();
    if (!vars.empty()) {
      block->RemoveVar(AnyOf(vars)->name);
    }
  }

  // Tries several combinations of variables until shape inference accepts one.
  void AddOp(BlockDesc* block) {
    static const std::vector<std::string> types = OpRegistry::Types();
    const OpInfo& info = OpRegistry::Get(AnyOf(types));
    for (int attempt = 0; attempt < 16; ++attempt) {
      OpDesc op{info.type, {}, {}, {}};
      Fill(*block, info.inputs, 1, &op.inputs);
      Fill(*block, info.outputs, 8, &op.outputs);
      for (const AttrInfo& attr : info.attrs) {
        if (!attr.default_value || OneIn(4)) {
          op.attrs[attr.name] = AnyAttr(attr.name, attr.like);
        }
      }
      std::vector<std::string> created;
      for (const std::string& name : op.OutputNames()) {
        if (name != kEmptyVarName && block->FindVar(name) == nullptr) {
          block->Var(name);
          created.push_back(name);
        }
      }
      try {
        block->AppendOp(std::move(op));
        return;
      } catch (const Error&) {
        for (const std::string& name : created) {
          block->RemoveVar(name);
        }
      }
    }
  }

  // One in `existing` names is that of a variable that exists.
  void Fill(const BlockDesc& block, const std::vector<SlotInfo>& slots, size_t existing, VarNameMap* map) {
    for (const SlotInfo& slot : slots) {
      if (slot.dispensable && OneIn(3)) {
        continue;
      }
      for (size_t n = slot.duplicable ? 1 + Below(3) : 1; n > 0; --n) {
        (*map)[slot.name].push_back(OneIn(existing) ? AnyName(block) : NewName());
      }
    }
  }

  void ChangeSlot(BlockDesc* block, OpDesc* op) {
    VarNameMap& slots = OneIn(2) ? op->inputs : op->outputs;
    if (slots.empty()) {
      return;
    }
    auto& names = std::next(slots.begin(), static_cast<std::ptrdiff_t>(Below(slots.size())))->second;
    if (names.empty() || OneIn(8)) {
      names.push_back(AnyName(*block));
    } else {
      names[Below(names.size())] = AnyName(*block);
    }
  }

  void ChangeAttr(OpDesc* op) {
    if (op->attrs.empty()) {
      return;
    }
    auto& [name, value] = *std::next(op->attrs.begin(), static_cast<std::ptrdiff_t>(Below(op->attrs.size())));
    value = AnyAttr(name, value);
  }

  template <typename T>
  T AnyNumber() {
    if constexpr (std::is_floating_point_v<T>) {
      static constexpr T kNumbers[] = {0,
                                       1,
                                       -1,
                                       T(0.5),
                                       T(1e-5),
                                       2,
                                       3,
                                       std::numeric_limits<T>::infinity(),
                                       std::numeric_limits<T>::quiet_NaN(),
                                       std::numeric_limits<T>::max()};
      return AnyOf(kNumbers);
    } else {
      static constexpr T kNumbers[] = {
          0, 1, 2, -1, 3, 4, 5, -2, 7, 100, std::numeric_limits<T>::max(), std::numeric_limits<T>::min()};
      return kNumbers[OneIn(8) ? Below(std::size(kNumbers)) : Below(7)];
    }
  }

  template <typename T>
  T AnyValue() {
    if constexpr (std::is_same_v<T, bool>) {
      return OneIn(2);
    } else if constexpr (std::is_same_v<T, std::string>) {
      static const char* const kTexts[] = {"",        "MAX",  "SUM",     "AVERAGE", "SQRT",
                                           "FIRST",   "LAST", "max",     "avg",     "7",
                                           "NCHW",    "NHWC", "1e300",   "-1",      "upscale_in_train",
                                           "reflect", "edge", "channel", "element", "relu",
                                           "identity"};
      return AnyOf(kTexts);
    } else if constexpr (std::is_same_v<T, BlockRef>) {
      return {static_cast<int32_t>(Below(program_.num_blocks() + 1))};
    } else {
      return AnyNumber<T>();
    }
  }

  template <typename T>
  void Set(T* value) {
    *value = AnyValue<T>();
  }
  template <typename T>
  void Set(std::vector<T>* values) {
    values->resize(Below(5));
    for (size_t i = 0; i < values->size(); ++i) {
      (*values)[i] = AnyValue<T>();
    }
  }
  void Set(std::monostate* /*value*/) {}

  Attribute AnyAttr(std::string_view name, Attribute like) {
    if (name.ends_with("dtype")) {
      return static_cast<int32_t>(AnyType());
    }
    std::visit([this](auto& value) { Set(&value); }, like);
    return like;
  }

  ProgramDesc& program_;
  std::mt19937 random_;
};

std::unique_ptr<ProgramDesc> Parse(const uint8_t* data, size_t size) {
  try {
    return ProgramDesc::Parse({reinterpret_cast<const char*>(data), size});
  } catch (const Error&) {
    return nullptr;
  }
}

// Writes the program to `out`; 0 if it does not fit.
size_t Write(const ProgramDesc& program, uint8_t* out, size_t max_size) {
  const std::string bytes = program.Serialize();
  if (bytes.size() > max_size) {
    return 0;
  }
  std::memcpy(out, bytes.data(), bytes.size());
  return bytes.size();
}

}  // namespace
}  // namespace headrace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  if (seed % 8 == 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  auto program = headrace::Parse(data, size);
  if (program == nullptr) {
    program = std::make_unique<headrace::ProgramDesc>();
  }
  headrace::Mutator(program.get(), seed).Mutate();
  const size_t written = headrace::Write(*program, data, max_size);
  return written != 0 ? written : LLVMFuzzerMutate(data, size, max_size);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data1, size_t size1, const uint8_t* data2, size_t size2,
                                            uint8_t* out, size_t max_out_size, unsigned int seed) {
  const auto program = headrace::Parse(data1, size1);
  const auto other = headrace::Parse(data2, size2);
  if (program == nullptr || other == nullptr) {
    return 0;
  }
  headrace::Mutator(program.get(), seed).Merge(*other);
  return headrace::Write(*program, out, max_out_size);
}
