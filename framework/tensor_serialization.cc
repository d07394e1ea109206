#include "framework/tensor_serialization.h"

#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "framework/data_type.h"
#include "framework/ddim.h"
#include "framework/framework.pb.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little);

// A file that says more is not one of ours.
constexpr int kMaxRank = 64;
constexpr uint64_t kMaxLoDLevels = 64;

template <typename T>
void Put(std::string* bytes, T value) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename... Args>
void Enforce(const ByteSource& source, bool condition, const Args&... args) {
  HR_ENFORCE(condition, DataLoss, source.name(), " does not hold a tensor: ", args...);
}

LoD ReadLoD(ByteSource* source) {
  const auto levels = source->Number<uint64_t>("the number of LoD levels");
  Enforce(*source, levels <= kMaxLoDLevels, "it has ", levels, " LoD levels, at most ", kMaxLoDLevels, " are expected");
  LoD lod;
  for (uint64_t level = 0; level < levels; ++level) {
    const auto bytes = source->Number<uint64_t>("the size of a LoD level");
    Enforce(*source, bytes % sizeof(uint64_t) == 0 && bytes <= source->left(), "LoD level ", level, " has ", bytes,
            " bytes");
    auto& offsets = lod.emplace_back(bytes / sizeof(uint64_t));
    source->Read(offsets.data(), bytes, "a LoD level");
  }
  return lod;
}

// Checked: a data type that exists, and no more dimensions than a tensor may have.
proto::VarType::TensorDesc ReadDesc(ByteSource* source) {
  const auto size = source->Number<int32_t>("the size of a TensorDesc");
  Enforce(*source, size >= 0 && static_cast<uint64_t>(size) <= source->left(), "its TensorDesc has ", size, " bytes");
  std::string bytes(static_cast<size_t>(size), '\0');
  source->Read(bytes.data(), bytes.size(), "a TensorDesc");
  proto::VarType::TensorDesc desc;
  // Partial, since the runtime would write to the standard error what is missing.
  Enforce(*source, desc.ParsePartialFromString(bytes), "its TensorDesc is cut off or corrupt");
  Enforce(*source, desc.has_data_type() && IsDataType(desc.data_type()), "its TensorDesc names no known dtype");
  Enforce(*source, desc.unknown_fields().empty(), "its TensorDesc has an unknown field");
  Enforce(*source, desc.dims_size() <= kMaxRank, "it has ", desc.dims_size(), " dimensions, at most ", kMaxRank,
          " are expected");
  return desc;
}

}  // namespace

ByteSource::~ByteSource() = default;

void ByteSource::Read(void* to, uint64_t bytes, std::string_view what) {
  HR_ENFORCE(bytes <= left_, DataLoss, name_, " ends within ", what, ": ", bytes, " bytes are expected, ", left_,
             " are left");
  ReadImpl(to, bytes);
  left_ -= bytes;
}

void MemorySource::ReadImpl(void* to, uint64_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, bytes_.data(), bytes);
  }
  bytes_.remove_prefix(bytes);
}

FileSource::FileSource(const std::string& path)
    : FileSource(path, std::ifstream(path, std::ios::binary | std::ios::ate)) {}

FileSource::FileSource(const std::string& path, std::ifstream file)
    : ByteSource("'" + path + "'", file.is_open() ? static_cast<uint64_t>(file.tellg()) : 0), file_(std::move(file)) {
  HR_ENFORCE(file_.is_open(), IoError, "cannot open '", path, "' for reading");
  file_.seekg(0);
}

void FileSource::ReadImpl(void* to, uint64_t bytes) {
  file_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
  HR_ENFORCE(file_.good() || bytes == 0, IoError, "reading ", name(), " failed");
}

