// Tensors as bytes, in files and records. The format is Fluid's, so that either can read the files of the other:
// uint32 0 (version); uint64 number of LoD levels, and of each uint64 bytes and the offsets, uint64; uint32 0; int32
// bytes of a TensorDesc (Protocol Buffers: 1 the dtype, 2 the dims) and the TensorDesc; the elements. Everything is
// little-endian.
//
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "framework/errors.h"
#include "framework/export.h"
#include "framework/file_replacement.h"
#include "framework/lod_tensor.h"
#include "framework/var_desc.h"

namespace headrace {

// Bytes that are read front to back. Errors in them are DataLoss, naming them.
class HEADRACE_API ByteSource {
 public:
  // `name`: where they are from; `size`: how many there are.
  ByteSource(std::string name, uint64_t size) : name_(std::move(name)), left_(size) {}
  virtual ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  const std::string& name() const { return name_; }
  uint64_t left() const { return left_; }

  // The next bytes. `what` names them in the error if there are fewer.
  void Read(void* to, uint64_t bytes, std::string_view what);

  template <typename T>
  T Number(std::string_view what) {
    T value{};
    Read(&value, sizeof(T), what);
    return value;
  }

 private:
  // `bytes` are left.
  virtual void ReadImpl(void* to, uint64_t bytes) = 0;

  const std::string name_;
  uint64_t left_;
};

// Bytes in memory, which must outlive it.
class HEADRACE_API MemorySource : public ByteSource {
 public:
  MemorySource(std::string name, std::string_view bytes) : ByteSource(std::move(name), bytes.size()), bytes_(bytes) {}

 private:
  void ReadImpl(void* to, uint64_t bytes) override;

  std::string_view bytes_;
};

// A file. Throws IoError if it cannot be read.
class HEADRACE_API FileSource : public ByteSource {
 public:
  explicit FileSource(const std::string& path);

 private:
  FileSource(const std::string& path, std::ifstream file);
  void ReadImpl(void* to, uint64_t bytes) override;

  std::ifstream file_;
};

// Everything that lies before the elements of `tensor`.
HEADRACE_API std::string SerializedHeader(const LoDTensor& tensor);

// The next tensor of `source`. Sizes in the bytes are checked before memory is allocated.
HEADRACE_API void ReadTensor(ByteSource* source, LoDTensor* tensor);

// Appends a tensor that has data.
HEADRACE_API void WriteTensor(const LoDTensor& tensor, FileReplacement* file);

// The tensors of a file that holds one for each variable of `names`, in that order, and nothing else. Throws IoError or
// DataLoss, with the variable.
HEADRACE_API std::vector<LoDTensor> ReadTensors(const std::string& path, const std::vector<std::string>& names);

// Checks that a tensor that was saved has the dtype and, unless any will do, the dims that variable `name` is declared
// with. A single number without dims becomes one of dims [1] where that is declared. Throws TypeMismatch or
// InvalidArgument, naming the variable.
HEADRACE_API void FitDeclared(const std::string& name, const TensorSpec& declared, bool any_dims, LoDTensor* tensor);

}  // namespace headrace
