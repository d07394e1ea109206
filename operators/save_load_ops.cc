// save, save_combine, load, load_combine: tensors in files, in the format of framework/tensor_serialization.h. A
// combined file holds one tensor after the other.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/tensor_serialization.h"
#include "operators/kernel_util.h"

namespace headrace::ops {
namespace {

class FileSource : public ByteSource {
 public:
  explicit FileSource(const std::string& path)
      : FileSource(path, std::ifstream(path, std::ios::binary | std::ios::ate)) {}

 private:
  FileSource(const std::string& path, std::ifstream file) : ByteSource("'" + path + "'", SizeOf(path, &file)) {
    file_ = std::move(file);
    file_.seekg(0);
  }

  static uint64_t SizeOf(const std::string& path, std::ifstream* file) {
    HR_ENFORCE(file->is_open(), IoError, "cannot open '", path, "' for reading");
    return static_cast<uint64_t>(file->tellg());
  }

  void ReadImpl(void* to, uint64_t bytes) override {
    file_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    HR_ENFORCE(file_.good() || bytes == 0, IoError, "reading ", name(), " failed");
  }

  std::ifstream file_;
};

// Appears under its name when it is complete.
void WriteFile(const std::string& path, bool overwrite, const PoolVector<const LoDTensor*>& tensors) {
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
      const std::string header = SerializedHeader(*tensor);
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
    PoolVector<const LoDTensor*> tensors;
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
    FileSource source(Attr<std::string>("file_path"));
    for (const std::string& name : Outputs("Out")) {
      try {
        ReadTensor(&source, scope.GetVar(name).GetMutable<LoDTensor>());
      } catch (Error& error) {
        error.SetVariable(name);
        throw;
      }
    }
    HR_ENFORCE(source.left() == 0, DataLoss, source.name(), " holds more than the ", Outputs("Out").size(),
               " variables of output Out: ", source.left(), " bytes are left");
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
