// ProgramDesc ⇄ bytes. The only source that sees Protocol Buffers.
//
// The runtime is protobuf-c: plain C, whose static archive can be linked into a shared library and hidden there, so
// that it never meets the C++ runtime that another library in the process brings along.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <memory_resource>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "framework/framework.pb-c.h"
#include "framework/op_registry.h"
#include "framework/operator.h"
#include "framework/program_check.h"
#include "framework/program_desc.h"

namespace headrace {
namespace {

// Short names of the messages.
namespace proto {
using Type = Headrace__Proto__VarType__Type;
using Attr = Headrace__Proto__OpDesc__Attr;
using Slot = Headrace__Proto__OpDesc__Var;
using OpDesc = Headrace__Proto__OpDesc;
using TensorDesc = Headrace__Proto__VarType__TensorDesc;
using LoDTensorDesc = Headrace__Proto__VarType__LoDTensorDesc;
using ReaderDesc = Headrace__Proto__VarType__ReaderDesc;
using VarType = Headrace__Proto__VarType;
using VarDesc = Headrace__Proto__VarDesc;
using BlockDesc = Headrace__Proto__BlockDesc;
using Version = Headrace__Proto__Version;
using OpVersion = Headrace__Proto__OpVersion;
using OpVersionMap = Headrace__Proto__OpVersionMap;
using OpVersionPair = Headrace__Proto__OpVersionMap__OpVersionPair;
using ProgramDesc = Headrace__Proto__ProgramDesc;
}  // namespace proto

// ---- To bytes ----

// Builds messages out of the program's own strings and lists, which must outlive it; what it allocates lives as long as
// the builder.
class MessageBuilder {
 public:
  proto::ProgramDesc* Build(const ProgramDesc& program) {
    auto* out = New<proto::ProgramDesc>(headrace__proto__program_desc__init);
    out->version = New<proto::Version>(headrace__proto__version__init);
    out->version->has_version = 1;
    std::tie(out->n_blocks, out->blocks) =
        List<proto::BlockDesc*>(program.num_blocks(), [&](size_t i) { return Build(program.block(i)); });
    if (const std::map<std::string_view, int32_t> versions = VersionsOf(program); !versions.empty()) {
      out->op_version_map = New<proto::OpVersionMap>(headrace__proto__op_version_map__init);
      auto it = versions.begin();
      std::tie(out->op_version_map->n_pair, out->op_version_map->pair) =
          List<proto::OpVersionPair*>(versions.size(), [&](size_t) {
            auto* pair = New<proto::OpVersionPair>(headrace__proto__op_version_map__op_version_pair__init);
            pair->op_name = Text(it->first);
            pair->op_version = New<proto::OpVersion>(headrace__proto__op_version__init);
            pair->op_version->version = it->second;
            ++it;
            return pair;
          });
    }
    return out;
  }

