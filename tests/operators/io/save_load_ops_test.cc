#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "framework/executor.h"
#include "framework/file_replacement.h"
#include "framework/program_desc.h"
#include "framework/tensor_serialization.h"

namespace headrace {
namespace {

class LoadTest : public testing::Test {
 protected:
  LoadTest() {
    std::string name = (std::filesystem::temp_directory_path() / "load_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~LoadTest() override { std::filesystem::remove_all(folder_); }

  void Save(const std::vector<DDim>& tensors) const {
    FileReplacement file(folder_ / "file");
    for (const DDim& dims : tensors) {
      LoDTensor tensor;
      tensor.Resize(dims);
      std::iota(tensor.mutable_data<float>(), tensor.mutable_data<float>() + tensor.numel(), 0.0F);
      WriteTensor(tensor, &file);
    }
    file.Commit();
  }
  // The dims of the last of the variables, which are declared like this.
  DDim Load(const std::vector<TensorSpec>& declared) const {
    ProgramDesc program;
    OpDesc op{declared.size() == 1 ? "load" : "load_combine", {}, {}, {{"file_path", (folder_ / "file").string()}}};
    Scope scope;
    for (const TensorSpec& spec : declared) {
      const std::string name = "out" + std::to_string(op.outputs["Out"].size());
      VarDesc& var = program.block(0).Var(name);
      var.tensor = spec;
      var.persistable = true;
      op.outputs["Out"].push_back(name);
    }
    program.block(0).AppendOp(op);
    try {
      Executor().Run(program, &scope);
    } catch (...) {
      for (const std::string& name : op.outputs["Out"]) {
        EXPECT_FALSE(scope.GetVar(name).Get<LoDTensor>().initialized());
      }
      throw;
    }
    return scope.GetVar(op.outputs["Out"].back()).Get<LoDTensor>().dims();
  }

  std::filesystem::path folder_;
};

TEST_F(LoadTest, TakesWhatFitsTheDeclaration) {
  Save({{2, 3}});
  EXPECT_EQ(Load({{.dims = {2, 3}}}), (DDim{2, 3}));
  EXPECT_EQ(Load({{.dims = {-1, 3}}}), (DDim{2, 3}));
  EXPECT_EQ(Load({{.dims = {}, .dtype = DataType::kInt64}}), (DDim{2, 3}));  // nothing is declared
  Save({{}});
  EXPECT_EQ(Load({{.dims = {1}}}), (DDim{1}));
}

TEST_F(LoadTest, RefusesWhatDoesNot) {
  Save({{2, 3}});
  EXPECT_THROW(Load({{.dims = {3, 2}}}), InvalidArgument);
  EXPECT_THROW(Load({{.dims = {2, 3, 1}}}), InvalidArgument);
  EXPECT_THROW(Load({{.dims = {2, 3}, .dtype = DataType::kInt64}}), TypeMismatch);
  Save({{2, 3}, {4}});
  EXPECT_EQ(Load({{.dims = {2, -1}}, {.dims = {4}}}), (DDim{4}));
  EXPECT_THROW(Load({{.dims = {2, -1}}, {.dims = {5}}}), InvalidArgument);
}

}  // namespace
}  // namespace headrace