std::string SerializedHeader(const LoDTensor& tensor) {
  std::string bytes;
  Put<uint32_t>(&bytes, 0);
  Put<uint64_t>(&bytes, tensor.lod_level());
  for (const auto& level : tensor.lod()) {
    Put<uint64_t>(&bytes, level.size() * sizeof(uint64_t));
    for (const size_t offset : level) {
      Put<uint64_t>(&bytes, offset);
    }
  }
  proto::VarType::TensorDesc desc;
  desc.set_data_type(static_cast<proto::VarType::Type>(tensor.dtype()));
  desc.mutable_dims()->Assign(tensor.dims().begin(), tensor.dims().end());
  Put<uint32_t>(&bytes, 0);
  Put<int32_t>(&bytes, static_cast<int32_t>(desc.ByteSizeLong()));
  desc.AppendToString(&bytes);
  return bytes;
}

void ReadTensor(ByteSource* source, LoDTensor* tensor) {
  const auto version = source->Number<uint32_t>("the version of a tensor");
  Enforce(*source, version == 0, "its version is ", version, ", expected 0");
  LoD lod = ReadLoD(source);
  const auto inner_version = source->Number<uint32_t>("the version of a tensor");
  Enforce(*source, inner_version == 0, "its version is ", inner_version, ", expected 0");
  const proto::VarType::TensorDesc desc = ReadDesc(source);
  const auto dtype = static_cast<DataType>(desc.data_type());
  DDim dims(desc.dims().begin(), desc.dims().end());
  try {
    const int64_t numel = Product(dims);
    const int64_t bytes = MultiplyExtents(numel, static_cast<int64_t>(SizeOf(dtype)));
    Enforce(*source, static_cast<uint64_t>(bytes) <= source->left(), "it has dims ", ToString(dims), " of ",
            DataTypeName(dtype), ", but only ", source->left(), " bytes are left");
    CheckLoD(lod, dims.empty() ? 1 : dims[0]);
  } catch (const InvalidArgument& error) {
    Enforce(*source, false, error.message());
  }
  tensor->Resize(std::move(dims));
  void* data = tensor->mutable_data(dtype);
  source->Read(data, tensor->nbytes(), "the elements");
  tensor->set_lod(std::move(lod));
}

void WriteTensor(const LoDTensor& tensor, FileReplacement* file) {
  file->Write(SerializedHeader(tensor));
  file->Write(tensor.raw_data(), tensor.nbytes());
}

std::vector<LoDTensor> ReadTensors(const std::string& path, const std::vector<std::string>& names) {
  FileSource source(path);
  std::vector<LoDTensor> tensors(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    HR_ENFORCE(i == 0 || source.left() > 0, DataLoss, source.name(), " holds ", i, i == 1 ? " tensor" : " tensors",
               ", and ", names.size(), " are asked for: it lacks '", names[i], "'",
               i + 1 == names.size() ? "" : " and those after it", "; was it saved from another program, or cut off?");
    try {
      ReadTensor(&source, &tensors[i]);
    } catch (Error& error) {
      error.SetVariable(names[i]);
      throw;
    }
  }
  HR_ENFORCE(source.left() == 0, DataLoss, source.name(), " holds more than the ", names.size(),
             names.size() == 1 ? " tensor that is" : " tensors that are", " expected: ", source.left(),
             " bytes are left");
  return tensors;
}

void FitDeclared(const std::string& name, const TensorSpec& declared, bool any_dims, LoDTensor* tensor) {
  HR_ENFORCE(tensor->dtype() == declared.dtype, TypeMismatch, "variable '", name, "' is ", DataTypeName(declared.dtype),
             ", but ", DataTypeName(tensor->dtype()), " was saved");
  if (tensor->dims().empty() && declared.dims == DDim{1}) {  // so Paddle's later releases store single numbers
    tensor->Resize({1});
  }
  HR_ENFORCE(any_dims || Matches(declared.dims, tensor->dims()), InvalidArgument, "variable '", name, "' has shape ",
             ToString(declared.dims), ", but ", ToString(tensor->dims()), " was saved");
}

}  // namespace headrace