 private:
  // Of its operators, those that are not at version 0.
  static std::map<std::string_view, int32_t> VersionsOf(const ProgramDesc& program) {
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

  // Fills in a message's attribute.
  class SetValue {
   public:
    SetValue(MessageBuilder& builder, proto::Attr* attr) : builder_(builder), out_(attr) {}

    void operator()(std::monostate) const {
      Throw<FailedPrecondition>("an attribute has no value, so the program cannot be serialised");
    }
    void operator()(bool v) const { Set(HEADRACE__PROTO__ATTR_TYPE__BOOLEAN, &proto::Attr::has_b, &proto::Attr::b, v); }
    void operator()(int32_t v) const { Set(HEADRACE__PROTO__ATTR_TYPE__INT, &proto::Attr::has_i, &proto::Attr::i, v); }
    void operator()(int64_t v) const { Set(HEADRACE__PROTO__ATTR_TYPE__LONG, &proto::Attr::has_l, &proto::Attr::l, v); }
    void operator()(float v) const { Set(HEADRACE__PROTO__ATTR_TYPE__FLOAT, &proto::Attr::has_f, &proto::Attr::f, v); }
    void operator()(double v) const {
      Set(HEADRACE__PROTO__ATTR_TYPE__DOUBLE, &proto::Attr::has_d, &proto::Attr::d, v);
    }
    void operator()(const std::string& v) const {
      Set(HEADRACE__PROTO__ATTR_TYPE__STRING, &proto::Attr::has_s, &proto::Attr::s, Text(v));
    }
    void operator()(BlockRef v) const {
      Set(HEADRACE__PROTO__ATTR_TYPE__BLOCK, &proto::Attr::has_block_idx, &proto::Attr::block_idx, v.index);
    }
    void operator()(const std::vector<bool>& v) const {
      SetList(HEADRACE__PROTO__ATTR_TYPE__BOOLEANS, &proto::Attr::n_bools, &proto::Attr::bools,
              builder_.List<protobuf_c_boolean>(v.size(), [&](size_t i) { return v[i] ? 1 : 0; }));
    }
    void operator()(const std::vector<int32_t>& v) const {
      SetList(HEADRACE__PROTO__ATTR_TYPE__INTS, &proto::Attr::n_ints, &proto::Attr::ints, builder_.Copy(v));
    }
    void operator()(const std::vector<int64_t>& v) const {
      SetList(HEADRACE__PROTO__ATTR_TYPE__LONGS, &proto::Attr::n_longs, &proto::Attr::longs, builder_.Copy(v));
    }
    void operator()(const std::vector<float>& v) const {
      SetList(HEADRACE__PROTO__ATTR_TYPE__FLOATS, &proto::Attr::n_floats, &proto::Attr::floats, builder_.Copy(v));
    }
    void operator()(const std::vector<std::string>& v) const {
      SetList(HEADRACE__PROTO__ATTR_TYPE__STRINGS, &proto::Attr::n_strings, &proto::Attr::strings, builder_.Texts(v));
    }

   private:
    template <typename Field, typename T>
    void Set(Headrace__Proto__AttrType type, protobuf_c_boolean proto::Attr::* has, Field proto::Attr::* field,
             T value) const {
      out_->type = type;
      out_->*has = 1;
      out_->*field = value;
    }
    template <typename Item>
    void SetList(Headrace__Proto__AttrType type, size_t proto::Attr::* n, Item* proto::Attr::* items,
                 std::pair<size_t, Item*> list) const {
      out_->type = type;
      std::tie(out_->*n, out_->*items) = list;
    }

    MessageBuilder& builder_;
    proto::Attr* out_;
  };

  template <typename Message>
  Message* New(void (*init)(Message*)) {
    auto* message = static_cast<Message*>(memory_.allocate(sizeof(Message), alignof(Message)));
    init(message);
    return message;
  }

  // {n, array of at(0) … at(n − 1)}, as the fields of a repeated field are.
  template <typename T, typename At>
  std::pair<size_t, T*> List(size_t n, At&& at) {
    auto* items = static_cast<T*>(memory_.allocate(std::max<size_t>(n, 1) * sizeof(T), alignof(T)));
    for (size_t i = 0; i < n; ++i) {
      new (static_cast<void*>(items + i)) T(at(i));
    }
    return {n, items};
  }
  template <typename Sequence>
  std::pair<size_t, typename Sequence::value_type*> Copy(const Sequence& list) {
    return List<typename Sequence::value_type>(list.size(), [&](size_t i) { return list[i]; });
  }
  std::pair<size_t, ProtobufCBinaryData*> Texts(const std::vector<std::string>& texts) {
    return List<ProtobufCBinaryData>(texts.size(), [&](size_t i) { return Text(texts[i]); });
  }
  static ProtobufCBinaryData Text(std::string_view text) {
    // Never written to: the runtime's type does not know const.
    return {text.size(), reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()))};
  }

  proto::TensorDesc* BuildTensor(const TensorSpec& spec) {
    auto* out = New<proto::TensorDesc>(headrace__proto__var_type__tensor_desc__init);
    out->data_type = static_cast<proto::Type>(spec.dtype);
    std::tie(out->n_dims, out->dims) = Copy(spec.dims);
    return out;
  }

  proto::LoDTensorDesc* Build(const TensorSpec& spec) {
    auto* out = New<proto::LoDTensorDesc>(headrace__proto__var_type__lo_dtensor_desc__init);
    out->tensor = BuildTensor(spec);
    out->has_lod_level = 1;
    out->lod_level = spec.lod_level;
    return out;
  }

