// ProgramDesc ⇄ bytes and text, by Protocol Buffers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "framework/framework.pb.h"
#include "framework/op_info.h"
#include "framework/op_registry.h"
#include "framework/operator.h"
#include "framework/program_check.h"
#include "framework/program_desc.h"

namespace headrace {
namespace {

// ---- To messages ----

// Of a program's operators, those that are not at version 0.
std::map<std::string_view, int32_t> VersionsOf(const ProgramDesc& program) {
  std::map<std::string_view, int32_t> versions;
  for (size_t b = 0; b < program.num_blocks(); ++b) {
    for (const auto& op : program.block(b).ops()) {
      const OpInfo* info = OpRegistry::Find(op->type);
      if (info != nullptr && info->version != 0) {
        versions.emplace(op->type, info->version);
      }
    }
  }
  return versions;
}

// Fills in an attribute of a message.
class SetValue {
 public:
  explicit SetValue(proto::OpDesc::Attr* attr) : out_(*attr) {}

  void operator()(std::monostate) const {
    Throw<FailedPrecondition>("an attribute has no value, so the program cannot be serialised");
  }
  void operator()(bool v) const { Typed(proto::BOOLEAN).set_b(v); }
  void operator()(int32_t v) const { Typed(proto::INT).set_i(v); }
  void operator()(int64_t v) const { Typed(proto::LONG).set_l(v); }
  void operator()(float v) const { Typed(proto::FLOAT).set_f(v); }
  // As a float, since Fluid and Paddle take no other number there. They pass over `d`, which has what a float rounds
  // off.
  void operator()(double v) const {
    if (std::isfinite(v) && std::abs(v) > double{std::numeric_limits<float>::max()}) {
      Typed(proto::DOUBLE).set_d(v);
      return;
    }
    proto::OpDesc::Attr& attr = Typed(proto::FLOAT);
    attr.set_f(static_cast<float>(v));
    if (static_cast<double>(attr.f()) != v) {
      attr.set_d(v);
    }
  }
  void operator()(const std::string& v) const { Typed(proto::STRING).set_s(v); }
  void operator()(BlockRef v) const { Typed(proto::BLOCK).set_block_idx(v.index); }
  void operator()(const std::vector<bool>& v) const {
    Typed(proto::BOOLEANS).mutable_bools()->Assign(v.begin(), v.end());
  }
  void operator()(const std::vector<int32_t>& v) const {
    Typed(proto::INTS).mutable_ints()->Assign(v.begin(), v.end());
  }
  void operator()(const std::vector<int64_t>& v) const {
    Typed(proto::LONGS).mutable_longs()->Assign(v.begin(), v.end());
  }
  void operator()(const std::vector<float>& v) const {
    Typed(proto::FLOATS).mutable_floats()->Assign(v.begin(), v.end());
  }
  void operator()(const std::vector<std::string>& v) const {
    Typed(proto::STRINGS).mutable_strings()->Assign(v.begin(), v.end());
  }

 private:
  proto::OpDesc::Attr& Typed(proto::AttrType type) const {
    out_.set_type(type);
    return out_;
  }

