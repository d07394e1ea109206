// save, save_combine, load, load_combine: tensors in files.
//
// The format is Fluid's, so that either reads what the other has written. A tensor is: uint32 0 (version); uint64
// number of LoD levels, and of each uint64 bytes and the offsets, uint64; uint32 0; int32 bytes of a TensorDesc
// (Protocol Buffers: 1 the dtype, 2 the dims) and the TensorDesc; the elements. Everything is little-endian. A combined
// file holds one tensor after the other.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "framework/op_registry.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kMaxRank = 64;  // a file that says more is not one of ours

template <typename T>
void Put(std::string* bytes, T value) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void PutVarint(std::string* bytes, uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    bytes->push_back(static_cast<char>(value | 0x80));
  }
  bytes->push_back(static_cast<char>(value));
}

// Everything that lies before the elements.
std::string Header(const LoDTensor& tensor) {
  std::string bytes;
  Put<uint32_t>(&bytes, 0);
  Put<uint64_t>(&bytes, tensor.lod_level());
  for (const auto& level : tensor.lod()) {
    Put<uint64_t>(&bytes, level.size() * sizeof(uint64_t));
    for (const size_t offset : level) {
      Put<uint64_t>(&bytes, offset);
    }
  }
  std::string desc = "\x08";
  PutVarint(&desc, static_cast<uint64_t>(tensor.dtype()));
  for (const int64_t dim : tensor.dims()) {
    desc.push_back('\x10');
    PutVarint(&desc, static_cast<uint64_t>(dim));
  }
  Put<uint32_t>(&bytes, 0);
  Put<int32_t>(&bytes, static_cast<int32_t>(desc.size()));
  return bytes + desc;
}

// Reads a file front to back. What is wrong with it is DataLoss, naming the file.
class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)), file_(path_, std::ios::binary | std::ios::ate) {
    HR_ENFORCE(file_.is_open(), IoError, "cannot open '", path_, "' for reading");
    left_ = static_cast<uint64_t>(file_.tellg());
    file_.seekg(0);
  }

  uint64_t left() const { return left_; }

  void Read(void* to, uint64_t bytes, std::string_view what) {
    HR_ENFORCE(bytes <= left_, DataLoss, "'", path_, "' ends within ", what, ": ", bytes, " bytes are expected, ",
               left_, " are left");
    file_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    HR_ENFORCE(file_.good() || bytes == 0, IoError, "reading '", path_, "' failed");
    left_ -= bytes;
  }

  template <typename T>
  T Number(std::string_view what) {
    T value{};
    Read(&value, sizeof(T), what);
    return value;
  }

  template <typename... Args>
  void Enforce(bool condition, const Args&... args) const {
    HR_ENFORCE(condition, DataLoss, "'", path_, "' does not hold a tensor: ", args...);
  }

 private:
  std::string path_;
  std::ifstream file_;
  uint64_t left_ = 0;
};

LoD ReadLoD(Reader* reader) {
  const auto levels = reader->Number<uint64_t>("the number of LoD levels");
  reader->Enforce(levels <= reader->left() / sizeof(uint64_t), "it has ", levels, " LoD levels");
  LoD lod;
  for (uint64_t level = 0; level < levels; ++level) {
    const auto bytes = reader->Number<uint64_t>("the size of a LoD level");
    reader->Enforce(bytes % sizeof(uint64_t) == 0 && bytes <= reader->left(), "LoD level ", level, " has ", bytes,
                    " bytes");
    auto& offsets = lod.emplace_back(bytes / sizeof(uint64_t));
    reader->Read(offsets.data(), bytes, "a LoD level");
  }
  return lod;
}

uint64_t TakeVarint(const Reader& reader, std::string_view* bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    reader.Enforce(!bytes->empty(), "its TensorDesc is cut off");
    const auto byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) {
      return value;
    }
  }
  reader.Enforce(false, "its TensorDesc holds a number of more than 64 bits");
  return 0;
}

struct TensorDesc {
  DataType dtype;
  DDim dims;
};