  proto::VarDesc* Build(const VarDesc& var) {
    auto* out = New<proto::VarDesc>(headrace__proto__var_desc__init);
    out->name = Text(var.name);
    out->type = New<proto::VarType>(headrace__proto__var_type__init);
    out->type->type = static_cast<proto::Type>(var.kind);
    if (var.kind == VarKind::kLoDTensor) {
      out->type->lod_tensor = Build(var.tensor);
    } else if (var.kind == VarKind::kLoDTensorArray) {
      out->type->tensor_array = Build(var.tensor);
    } else if (var.kind == VarKind::kSelectedRows) {
      out->type->selected_rows = BuildTensor(var.tensor);
    } else if (var.kind == VarKind::kReader) {
      auto* reader = New<proto::ReaderDesc>(headrace__proto__var_type__reader_desc__init);
      std::tie(reader->n_lod_tensor, reader->lod_tensor) =
          List<proto::LoDTensorDesc*>(var.reader.size(), [&](size_t i) { return Build(var.reader[i]); });
      out->type->reader = reader;
    }
    out->has_persistable = out->has_is_parameter = out->has_stop_gradient = 1;
    out->persistable = var.persistable ? 1 : 0;
    out->is_parameter = var.is_parameter ? 1 : 0;
    out->stop_gradient = var.stop_gradient ? 1 : 0;
    std::tie(out->n_attrs, out->attrs) = Build(var.attrs);
    return out;
  }

  std::pair<size_t, proto::Attr**> Build(const AttributeMap& attrs) {
    auto it = attrs.begin();
    return List<proto::Attr*>(attrs.size(), [&](size_t) {
      auto* attr = New<proto::Attr>(headrace__proto__op_desc__attr__init);
      attr->name = Text(it->first);
      std::visit(SetValue{*this, attr}, it->second);
      ++it;
      return attr;
    });
  }

  std::pair<size_t, proto::Slot**> Build(const VarNameMap& slots) {
    auto it = slots.begin();
    return List<proto::Slot*>(slots.size(), [&](size_t) {
      auto* out = New<proto::Slot>(headrace__proto__op_desc__var__init);
      out->parameter = Text(it->first);
      std::tie(out->n_arguments, out->arguments) = Texts(it->second);
      ++it;
      return out;
    });
  }

  proto::OpDesc* Build(const OpDesc& op) {
    auto* out = New<proto::OpDesc>(headrace__proto__op_desc__init);
    out->type = Text(op.type);
    std::tie(out->n_inputs, out->inputs) = Build(op.inputs);
    std::tie(out->n_outputs, out->outputs) = Build(op.outputs);
    std::tie(out->n_attrs, out->attrs) = Build(op.attrs);
    return out;
  }

  proto::BlockDesc* Build(const BlockDesc& block) {
    auto* out = New<proto::BlockDesc>(headrace__proto__block_desc__init);
    out->idx = block.index();
    out->parent_idx = block.parent();
    const std::vector<const VarDesc*> vars = block.LocalVars();
    std::tie(out->n_vars, out->vars) = List<proto::VarDesc*>(vars.size(), [&](size_t i) { return Build(*vars[i]); });
    std::tie(out->n_ops, out->ops) =
        List<proto::OpDesc*>(block.ops().size(), [&](size_t i) { return Build(*block.ops()[i]); });
    return out;
  }

  std::pmr::monotonic_buffer_resource memory_;
};

// ---- From bytes ----

std::string TextOf(const ProtobufCBinaryData& text) { return {reinterpret_cast<const char*>(text.data), text.len}; }

std::vector<std::string> TextsOf(size_t n, const ProtobufCBinaryData* texts) {
  std::vector<std::string> strings;
  strings.reserve(n);
  std::transform(texts, texts + n, std::back_inserter(strings), [](const auto& text) { return TextOf(text); });
  return strings;
}

// The number of an enumerator, which may be any: protobuf-c does not check it, and C++ must not look at one that the
// type does not have.
template <typename Enum>
int32_t NumberOf(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int32_t));
  int32_t number = 0;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

template <typename T, typename Item>
std::vector<T> ToVector(size_t n, const Item* items) {
  return std::vector<T>(items, items + n);
}

