#include "framework/tensor_serialization.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "framework/data_type.h"
#include "framework/ddim.h"

namespace headrace {
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

template <typename... Args>
void Enforce(const ByteSource& source, bool condition, const Args&... args) {
  HR_ENFORCE(condition, DataLoss, source.name(), " does not hold a tensor: ", args...);
}

LoD ReadLoD(ByteSource* source) {
  const auto levels = source->Number<uint64_t>("the number of LoD levels");
  Enforce(*source, levels <= source->left() / sizeof(uint64_t), "it has ", levels, " LoD levels");
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

uint64_t TakeVarint(const ByteSource& source, std::string_view* bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    Enforce(source, !bytes->empty(), "its TensorDesc is cut off");
    const auto byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) {
      return value;
    }
  }
  Enforce(source, false, "its TensorDesc holds a number of more than 64 bits");
  return 0;
}

struct TensorDesc {
  DataType dtype;
  DDim dims;
};

TensorDesc ReadDesc(ByteSource* source) {
  const auto size = source->Number<int32_t>("the size of a TensorDesc");
  Enforce(*source, size >= 0 && static_cast<uint64_t>(size) <= source->left(), "its TensorDesc has ", size, " bytes");
  std::string buffer(static_cast<size_t>(size), '\0');
  source->Read(buffer.data(), buffer.size(), "a TensorDesc");
  std::string_view bytes = buffer;
  int64_t dtype = -1;
  DDim dims;
  while (!bytes.empty()) {
    const uint64_t tag = TakeVarint(*source, &bytes);
    if (tag == 0x08) {
      dtype = static_cast<int64_t>(TakeVarint(*source, &bytes));
    } else if (tag == 0x10) {
      dims.push_back(static_cast<int64_t>(TakeVarint(*source, &bytes)));
    } else if (tag == 0x12) {  // packed
      const uint64_t length = TakeVarint(*source, &bytes);
      Enforce(*source, length <= bytes.size(), "its TensorDesc is cut off");
      for (std::string_view packed = bytes.substr(0, length); !packed.empty();) {
        dims.push_back(static_cast<int64_t>(TakeVarint(*source, &packed)));
      }
      bytes.remove_prefix(length);
    } else {
      Enforce(*source, false, "its TensorDesc has an unknown field (tag ", tag, ")");
    }
    Enforce(*source, dims.size() <= kMaxRank, "it has more than ", kMaxRank, " dimensions");
  }
  Enforce(*source, dtype == static_cast<int32_t>(dtype) && IsDataType(static_cast<int32_t>(dtype)), "its dtype is ",
          dtype);
  return {static_cast<DataType>(dtype), std::move(dims)};
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

void ReadTensor(ByteSource* source, LoDTensor* tensor) {
  const auto version = source->Number<uint32_t>("the version of a tensor");
  Enforce(*source, version == 0, "its version is ", version, ", expected 0");
  LoD lod = ReadLoD(source);
  const auto inner_version = source->Number<uint32_t>("the version of a tensor");
  Enforce(*source, inner_version == 0, "its version is ", inner_version, ", expected 0");
  TensorDesc desc = ReadDesc(source);
  try {
    const int64_t numel = Product(desc.dims);
    const int64_t bytes = MultiplyExtents(numel, static_cast<int64_t>(SizeOf(desc.dtype)));
    Enforce(*source, static_cast<uint64_t>(bytes) <= source->left(), "it has dims ", ToString(desc.dims), " of ",
            DataTypeName(desc.dtype), ", but only ", source->left(), " bytes are left");
    CheckLoD(lod, desc.dims.empty() ? 1 : desc.dims[0]);
  } catch (const InvalidArgument& error) {
    Enforce(*source, false, error.message());
  }
  tensor->Resize(std::move(desc.dims));
  void* data = tensor->mutable_data(desc.dtype);
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
    try {
      ReadTensor(&source, &tensors[i]);
    } catch (Error& error) {
      error.SetVariable(names[i]);
      throw;
    }
  }
  HR_ENFORCE(source.left() == 0, DataLoss, source.name(), " holds more than the ", names.size(),
             " tensors that are expected: ", source.left(), " bytes are left");
  return tensors;
}

}  // namespace headrace