TensorDesc ReadDesc(Reader* reader) {
  const auto size = reader->Number<int32_t>("the size of a TensorDesc");
  reader->Enforce(size >= 0 && static_cast<uint64_t>(size) <= reader->left(), "its TensorDesc has ", size, " bytes");
  std::string buffer(static_cast<size_t>(size), '\0');
  reader->Read(buffer.data(), buffer.size(), "a TensorDesc");
  std::string_view bytes = buffer;
  int64_t dtype = -1;
  DDim dims;
  while (!bytes.empty()) {
    const uint64_t tag = TakeVarint(*reader, &bytes);
    if (tag == 0x08) {
      dtype = static_cast<int64_t>(TakeVarint(*reader, &bytes));
    } else if (tag == 0x10) {
      dims.push_back(static_cast<int64_t>(TakeVarint(*reader, &bytes)));
    } else if (tag == 0x12) {  // packed
      const uint64_t length = TakeVarint(*reader, &bytes);
      reader->Enforce(length <= bytes.size(), "its TensorDesc is cut off");
      for (std::string_view packed = bytes.substr(0, length); !packed.empty();) {
        dims.push_back(static_cast<int64_t>(TakeVarint(*reader, &packed)));
      }
      bytes.remove_prefix(length);
    } else {
      reader->Enforce(false, "its TensorDesc has an unknown field (tag ", tag, ")");
    }
    reader->Enforce(dims.size() <= kMaxRank, "it has more than ", kMaxRank, " dimensions");
  }
  reader->Enforce(dtype == static_cast<int32_t>(dtype) && IsDataType(static_cast<int32_t>(dtype)), "its dtype is ",
                  dtype);
  return {static_cast<DataType>(dtype), std::move(dims)};
}

void ReadTensor(Reader* reader, LoDTensor* tensor) {
  const auto version = reader->Number<uint32_t>("the version of a tensor");
  reader->Enforce(version == 0, "its version is ", version, ", expected 0");
  LoD lod = ReadLoD(reader);
  const auto inner_version = reader->Number<uint32_t>("the version of a tensor");
  reader->Enforce(inner_version == 0, "its version is ", inner_version, ", expected 0");
  TensorDesc desc = ReadDesc(reader);
  try {
    const int64_t numel = Product(desc.dims);
    const int64_t bytes = MultiplyExtents(numel, static_cast<int64_t>(SizeOf(desc.dtype)));
    reader->Enforce(static_cast<uint64_t>(bytes) <= reader->left(), "it has dims ", ToString(desc.dims), " of ",
                    DataTypeName(desc.dtype), ", but only ", reader->left(), " bytes are left");
    CheckLoD(lod, desc.dims.empty() ? 1 : desc.dims[0]);
  } catch (const InvalidArgument& error) {
    reader->Enforce(false, error.message());
  }
  tensor->Resize(std::move(desc.dims));
  void* data = tensor->mutable_data(desc.dtype);
  reader->Read(data, tensor->nbytes(), "the elements");
  tensor->set_lod(std::move(lod));
}

// Appears under its name when it is complete.
void WriteFile(const std::string& path, bool overwrite, const std::vector<const LoDTensor*>& tensors) {
  namespace fs = std::filesystem;
  std::error_code error;
  HR_ENFORCE(overwrite || !fs::exists(path, error), AlreadyExists, "'", path,
             "' exists already; set attribute overwrite, or name another file");
  if (const fs::path folder = fs::path(path).parent_path(); !folder.empty()) {
    fs::create_directories(folder, error);
    HR_ENFORCE(!error, IoError, "cannot make the folder '", folder.string(), "': ", error.message());
  }
  const std::string unfinished = path + ".unfinished";
  {
    std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
    HR_ENFORCE(file.is_open(), IoError, "cannot open '", unfinished, "' for writing");
    for (const LoDTensor* tensor : tensors) {
      const std::string header = Header(*tensor);
      file.write(header.data(), static_cast<std::streamsize>(header.size()));
      file.write(static_cast<const char*>(tensor->raw_data()), static_cast<std::streamsize>(tensor->nbytes()));
    }
    file.close();
    if (!file) {
      fs::remove(unfinished, error);
      Throw<IoError>("writing '", unfinished, "' failed");
    }
  }
  fs::rename(unfinished, path, error);
  HR_ENFORCE(!error, IoError, "cannot rename '", unfinished, "' to '", path, "': ", error.message());
}