// `of`: the operator's type or the variable's name.
Attribute Read(const proto::Attr& attr, const std::string& name, const std::string& of) {
  const auto scalar = [&](bool present, auto value) -> Attribute {
    HR_ENFORCE(present, DataLoss, "corrupt program: attribute '", name, "' of '", of, "' has a type but no value");
    return value;
  };
  switch (NumberOf(attr.type)) {
    case HEADRACE__PROTO__ATTR_TYPE__INT:
      return scalar(attr.has_i, attr.i);
    case HEADRACE__PROTO__ATTR_TYPE__LONG:
      return scalar(attr.has_l, attr.l);
    case HEADRACE__PROTO__ATTR_TYPE__FLOAT:
      return scalar(attr.has_f, attr.f);
    case HEADRACE__PROTO__ATTR_TYPE__DOUBLE:
      return scalar(attr.has_d, attr.d);
    case HEADRACE__PROTO__ATTR_TYPE__STRING:
      return scalar(attr.has_s, TextOf(attr.s));
    case HEADRACE__PROTO__ATTR_TYPE__BOOLEAN:
      return scalar(attr.has_b, attr.b != 0);
    case HEADRACE__PROTO__ATTR_TYPE__BLOCK:
      return scalar(attr.has_block_idx, BlockRef{attr.block_idx});
    case HEADRACE__PROTO__ATTR_TYPE__INTS:
      return ToVector<int32_t>(attr.n_ints, attr.ints);
    case HEADRACE__PROTO__ATTR_TYPE__LONGS:
      return ToVector<int64_t>(attr.n_longs, attr.longs);
    case HEADRACE__PROTO__ATTR_TYPE__FLOATS:
      return ToVector<float>(attr.n_floats, attr.floats);
    case HEADRACE__PROTO__ATTR_TYPE__STRINGS:
      return TextsOf(attr.n_strings, attr.strings);
    case HEADRACE__PROTO__ATTR_TYPE__BOOLEANS:
      return ToVector<bool>(attr.n_bools, attr.bools);
    default:
      Throw<DataLoss>("corrupt program: attribute '", name, "' of '", of, "' is of type ", NumberOf(attr.type));
  }
}

AttributeMap ReadAttrs(size_t n, const proto::Attr* const* attrs, const std::string& of) {
  AttributeMap map;
  for (size_t i = 0; i < n; ++i) {
    const std::string name = TextOf(attrs[i]->name);
    const bool is_new = map.emplace(name, Read(*attrs[i], name, of)).second;
    HR_ENFORCE(is_new, DataLoss, "corrupt program: '", of, "' has attribute '", name, "' twice");
  }
  return map;
}

TensorSpec Read(const proto::TensorDesc& desc, const std::string& name) {
  TensorSpec spec;
  const int32_t data_type = NumberOf(desc.data_type);
  HR_ENFORCE(IsDataType(data_type), DataLoss, "corrupt program: variable '", name, "' has data type ", data_type);
  spec.dtype = static_cast<DataType>(data_type);
  spec.dims = ToVector<int64_t>(desc.n_dims, desc.dims);
  try {
    CheckDims(spec.dims);
  } catch (const InvalidArgument& error) {
    Throw<DataLoss>("corrupt program: variable '", name, "': ", error.message());
  }
  return spec;
}

TensorSpec Read(const proto::LoDTensorDesc& desc, const std::string& name) {
  // Deeper nesting than any program has; a corrupt depth would become a corrupt allocation somewhere else.
  constexpr int32_t kMaxLoDLevel = 64;
  TensorSpec spec = Read(*desc.tensor, name);
  spec.lod_level = desc.lod_level;
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
  const std::string name = TextOf(in.name);
  HR_ENFORCE(!name.empty() && name != kEmptyVarName, DataLoss, "corrupt program: block ", block->index(),
             " has a variable named '", name, "'");
  HR_ENFORCE(!block->HasLocalVar(name), DataLoss, "corrupt program: block ", block->index(), " has variable '", name,
             "' twice");
  HR_ENFORCE(IsVarKind(NumberOf(in.type->type)), DataLoss, "corrupt program: variable '", name, "' is of kind ",
             NumberOf(in.type->type));
  VarDesc& var = block->Var(name);
  var.kind = static_cast<VarKind>(NumberOf(in.type->type));
  if (var.kind == VarKind::kLoDTensor || var.kind == VarKind::kLoDTensorArray) {
    const auto* desc = var.kind == VarKind::kLoDTensor ? in.type->lod_tensor : in.type->tensor_array;
    HR_ENFORCE(desc != nullptr, DataLoss, "corrupt program: tensor variable '", name, "' has no shape");
    var.tensor = Read(*desc, name);
  } else if (var.kind == VarKind::kSelectedRows) {
    HR_ENFORCE(in.type->selected_rows != nullptr, DataLoss, "corrupt program: variable '", name, "' has no shape");
    var.tensor = Read(*in.type->selected_rows, name);
  } else if (var.kind == VarKind::kReader && in.type->reader != nullptr) {
    for (size_t i = 0; i < in.type->reader->n_lod_tensor; ++i) {
      var.reader.push_back(Read(*in.type->reader->lod_tensor[i], name));
    }
  }
  var.persistable = in.persistable != 0;
  var.stop_gradient = in.stop_gradient != 0;
  var.is_parameter = in.is_parameter != 0;
  var.attrs = ReadAttrs(in.n_attrs, in.attrs, name);
}

