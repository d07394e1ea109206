// ProgramDesc ⇄ bytes. The only source that sees Protocol Buffers.
#include <limits>
#include <type_traits>
#include <utility>

#include "framework/framework.pb.h"
#include "framework/op_registry.h"
#include "framework/operator.h"
#include "framework/program_check.h"
#include "framework/program_desc.h"

namespace headrace {
namespace {

// ---- To bytes ----

struct AttrWriter {
  proto::OpDesc::Attr* out;

  void operator()(std::monostate) const { Throw<FailedPrecondition>("attribute '", out->name(), "' has no value"); }
  void operator()(bool v) const {
    out->set_type(proto::BOOLEAN);
    out->set_b(v);
  }
  void operator()(int32_t v) const {
    out->set_type(proto::INT);
    out->set_i(v);
  }
  void operator()(int64_t v) const {
    out->set_type(proto::LONG);
    out->set_l(v);
  }
  void operator()(float v) const {
    out->set_type(proto::FLOAT);
    out->set_f(v);
  }
  void operator()(double v) const {
    out->set_type(proto::DOUBLE);
    out->set_d(v);
  }
  void operator()(const std::string& v) const {
    out->set_type(proto::STRING);
    out->set_s(v);
  }
  void operator()(BlockRef v) const {
    out->set_type(proto::BLOCK);
    out->set_block_idx(v.index);
  }
  void operator()(const std::vector<bool>& v) const {
    out->set_type(proto::BOOLEANS);
    for (const bool item : v) {
      out->add_bools(item);
    }
  }
  void operator()(const std::vector<int32_t>& v) const {
    out->set_type(proto::INTS);
    out->mutable_ints()->Add(v.begin(), v.end());
  }
  void operator()(const std::vector<int64_t>& v) const {
    out->set_type(proto::LONGS);
    out->mutable_longs()->Add(v.begin(), v.end());
  }
  void operator()(const std::vector<float>& v) const {
    out->set_type(proto::FLOATS);
    out->mutable_floats()->Add(v.begin(), v.end());
  }
  void operator()(const std::vector<std::string>& v) const {
    out->set_type(proto::STRINGS);
    for (const std::string& item : v) {
      out->add_strings(item);
    }
  }
};

void Write(const TensorSpec& spec, proto::VarType::LoDTensorDesc* out) {
  out->mutable_tensor()->set_data_type(static_cast<proto::VarType::Type>(spec.dtype));
  out->mutable_tensor()->mutable_dims()->Add(spec.dims.begin(), spec.dims.end());
  out->set_lod_level(spec.lod_level);
}

bool HasTensor(VarKind kind) { return kind == VarKind::kLoDTensor || kind == VarKind::kLoDTensorArray; }

void Write(const VarDesc& var, proto::VarDesc* out) {
  out->set_name(var.name);
  out->mutable_type()->set_type(static_cast<proto::VarType::Type>(var.kind));
  if (HasTensor(var.kind)) {
    Write(var.tensor, out->mutable_type()->mutable_lod_tensor());
  } else if (var.kind == VarKind::kReader) {
    auto* reader = out->mutable_type()->mutable_reader();
    for (const TensorSpec& spec : var.reader) {
      Write(spec, reader->add_lod_tensor());
    }
  }
  out->set_persistable(var.persistable);
  out->set_stop_gradient(var.stop_gradient);
  out->set_is_parameter(var.is_parameter);
}

template <typename Repeated>
void Write(const VarNameMap& slots, Repeated* out) {
  for (const auto& [slot, names] : slots) {
    auto* entry = out->Add();
    entry->set_parameter(slot);
    for (const std::string& name : names) {
      entry->add_arguments(name);
    }
  }
}

void Write(const OpDesc& op, proto::OpDesc* out) {
  out->set_type(op.type);
  Write(op.inputs, out->mutable_inputs());
  Write(op.outputs, out->mutable_outputs());
  for (const auto& [name, value] : op.attrs) {
    auto* attr = out->add_attrs();
    attr->set_name(name);
    std::visit(AttrWriter{attr}, value);
  }
}

// ---- From bytes ----

template <typename T, typename Repeated>
std::vector<T> ToVector(const Repeated& items) {
  return std::vector<T>(items.begin(), items.end());
}

Attribute Read(const proto::OpDesc::Attr& attr, const std::string& op_type) {
  const auto scalar = [&](bool present, auto value) -> Attribute {
    HR_ENFORCE(present, DataLoss, "corrupt program: attribute '", attr.name(), "' of '", op_type,
               "' has a type but no value");
    return value;
  };
  switch (attr.type()) {
    case proto::INT:
      return scalar(attr.has_i(), attr.i());
    case proto::LONG:
      return scalar(attr.has_l(), attr.l());
    case proto::FLOAT:
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
      return ToVector<int32_t>(attr.ints());
    case proto::LONGS:
      return ToVector<int64_t>(attr.longs());
    case proto::FLOATS:
      return ToVector<float>(attr.floats());
    case proto::STRINGS:
      return ToVector<std::string>(attr.strings());
    case proto::BOOLEANS:
      return ToVector<bool>(attr.bools());
  }
  Throw<DataLoss>("corrupt program: attribute '", attr.name(), "' of '", op_type, "' is of type ",
                  static_cast<int>(attr.type()));
}

TensorSpec Read(const proto::VarType::LoDTensorDesc& desc, const std::string& name) {
  // Deeper nesting than any program has; a corrupt depth would become a corrupt allocation somewhere else.
  constexpr int32_t kMaxLoDLevel = 64;
  TensorSpec spec;
  HR_ENFORCE(IsDataType(desc.tensor().data_type()), DataLoss, "corrupt program: variable '", name, "' has data type ",
             static_cast<int>(desc.tensor().data_type()));
  spec.dtype = static_cast<DataType>(desc.tensor().data_type());
  spec.dims = ToVector<int64_t>(desc.tensor().dims());
  spec.lod_level = desc.lod_level();
  HR_ENFORCE(spec.lod_level >= 0 && spec.lod_level <= kMaxLoDLevel, DataLoss, "corrupt program: variable '", name,
             "' has LoD level ", spec.lod_level);
  int64_t numel = 1;
  for (const int64_t dim : spec.dims) {
    HR_ENFORCE(dim >= -1 && !(dim > 0 && __builtin_mul_overflow(numel, dim, &numel)), DataLoss,
               "corrupt program: variable '", name, "' has shape ", ToString(spec.dims));
  }
  return spec;
}

bool IsVarKind(int value) {
  switch (static_cast<VarKind>(value)) {
    case VarKind::kLoDTensor:
    case VarKind::kFeedMinibatch:
    case VarKind::kFetchList:
    case VarKind::kStepScopes:
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
  HR_ENFORCE(IsVarKind(in.type().type()), DataLoss, "corrupt program: variable '", name, "' is of kind ",
             static_cast<int>(in.type().type()));
  VarDesc& var = block->Var(name);
  var.kind = static_cast<VarKind>(in.type().type());
  if (HasTensor(var.kind)) {
    HR_ENFORCE(in.type().has_lod_tensor(), DataLoss, "corrupt program: tensor variable '", name, "' has no shape");
    var.tensor = Read(in.type().lod_tensor(), name);
  } else if (var.kind == VarKind::kReader) {
    for (const auto& spec : in.type().reader().lod_tensor()) {
      var.reader.push_back(Read(spec, name));
    }
  }
  var.persistable = in.persistable();
  var.stop_gradient = in.stop_gradient();
  var.is_parameter = in.is_parameter();
}

template <typename Repeated>
VarNameMap ReadSlots(const Repeated& slots, const std::string& op_type) {
  VarNameMap map;
  for (const auto& slot : slots) {
    const bool is_new = map.emplace(slot.parameter(), ToVector<std::string>(slot.arguments())).second;
    HR_ENFORCE(is_new, DataLoss, "corrupt program: operator '", op_type, "' has slot '", slot.parameter(), "' twice");
  }
  return map;
}

OpDesc Read(const proto::OpDesc& in) {
  OpDesc op;
  op.type = in.type();
  op.inputs = ReadSlots(in.inputs(), op.type);
  op.outputs = ReadSlots(in.outputs(), op.type);
  for (const auto& attr : in.attrs()) {
    const bool is_new = op.attrs.emplace(attr.name(), Read(attr, op.type)).second;
    HR_ENFORCE(is_new, DataLoss, "corrupt program: operator '", op.type, "' has attribute '", attr.name(), "' twice");
  }
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

}  // namespace

std::string ProgramDesc::Serialize() const {
  proto::ProgramDesc out;
  out.mutable_version()->set_version(0);
  for (const auto& block : blocks_) {
    proto::BlockDesc* b = out.add_blocks();
    b->set_idx(block->index());
    b->set_parent_idx(block->parent());
    for (const auto& var : block->vars_) {
      Write(*var, b->add_vars());
    }
    for (const auto& op : block->ops_) {
      Write(*op, b->add_ops());
    }
  }
  std::string bytes;
  HR_ENFORCE(out.SerializeToString(&bytes), ResourceExhausted, "the program is too large to serialise");
  return bytes;
}

std::unique_ptr<ProgramDesc> ProgramDesc::Parse(std::string_view bytes) {
  HR_ENFORCE(bytes.size() <= static_cast<size_t>(std::numeric_limits<int>::max()), DataLoss, "a serialised program of ",
             bytes.size(), " bytes is too large");
  proto::ProgramDesc in;
  // The partial form and a check of our own: ParseFromArray would write to stderr.
  HR_ENFORCE(in.ParsePartialFromArray(bytes.data(), static_cast<int>(bytes.size())) && in.IsInitialized(), DataLoss,
             "the ", bytes.size(), " bytes are not a serialised program");
  HR_ENFORCE(in.blocks_size() > 0, DataLoss, "corrupt program: it has no block");
  HR_ENFORCE(in.version().version() == 0, DataLoss, "the program has format version ", in.version().version(),
             ", expected 0");
  auto program = std::make_unique<ProgramDesc>();
  for (int i = 0; i < in.blocks_size(); ++i) {
    const proto::BlockDesc& block = in.blocks(i);
    const int32_t parent = block.parent_idx();
    HR_ENFORCE(block.idx() == i, DataLoss, "corrupt program: block ", i, " says that it is block ", block.idx());
    HR_ENFORCE(i == 0 ? parent == -1 : (parent >= 0 && parent < i), DataLoss, "corrupt program: block ", i,
               " has parent ", parent);
    BlockDesc& to = i == 0 ? program->block(0) : program->AppendBlock(parent);
    for (const proto::VarDesc& var : block.vars()) {
      Read(var, &to);
    }
  }
  for (int i = 0; i < in.blocks_size(); ++i) {
    BlockDesc& block = program->block(static_cast<size_t>(i));
    for (const proto::OpDesc& in_op : in.blocks(i).ops()) {
      OpDesc op = Read(in_op);
      CheckOp(block, &op);
      block.ops_.push_back(std::make_unique<OpDesc>(std::move(op)));
    }
  }
  program->Touch();
  return program;
}

}  // namespace headrace