const LoDTensor& TensorOf(const Scope& scope, const std::string& name) {
  const auto& tensor = scope.GetVar(name).Get<LoDTensor>();
  HR_ENFORCE(tensor.initialized(), FailedPrecondition, "input X: '", name, "' has not been written yet");
  return tensor;
}

class SaveOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    std::vector<const LoDTensor*> tensors;
    for (const std::string& name : Inputs("X")) {
      tensors.push_back(&TensorOf(scope, name));
    }
    WriteFile(Attr<std::string>("file_path"), Attr<bool>("overwrite"), tensors);
  }
};

class LoadOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    Reader reader(Attr<std::string>("file_path"));
    for (const std::string& name : Outputs("Out")) {
      try {
        ReadTensor(&reader, scope.GetVar(name).GetMutable<LoDTensor>());
      } catch (Error& error) {
        error.SetVariable(name);
        throw;
      }
    }
    HR_ENFORCE(reader.left() == 0, DataLoss, "'", Attr<std::string>("file_path"), "' holds more than the ",
               Outputs("Out").size(), " variables of output Out: ", reader.left(), " bytes are left");
  }
};

void CheckNotHalf(const bool& half) {
  HR_ENFORCE(!half, Unimplemented, "attributes save_as_fp16 and load_as_fp16: expected false; cast the tensor instead");
}

OpRegistrar&& PathAttr(OpRegistrar&& op) { return std::move(op).Attr<std::string>("file_path", "the file"); }

OpRegistrar&& SaveAttrs(OpRegistrar&& op) {
  return PathAttr(std::move(op))
      .Attr<bool>("overwrite", "whether a file that exists is replaced", true)
      .Attr<bool>("save_as_fp16", "Fluid's; false", false, CheckNotHalf);
}

OpRegistrar&& LoadAttrs(OpRegistrar&& op) {
  return PathAttr(std::move(op)).Attr<bool>("load_as_fp16", "Fluid's; false", false, CheckNotHalf);
}

void CheckPath(const InferShapeContext& ctx) {
  HR_ENFORCE(!ctx.Attr<std::string>("file_path").empty(), InvalidArgument,
             "attribute file_path: expected the name of a file, got ''");
}

}  // namespace

HEADRACE_REGISTER_OP(save)
    .Comment("Writes a tensor to a file, with its LoD. Folders are made as they are needed.")
    .Input("X", "any tensor")
    .With(SaveAttrs)
    .InferShape([](InferShapeContext& ctx) { CheckPath(ctx); })
    .Operator<SaveOp>();

HEADRACE_REGISTER_OP(save_combine)
    .Comment("Writes tensors to one file, with their LoDs. Folders are made as they are needed.")
    .Input("X", "tensors, in the order in which they are written", kDuplicable)
    .With(SaveAttrs)
    .InferShape([](InferShapeContext& ctx) { CheckPath(ctx); })
    .Operator<SaveOp>();

HEADRACE_REGISTER_OP(load)
    .Comment("Reads a tensor from a file that save has written, with its LoD.")
    .Output("Out", "the tensor; keeps the dims and the dtype that it is declared with in the program")
    .With(LoadAttrs)
    .InferShape([](InferShapeContext& ctx) { CheckPath(ctx); })
    .Operator<LoadOp>();

HEADRACE_REGISTER_OP(load_combine)
    .Comment("Reads all tensors of a file that save_combine has written, with their LoDs.")
    .Output("Out", "the tensors, in the order in which they were written", kDuplicable)
    .With(LoadAttrs)
    .InferShape([](InferShapeContext& ctx) { CheckPath(ctx); })
    .Operator<LoadOp>();

}  // namespace headrace::ops