VarNameMap ReadSlots(size_t n, const proto::Slot* const* slots, const std::string& op_type) {
  VarNameMap map;
  for (size_t i = 0; i < n; ++i) {
    const std::string name = TextOf(slots[i]->parameter);
    const bool is_new = map.emplace(name, TextsOf(slots[i]->n_arguments, slots[i]->arguments)).second;
    HR_ENFORCE(is_new, DataLoss, "corrupt program: operator '", op_type, "' has slot '", name, "' twice");
  }
  return map;
}

OpDesc Read(const proto::OpDesc& in) {
  OpDesc op;
  op.type = TextOf(in.type);
  op.inputs = ReadSlots(in.n_inputs, in.inputs, op.type);
  op.outputs = ReadSlots(in.n_outputs, in.outputs, op.type);
  op.attrs = ReadAttrs(in.n_attrs, in.attrs, op.type);
  return op;
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
  for (size_t i = 0; program.op_version_map != nullptr && i < program.op_version_map->n_pair; ++i) {
    const proto::OpVersionPair& pair = *program.op_version_map->pair[i];
    const std::string type = TextOf(pair.op_name);
    const int32_t version = pair.op_version->version;
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
  MessageBuilder builder;
  const proto::ProgramDesc* message = builder.Build(*this);
  std::string bytes(headrace__proto__program_desc__get_packed_size(message), '\0');
  headrace__proto__program_desc__pack(message, reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes;
}

std::unique_ptr<ProgramDesc> ProgramDesc::Parse(std::string_view bytes) {
  const auto release = [](proto::ProgramDesc* message) {
    headrace__proto__program_desc__free_unpacked(message, nullptr);
  };
  const std::unique_ptr<proto::ProgramDesc, decltype(release)> in(
      headrace__proto__program_desc__unpack(nullptr, bytes.size(), reinterpret_cast<const uint8_t*>(bytes.data())),
      release);
  HR_ENFORCE(in != nullptr, DataLoss, "the ", bytes.size(), " bytes are not a serialised program");
  HR_ENFORCE(in->n_blocks > 0, DataLoss, "corrupt program: it has no block");
  // Ours is 0, as Fluid's was at first; then it wrote its release: 1006001 is 1.6.1.
  HR_ENFORCE(in->version == nullptr || (in->version->version >= 0 && in->version->version < 2'000'000), DataLoss,
             "the program has format version ", in->version->version, ", expected 0 or a release of Fluid 1");
  const std::map<std::string, int32_t> versions = ReadVersions(*in);
  auto program = std::make_unique<ProgramDesc>();
  for (size_t i = 0; i < in->n_blocks; ++i) {
    const proto::BlockDesc& block = *in->blocks[i];
    const int32_t parent = block.parent_idx;
    HR_ENFORCE(std::cmp_equal(block.idx, i), DataLoss, "corrupt program: block ", i, " says that it is block ",
               block.idx);
    HR_ENFORCE(i == 0 ? parent == -1 : (parent >= 0 && std::cmp_less(parent, i)), DataLoss, "corrupt program: block ",
               i, " has parent ", parent);
    BlockDesc& to = i == 0 ? program->block(0) : program->AppendBlock(parent);
    for (size_t v = 0; v < block.n_vars; ++v) {
      Read(*block.vars[v], &to);
    }
  }
  for (size_t i = 0; i < in->n_blocks; ++i) {
    BlockDesc& block = program->block(i);
    for (size_t o = 0; o < in->blocks[i]->n_ops; ++o) {
      OpDesc op = Read(*in->blocks[i]->ops[o]);
      Upgrade(versions, &op);
      CheckOp(block, &op);
      block.ops_.push_back(std::make_unique<const OpDesc>(std::move(op)));
    }
  }
  program->Touch();
  return program;
}

}  // namespace headrace