  proto::OpDesc::Attr& out_;
};

template <typename Message>
void Write(const AttributeMap& attrs, Message* message) {
  for (const auto& [name, value] : attrs) {
    proto::OpDesc::Attr* attr = message->add_attrs();
    attr->set_name(name);
    std::visit(SetValue(attr), value);
  }
}

void Write(const TensorSpec& spec, proto::VarType::TensorDesc* out) {
  out->set_data_type(static_cast<proto::VarType::Type>(spec.dtype));
  out->mutable_dims()->Assign(spec.dims.begin(), spec.dims.end());
}

void Write(const TensorSpec& spec, proto::VarType::LoDTensorDesc* out) {
  Write(spec, out->mutable_tensor());
  out->set_lod_level(spec.lod_level);
}

void Write(const VarDesc& var, proto::VarDesc* out) {
  out->set_name(var.name);
  proto::VarType* type = out->mutable_type();
  type->set_type(static_cast<proto::VarType::Type>(var.kind));
  if (var.kind == VarKind::kLoDTensor) {
    Write(var.tensor, type->mutable_lod_tensor());
  } else if (var.kind == VarKind::kLoDTensorArray) {
    Write(var.tensor, type->mutable_tensor_array());
  } else if (var.kind == VarKind::kSelectedRows) {
    Write(var.tensor, type->mutable_selected_rows());
  } else if (var.kind == VarKind::kReader) {
    proto::VarType::ReaderDesc* reader = type->mutable_reader();
    for (const TensorSpec& spec : var.reader) {
      Write(spec, reader->add_lod_tensor());
    }
  }
  out->set_persistable(var.persistable);
  out->set_is_parameter(var.is_parameter);
  out->set_stop_gradient(var.stop_gradient);
  Write(var.attrs, out);
}

void Write(const OpDesc& op, proto::OpDesc* out) {
  const auto write_slot = [](const auto& slot, proto::OpDesc::Var* to) {
    to->set_parameter(slot.first);
    to->mutable_arguments()->Assign(slot.second.begin(), slot.second.end());
  };
  out->set_type(op.type);
  for (const auto& slot : op.inputs) {
    write_slot(slot, out->add_inputs());
  }
  for (const auto& slot : op.outputs) {
    write_slot(slot, out->add_outputs());
  }
  Write(op.attrs, out);
}

proto::ProgramDesc ToMessage(const ProgramDesc& program) {
  proto::ProgramDesc out;
  out.mutable_version()->set_version(0);
  for (size_t b = 0; b < program.num_blocks(); ++b) {
    const BlockDesc& block = program.block(b);
    proto::BlockDesc* to = out.add_blocks();
    to->set_idx(block.index());
    to->set_parent_idx(block.parent());
    for (const VarDesc* var : block.LocalVars()) {
      Write(*var, to->add_vars());
    }
    for (const auto& op : block.ops()) {
      Write(*op, to->add_ops());
    }
  }
  for (const auto& [type, version] : VersionsOf(program)) {
    proto::OpVersionMap::OpVersionPair* pair = out.mutable_op_version_map()->add_pair();
    pair->set_op_name(std::string(type));
    pair->mutable_op_version()->set_version(version);
  }
  return out;
}

// ---- From messages ----

// `of`: the operator's type or the variable's name.
Attribute Read(const proto::OpDesc::Attr& attr, const std::string& of) {
  const auto scalar = [&](bool present, auto value) -> Attribute {
    HR_ENFORCE(present, DataLoss, "corrupt program: attribute '", attr.name(), "' of '", of,
               "' has a type but no value");
    return value;
  };
  const auto list = [](const auto& items) {
    using Item = typename std::decay_t<decltype(items)>::value_type;
    return std::vector<Item>(items.begin(), items.end());
  };
  switch (attr.type()) {
    case proto::INT:
      return scalar(attr.has_i(), attr.i());
    case proto::LONG:
      return scalar(attr.has_l(), attr.l());
    case proto::FLOAT:
      if (attr.has_d()) {
        return attr.d();
      }
      return scalar(attr.has_f(), attr.f());
    case proto::DOUBLE:
      return scalar(attr.has_d(), attr.d());
    case proto::STRING:
      return scalar(attr.has_s(), attr.s());
    case proto::BOOLEAN:
      return scalar(attr.has_b(), attr.b());
    case proto::BLOCK:
      return scalar(attr.has_block_idx(), BlockRef{attr.block_idx()});
    case proto::INTS:
      return list(attr.ints());
    case proto::LONGS:
      return list(attr.longs());
    case proto::FLOATS:
      return list(attr.floats());
    case proto::STRINGS:
      return list(attr.strings());
    case proto::BOOLEANS:
      return list(attr.bools());
  }
  Throw<DataLoss>("corrupt program: attribute '", attr.name(), "' of '", of, "' is of type ", attr.type());
}

template <typename Attrs>
AttributeMap ReadAttrs(const Attrs& attrs, const std::string& of) {
  AttributeMap map;
  for (const proto::OpDesc::Attr& attr : attrs) {
    const bool is_new = map.emplace(attr.name(), Read(attr, of)).second;
    HR_ENFORCE(is_new, DataLoss, "corrupt program: '", of, "' has attribute '", attr.name(), "' twice");
  }
  return map;
}

TensorSpec Read(const proto::VarType::TensorDesc& desc, const std::string& name) {
  TensorSpec spec;
  HR_ENFORCE(IsDataType(desc.data_type()), DataLoss, "corrupt program: variable '", name, "' has data type ",
             desc.data_type());
  spec.dtype = static_cast<DataType>(desc.data_type());
  spec.dims.assign(desc.dims().begin(), desc.dims().end());
  try {
    CheckDims(spec.dims);
  } catch (const InvalidArgument& error) {
    Throw<DataLoss>("corrupt program: variable '", name, "': ", error.message());
  }
  return spec;
}

TensorSpec Read(const proto::VarType::LoDTensorDesc& desc, const std::string& name) {
  // Deeper nesting than any program has; a corrupt depth would become a corrupt allocation somewhere else.
  constexpr int32_t kMaxLoDLevel = 64;
  TensorSpec spec = Read(desc.tensor(), name);
  spec.lod_level = desc.lod_level();
  HR_ENFORCE(spec.lod_level >= 0 && spec.lod_level <= kMaxLoDLevel, DataLoss, "corrupt program: variable '", name,
             "' has LoD level ", spec.lod_level);
  return spec;
}

bool IsVarKind(int value) {
  switch (static_cast<VarKind>(value)) {
    case VarKind::kLoDTensor:
    case VarKind::kSelectedRows:
    case VarKind::kFeedMinibatch:
    case VarKind::kFetchList:
    case VarKind::kStepScopes:
    case VarKind::kLoDRankTable:
    case VarKind::kLoDTensorArray:
    case VarKind::kReader:
    case VarKind::kRaw:
      return true;
  }
  return false;
}

void Read(const proto::VarDesc& in, BlockDesc* block) {
  const std::string& name = in.name();
  HR_ENFORCE(!name.empty() && name != kEmptyVarName, DataLoss, "corrupt program: block ", block->index(),
             " has a variable named '", name, "'");
  HR_ENFORCE(!block->HasLocalVar(name), DataLoss, "corrupt program: block ", block->index(), " has variable '", name,
             "' twice");
  const proto::VarType& type = in.type();
  HR_ENFORCE(IsVarKind(type.type()), DataLoss, "corrupt program: variable '", name, "' is of kind ", type.type());
  VarDesc& var = block->Var(name);
  var.kind = static_cast<VarKind>(type.type());
  if (var.kind == VarKind::kLoDTensor || var.kind == VarKind::kLoDTensorArray) {
    const bool is_tensor = var.kind == VarKind::kLoDTensor;
    HR_ENFORCE(is_tensor ? type.has_lod_tensor() : type.has_tensor_array(), DataLoss,
               "corrupt program: tensor variable '", name, "' has no shape");
    var.tensor = Read(is_tensor ? type.lod_tensor() : type.tensor_array(), name);
  } else if (var.kind == VarKind::kSelectedRows) {
    HR_ENFORCE(type.has_selected_rows(), DataLoss, "corrupt program: variable '", name, "' has no shape");
    var.tensor = Read(type.selected_rows(), name);
  } else if (var.kind == VarKind::kReader) {
    for (const auto& tensor : type.reader().lod_tensor()) {
      var.reader.push_back(Read(tensor, name));
    }
  }
  var.persistable = in.persistable();
  var.stop_gradient = in.stop_gradient();
  var.is_parameter = in.is_parameter();
  var.attrs = ReadAttrs(in.attrs(), name);
}

template <typename Slots>
VarNameMap ReadSlots(const Slots& slots, const std::string& op_type) {
  VarNameMap map;
  for (const proto::OpDesc::Var& slot : slots) {
    const std::vector<std::string> names(slot.arguments().begin(), slot.arguments().end());
    const bool is_new = map.emplace(slot.parameter(), names).second;
    HR_ENFORCE(is_new, DataLoss, "corrupt program: operator '", op_type, "' has slot '", slot.parameter(), "' twice");
  }
  return map;
}

OpDesc Read(const proto::OpDesc& in) {
  OpDesc op;
  op.type = in.type();
  op.inputs = ReadSlots(in.inputs(), op.type);
  op.outputs = ReadSlots(in.outputs(), op.type);
  op.attrs = ReadAttrs(in.attrs(), op.type);
  return op;
}

// Whether `names` are the gradients of `of`, under the names that append_backward gives them, in Fluid as here.
bool AreGradientsOf(const std::vector<std::string>& names, const std::vector<std::string>& of) {
  bool fit = names.size() == of.size();
  for (size_t i = 0; fit && i < names.size(); ++i) {
    const std::string gradient = GradVarName(of[i]);
    fit = names[i] == gradient || names[i] == kEmptyVarName || names[i].starts_with(gradient + "@RENAME@");
  }
  return fit;
}

// Whether the variables of `gradient` are those of `op` and their gradients.
bool IsGradientOf(const OpDesc& gradient, const OpDesc& op) {
  constexpr std::string_view kSuffix = "@GRAD";
  bool compared = false;
  const auto fit = [&](const VarNameMap& slots) {
    return std::ranges::all_of(slots, [&](const auto& slot) {
      const bool is_gradient = slot.first.ends_with(kSuffix);
      const std::string name = is_gradient ? slot.first.substr(0, slot.first.size() - kSuffix.size()) : slot.first;
      for (const VarNameMap* of : {&op.inputs, &op.outputs}) {
        if (const auto own = of->find(name); own != of->end()) {
          compared = true;
          return is_gradient ? AreGradientsOf(slot.second, own->second) : slot.second == own->second;
        }
      }
      return true;
    });
  };
  return fit(gradient.inputs) && fit(gradient.outputs) && compared;
}

// Fluid's gradient operators read a result of an operator in some places where ours read an input of it, or its dims.
// What `op` lacks is taken from the operator in the block that it belongs to, unless it has been written again since.
void CompleteGradient(const BlockDesc& block, OpDesc* op) {
  constexpr std::string_view kSuffix = "_grad";
  const OpInfo* info = OpRegistry::Find(op->type);
  if (info == nullptr || !op->type.ends_with(kSuffix)) {
    return;
  }
  const auto lacks = [&](const SlotInfo& slot) {
    const auto given = op->inputs.find(slot.name);
    return !slot.dispensable && (given == op->inputs.end() || given->second.empty());
  };
  if (std::ranges::none_of(info->inputs, lacks)) {
    return;
  }
  const std::string type = op->type.substr(0, op->type.size() - kSuffix.size());
  std::set<std::string_view> written;  // since `before`
  for (auto it = block.ops().rbegin(); it != block.ops().rend(); ++it) {
    const OpDesc& before = **it;
    const bool found = before.type == type && IsGradientOf(*op, before);
    const auto take = [&](const VarNameMap& slots) {
      for (const SlotInfo& slot : info->inputs) {
        const auto own = slots.find(slot.name);
        if (lacks(slot) && own != slots.end() &&
            std::ranges::none_of(own->second, [&](const auto& name) { return written.contains(name); })) {
          op->inputs[slot.name] = own->second;
        }
      }
    };
    if (found) {
      take(before.outputs);
    }
    for (const auto& [slot, names] : before.outputs) {
      written.insert(names.begin(), names.end());
    }
    if (found) {
      take(before.inputs);
      return;
    }
  }
}

// What AppendOp checks, but a contradiction is the file's fault here. Shapes are not inferred again: the file has them.
void CheckOp(const BlockDesc& block, OpDesc* op) {
  try {
    OpRegistry::Check(*op);
    CheckVariablesExist(block, *op);
    CheckBlockRefs(block, *op);
  } catch (const NotFound&) {
    throw;
  } catch (const Error& error) {
    DataLoss corrupt(StrCat("corrupt program: ", error.message()));
    corrupt.SetOpType(op->type);
    throw corrupt;
  }
}

// The versions of the operators that a program was made with, where they are not 0. Throws Unimplemented if one is
// newer than what is registered: what has not been made yet cannot be known.
std::map<std::string, int32_t> ReadVersions(const proto::ProgramDesc& program) {
  std::map<std::string, int32_t> versions;
  for (const auto& pair : program.op_version_map().pair()) {
    const std::string& type = pair.op_name();
    const int32_t version = pair.op_version().version();
    HR_ENFORCE(version >= 0, DataLoss, "corrupt program: operator '", type, "' is at version ", version);
    const OpInfo* info = OpRegistry::Find(type);
    if (info != nullptr && version > info->version) {
      Unimplemented error(StrCat("the program uses version ", version, " of operator '", type,
                                 "', which is at version ", info->version,
                                 " here: a newer headrace, or library of operators, has made it"));
      error.SetOpType(type);
      throw error;
    }
    versions[type] = version;
  }
  return versions;
}

// Operators may have changed since the program was made.
void Upgrade(const std::map<std::string, int32_t>& versions, OpDesc* op) {
  const OpInfo* info = OpRegistry::Find(op->type);
  const auto made_with = versions.find(op->type);
  const int32_t from = made_with == versions.end() ? 0 : made_with->second;
  if (info == nullptr || from == info->version) {
    return;
  }
  try {
    info->upgrade(op, from);
  } catch (...) {
    op->RethrowWithContext();
  }
}

}  // namespace

std::string ProgramDesc::Serialize() const {
  const proto::ProgramDesc message = ToMessage(*this);
  const size_t size = message.ByteSizeLong();
  HR_ENFORCE(size <= std::numeric_limits<int>::max(), ResourceExhausted,
             "a serialised program has less than 2 GiB, this one would have ", size, " bytes");
  std::string bytes;
  HR_ENFORCE(message.SerializeToString(&bytes), FailedPrecondition, "the program cannot be serialised");
  return bytes;
}

std::string ProgramDesc::ToTextFormat() const { return ToMessage(*this).Utf8DebugString(); }

std::unique_ptr<ProgramDesc> ProgramDesc::Parse(std::string_view bytes) {
  proto::ProgramDesc in;
  // Partial, since the runtime would write to the standard error what is missing.
  HR_ENFORCE(bytes.size() <= std::numeric_limits<int>::max() &&
                 in.ParsePartialFromArray(bytes.data(), static_cast<int>(bytes.size())),
             DataLoss, "the ", bytes.size(), " bytes are not a serialised program");
  HR_ENFORCE(in.IsInitialized(), DataLoss, "the ", bytes.size(),
             " bytes are not a serialised program: missing, or of no known value: ", in.InitializationErrorString());
  HR_ENFORCE(in.blocks_size() > 0, DataLoss, "corrupt program: it has no block");
  // Ours is 0, as Fluid's was at first; then it wrote its release: 1006001 is 1.6.1.
  HR_ENFORCE(in.version().version() >= 0 && in.version().version() < 2'000'000, DataLoss,
             "the program has format version ", in.version().version(), ", expected 0 or a release of Fluid 1");
  const std::map<std::string, int32_t> versions = ReadVersions(in);
  auto program = std::make_unique<ProgramDesc>();
  std::vector<int> depth;  // by block
  for (int i = 0; i < in.blocks_size(); ++i) {
    const proto::BlockDesc& block = in.blocks(i);
    const int32_t parent = block.parent_idx();
    HR_ENFORCE(block.idx() == i, DataLoss, "corrupt program: block ", i, " says that it is block ", block.idx());
    HR_ENFORCE(i == 0 ? parent == -1 : (parent >= 0 && parent < i), DataLoss, "corrupt program: block ", i,
               " has parent ", parent);
    depth.push_back(i == 0 ? 0 : depth[static_cast<size_t>(parent)] + 1);
    HR_ENFORCE(depth.back() <= kMaxBlockDepth, DataLoss, "corrupt program: block ", i, " lies more than ",
               kMaxBlockDepth, " blocks deep");
    BlockDesc& to = i == 0 ? program->block(0) : program->AppendBlock(parent);
    for (const proto::VarDesc& var : block.vars()) {
      Read(var, &to);
    }
  }
  std::vector<bool> has_operator(depth.size(), false);  // by block: an operator runs it
  for (int i = 0; i < in.blocks_size(); ++i) {
    BlockDesc& block = program->block(static_cast<size_t>(i));
    for (const proto::OpDesc& message : in.blocks(i).ops()) {
      OpDesc op = Read(message);
      Upgrade(versions, &op);
      CompleteGradient(block, &op);
      CheckOp(block, &op);
      for (const BlockRef inner : op.Blocks()) {
        const auto index = static_cast<size_t>(inner.index);
        HR_ENFORCE(!has_operator[index], DataLoss, "corrupt program: block ", index, " belongs to two operators");
        has_operator[index] = true;
      }
      block.ops_.push_back(std::make_unique<const OpDesc>(std::move(op)));
    }
  }
  program->Touch();
  return program;
}

}  // namespace headrace
