// save, save_combine, load, load_combine: tensors in files, in the format of framework/tensor_serialization.h. A
// combined file holds one tensor after the other.
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "framework/file_replacement.h"
#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "framework/tensor_serialization.h"

namespace headrace::ops {
namespace {

// Appears under its name when it is complete.
void WriteFile(const std::string& path, bool overwrite, const PoolVector<const LoDTensor*>& tensors) {
  std::error_code error;
  HR_ENFORCE(overwrite || !std::filesystem::exists(path, error), AlreadyExists, "'", path,
             "' exists already; set attribute overwrite, or name another file");
  FileReplacement file(path);
  for (const LoDTensor* tensor : tensors) {
    WriteTensor(*tensor, &file);
  }
  file.Commit();
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

  void Prepare(const BlockDesc& block) override { block_ = &block; }

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const auto& names = Outputs("Out");
    std::vector<LoDTensor*> targets;
    for (const std::string& name : names) {
      targets.push_back(scope.GetVar(name).GetMutable<LoDTensor>());
    }
    std::vector<LoDTensor> tensors = ReadTensors(Attr<std::string>("file_path"), names);  // or all stay as they are
    for (size_t i = 0; i < tensors.size(); ++i) {
      const VarDesc* var = block_ == nullptr ? nullptr : block_->FindVar(names[i]);
      if (var != nullptr && !var->tensor.dims.empty()) {
        FitDeclared(names[i], var->tensor, /*any_dims=*/false, &tensors[i]);
      }
    }
    for (size_t i = 0; i < targets.size(); ++i) {
      *targets[i] = std::move(tensors[i]);
    }
  }

  const BlockDesc* block_ = nullptr;
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
    .Output("Out", "the tensor; of the dims and the dtype that the program declares, if it declares dims")
    .With(LoadAttrs)
    .InferShape([](InferShapeContext& ctx) { CheckPath(ctx); })
    .Operator<LoadOp>();

HEADRACE_REGISTER_OP(load_combine)
    .Comment("Reads all tensors of a file that save_combine has written, with their LoDs.")
    .Output("Out", "the tensors, in the order in which they were written; each as load has it", kDuplicable)
    .With(LoadAttrs)
    .InferShape([](InferShapeContext& ctx) { CheckPath(ctx); })
    .Operator<LoadOp>();

}  // namespace headrace::ops
