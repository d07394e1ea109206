#include "framework/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "framework/executor.h"
#include "framework/lod_tensor.h"
#include "framework/op_role.h"
#include "tests/operators/net.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

using test::Net;

constexpr char kMarker[] = "of another model";

// y = softmax(dropout(x · w + b)), trained towards a label.
struct Classifier : Net {
  Classifier() {
    Data("x", {-1, 2});
    Data("label", {-1, 1}, DataType::kInt64);
    const std::string hidden =
        Add("dropout", {{"X", Connected("x", 2, 3)}}, {"Out", "Mask"},
            {{"dropout_prob", 0.5f}, {"dropout_implementation", std::string("upscale_in_train")}});
    probabilities = Add("softmax", {{"X", hidden}}, {"Out"});
    loss = Add("mean", {{"X", Add("cross_entropy", {{"X", probabilities}, {"Label", "label"}}, {"Y"})}}, {"Out"});
    Minimize(loss, "momentum", 0.1f);
  }
  std::string probabilities;
  std::string loss;
};

LoDTensor Points() {
  LoDTensor points;
  auto* at = points.Resize({2, 2}).mutable_data<float>();
  for (int i = 0; i < 4; ++i) at[i] = static_cast<float>(i) - 1.5f;
  return points;
}

std::vector<float> Elements(const LoDTensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

class ModelFilesTest : public testing::Test {
 protected:
  ModelFilesTest() {
    std::string name = (fs::temp_directory_path() / "model_files_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    executor_.Run(net_.startup(), &scope_);
    LoDTensor label;
    auto* classes = label.Resize({2, 1}).mutable_data<int64_t>();
    classes[0] = 0;
    classes[1] = 2;
    const auto step = executor_.Prepare(net_.main(), {net_.loss});
    executor_.Run(*step, &scope_, {{"x", Points()}, {"label", label}});
  }
  ~ModelFilesTest() override { fs::remove_all(folder_); }

  // What persists in the net, by name.
  std::map<std::string, std::vector<float>> Values(const Scope& scope) const {
    std::map<std::string, std::vector<float>> values;
    for (const VarDesc* var : net_.main().block(0).LocalVars()) {
      if (!var->persistable) continue;
      const Variable* found = scope.FindVar(var->name);
      if (found != nullptr && found->initialized()) values[var->name] = Elements(found->Get<LoDTensor>());
    }
    return values;
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) names.push_back(entry.path().lexically_relative(folder_).string());
    }
    return names;
  }
  std::vector<float> Infer(const InferenceModel& model, Scope* scope) const {
    const auto prepared = executor_.Prepare(*model.program, model.fetches);
    std::vector<LoDTensor> fetched;
    executor_.Run(*prepared, scope, {{model.feeds.at(0), Points()}}, &fetched);
    return Elements(fetched.at(0));
  }
  void Overwrite(const fs::path& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }

  fs::path folder_;
  Classifier net_;
  const Executor executor_;
  Scope scope_;
};

TEST_F(ModelFilesTest, KeepsAProgram) {
  SaveProgram(net_.main(), folder_ / "new" / "main");
  EXPECT_EQ(LoadProgram(folder_ / "new" / "main")->Serialize(), net_.main().Serialize());
  EXPECT_THROW(LoadProgram(folder_ / "missing"), IoError);
  EXPECT_THROW(LoadProgram(folder_), IoError);
  Overwrite("new/main", "no program");
  try {
    LoadProgram(folder_ / "new" / "main");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DataLoss& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("new/main"));
  }
}

TEST_F(ModelFilesTest, KeepsWhatPersistsInFilesOfItsOwnOrInOne) {
  for (const char* parameters : {"", "all"}) {
    SavePersistables(net_.main(), scope_, folder_ / "state", parameters);
    Scope other;
    LoadPersistables(net_.main(), &other, folder_ / "state", parameters);
    EXPECT_EQ(Values(other), Values(scope_));
    EXPECT_EQ(Files().size(), *parameters == '\0' ? 5u : 1u);  // parameters, velocities and the rate
    fs::remove_all(folder_ / "state");
  }
}

TEST_F(ModelFilesTest, LoadsIntoTheScopeThatHasTheVariable) {
  SavePersistables(net_.main(), scope_, folder_);
  const auto before = Values(scope_);
  scope_.GetVar("rate").GetMutable<LoDTensor>()->mutable_data<float>()[0] = 7;
  Scope inner(&scope_);
  LoadPersistables(net_.main(), &inner, folder_);
  EXPECT_EQ(Values(scope_), before);
  EXPECT_TRUE(inner.LocalVarNames().empty());
}

TEST_F(ModelFilesTest, SavesAllOrNothing) {
  SavePersistables(net_.main(), scope_, folder_);
  const auto before = Values(scope_);
  scope_.GetVar("rate").GetMutable<LoDTensor>()->mutable_data<float>()[0] = 7;
  net_.Constant("unset", {1}, 0);
  EXPECT_THROW(SavePersistables(net_.main(), scope_, folder_), NotFound);
  Classifier fresh;
  Scope other;
  LoadPersistables(fresh.main(), &other, folder_);
  EXPECT_EQ(Values(other), before);
}

TEST_F(ModelFilesTest, LoadsAllOrNothing) {
  SavePersistables(net_.main(), scope_, folder_);
  const auto before = Values(scope_);
  scope_.GetVar("rate").GetMutable<LoDTensor>()->mutable_data<float>()[0] = 7;
  const auto changed = Values(scope_);
  ASSERT_NE(changed, before);

  Classifier wider;
  wider.main().block(0).MutableVar("rate").tensor.dims = {2};
  EXPECT_THROW(LoadPersistables(wider.main(), &scope_, folder_), InvalidArgument);
  wider.main().block(0).MutableVar("rate").tensor = {.dims = {1}, .dtype = DataType::kInt64};
  EXPECT_THROW(LoadPersistables(wider.main(), &scope_, folder_), TypeMismatch);
  wider.Constant("unset", {1}, 0);
  EXPECT_THROW(LoadPersistables(wider.main(), &scope_, folder_), IoError);
  Overwrite("rate", kMarker);
  EXPECT_THROW(LoadPersistables(net_.main(), &scope_, folder_), DataLoss);
  EXPECT_EQ(Values(scope_), changed);
}

TEST_F(ModelFilesTest, SavesOfATrainingProgramWhatInferenceNeeds) {
  for (const ModelFiles& files : {ModelFiles{}, ModelFiles{.program = "program", .parameters = "parameters"}}) {
    SaveInferenceModel(net_.main(), {"x"}, {net_.probabilities}, scope_, folder_ / "model", files);
    EXPECT_EQ(Files().size(), files.parameters.empty() ? 3u : 2u);
    Scope scope;
    const InferenceModel model = LoadInferenceModel(folder_ / "model", &scope, files);
    EXPECT_EQ(model.feeds, std::vector<std::string>{"x"});
    EXPECT_EQ(model.fetches, std::vector<std::string>{net_.probabilities});
    EXPECT_EQ(scope.LocalVarNames().size(), 2u);
    std::vector<std::string> types;
    for (const auto& op : model.program->block(0).ops()) types.push_back(op->type);
    EXPECT_EQ(types, (std::vector<std::string>{"feed", "mul", "elementwise_add", "dropout", "softmax", "fetch"}));
    // Without dropout, so twice the same, and what the weights of the training say.
    const auto first = Infer(model, &scope);
    EXPECT_EQ(first.size(), 6u);
    EXPECT_EQ(Infer(model, &scope), first);
    EXPECT_EQ(Infer(model, &scope_), first);
    fs::remove_all(folder_ / "model");
  }
}

// The operators that read `counter`, of any block.
size_t CountReaders(const ProgramDesc& program, const std::string& counter) {
  size_t readers = 0;
  for (size_t i = 0; i < program.num_blocks(); ++i) {
    for (const auto& op : program.block(i).ops()) {
      readers += op->Input("Seed") == std::vector<std::string>{counter} ? 1 : 0;
    }
  }
  return readers;
}

// A model without what counts its runs would draw the same numbers in each.
TEST_F(ModelFilesTest, WhatIsNoLongerCountedDrawsAfresh) {
  ProgramDesc& main = net_.main();
  BlockDesc& root = main.block(0);
  VarDesc& counter = root.Var("counter");
  counter.tensor = {.dims = {1}, .dtype = DataType::kInt64};
  counter.persistable = true;
  root.Var("noise").tensor.dims = {2};
  root.AppendOp({"uniform_random",
                 {{"Seed", {"counter"}}},
                 {{"Out", {"noise"}}},
                 {{"shape", std::vector<int64_t>{2}}, {"seed", int32_t{7}}}});
  root.AppendOp({"increment", {{"X", {"counter"}}}, {{"Out", {"counter"}}}, {{"op_role", int32_t{kRoleOptimize}}}});
  const ProgramDesc inference = InferenceProgram(main, {}, {"noise"});
  ProgramDesc pruned(main);
  Prune(&pruned, {}, {"noise"});
  for (const ProgramDesc* program : {&inference, static_cast<const ProgramDesc*>(&pruned)}) {
    EXPECT_EQ(CountReaders(*program, "counter"), 0u);
    EXPECT_EQ(program->block(0).FindVar("counter"), nullptr);
    const auto& ops = program->block(0).ops();
    const auto draws = std::find_if(ops.begin(), ops.end(), [](auto& op) { return op->type == "uniform_random"; });
    EXPECT_EQ((*draws)->Attr<int32_t>("seed"), 0);
  }
  // Counted for a result, or by whoever feeds it.
  ProgramDesc counted(main);
  Prune(&counted, {}, {"noise", "counter"});
  EXPECT_EQ(CountReaders(counted, "counter"), 1u);
  root.RemoveOps(root.ops().size() - 1, root.ops().size());
  EXPECT_EQ(CountReaders(InferenceProgram(main, {"counter"}, {"noise"}), "counter"), 1u);
}

TEST_F(ModelFilesTest, FeedsAndFetchesAreInTheOrderGiven) {
  net_.Data("shift", {-1, 3});
  const std::string sum = net_.Add("elementwise_add", {{"X", net_.probabilities}, {"Y", "shift"}}, {"Out"});
  SaveInferenceModel(net_.main(), {"shift", "x"}, {sum, net_.probabilities}, scope_, folder_);
  const InferenceModel model = LoadInferenceModel(folder_, &scope_);
  EXPECT_EQ(model.feeds, (std::vector<std::string>{"shift", "x"}));
  EXPECT_EQ(model.fetches, (std::vector<std::string>{sum, net_.probabilities}));
}

TEST_F(ModelFilesTest, WhatIsFedDoesNotPersist) {
  SaveInferenceModel(net_.main(), {"x"}, {net_.probabilities}, scope_, folder_ / "model");
  const auto expected = Infer(LoadInferenceModel(folder_ / "model", &scope_), &scope_);
  net_.main().block(0).MutableVar("x").persistable = true;
  SaveInferenceModel(net_.main(), {"x"}, {net_.probabilities}, scope_, folder_ / "kept");
  EXPECT_FALSE(fs::exists(folder_ / "kept" / "x"));
  EXPECT_EQ(Infer(LoadInferenceModel(folder_ / "kept", &scope_), &scope_), expected);

  // As Fluid saves it: the feed persists, and has a file.
  ProgramDesc saved(*LoadProgram(folder_ / "model" / "__model__"));
  saved.block(0).MutableVar("x").persistable = true;
  Scope fed(&scope_);
  LoDTensor* x = fed.Var("x")->GetMutable<LoDTensor>();
  x->Resize({1, 2});
  std::fill_n(x->mutable_data<float>(), 2, 7.0F);
  SavePersistables(saved, fed, folder_ / "model");
  SaveProgram(saved, folder_ / "model" / "__model__");
  EXPECT_EQ(Infer(LoadInferenceModel(folder_ / "model", &scope_), &scope_), expected);
}

TEST_F(ModelFilesTest, RefusesWhatIsNoModel) {
  EXPECT_THROW(SaveInferenceModel(net_.main(), {"x"}, {}, scope_, folder_), InvalidArgument);
  EXPECT_THROW(SaveInferenceModel(net_.main(), {"x"}, {"nowhere"}, scope_, folder_), NotFound);
  EXPECT_THROW(SaveInferenceModel(net_.main(), {"nowhere"}, {net_.probabilities}, scope_, folder_), NotFound);
  EXPECT_THROW(SaveInferenceModel(net_.main(), {"x"}, {net_.probabilities}, scope_, folder_, {"one", "one"}),
               InvalidArgument);
  EXPECT_THROW(LoadInferenceModel(folder_, &scope_), IoError);
  SaveProgram(net_.main(), folder_ / "__model__");
  EXPECT_THROW(LoadInferenceModel(folder_, &scope_), DataLoss);
  EXPECT_EQ(Files().size(), 1u);
}

TEST_F(ModelFilesTest, RefusesAModelThatNeedsAReader) {
  ProgramDesc program;
  VarDesc& reader = program.block(0).Var("reader");
  reader.kind = VarKind::kReader;
  reader.persistable = true;
  reader.reader = {{.dims = {-1, 2}}};
  program.block(0).Append("read", {{"Reader", {"reader"}}}, {{"Out", {"x"}}});
  program.block(0).Append("relu", {{"X", {"x"}}}, {{"Out", {"y"}}});
  EXPECT_THROW(SaveInferenceModel(program, {}, {"y"}, scope_, folder_), InvalidArgument);
  SaveInferenceModel(program, {"x"}, {"y"}, scope_, folder_);
  EXPECT_EQ(Infer(LoadInferenceModel(folder_, &scope_), &scope_), (std::vector<float>{0, 0, 0.5f, 1.5f}));
}

// y = relu(2x) if `cond`, of which the operator of the condition does not tell what its block reads and writes.
ProgramDesc WithUntoldBlock() {
  ProgramDesc program;
  BlockDesc& root = program.block(0);
  root.Var("x").tensor.dims = {-1, 2};
  root.Var("y").tensor.dims = {-1, 2};
  root.Append("fill_constant", {}, {{"Out", {"cond"}}},
              {{"shape", std::vector<int64_t>{1}}, {"dtype", static_cast<int32_t>(DataType::kBool)}, {"value", 1.0F}});
  root.Append("scale", {{"X", {"x"}}}, {{"Out", {"doubled"}}}, {{"scale", 2.0F}});
  root.Append("scale", {{"X", {"x"}}}, {{"Out", {"unused"}}}, {{"scale", 3.0F}});
  program.AppendBlock(0).AppendOp({"relu", {{"X", {"doubled"}}}, {{"Out", {"y"}}}, {}});
  root.AppendOp(
      {"conditional_block", {{"Cond", {"cond"}}}, {}, {{"sub_block", BlockRef{1}}, {"is_scalar_condition", true}}});
  return program;
}

TEST_F(ModelFilesTest, KeepsWhatInnerBlocksReadAndWrite) {
  SaveInferenceModel(WithUntoldBlock(), {"x"}, {"y"}, scope_, folder_);
  const InferenceModel model = LoadInferenceModel(folder_, &scope_);
  EXPECT_EQ(model.program->block(0).ops().size(), 5u);  // with feed and fetch
  EXPECT_FALSE(model.program->block(0).HasLocalVar("unused"));
  EXPECT_EQ(Infer(model, &scope_), (std::vector<float>{0, 0, 1, 3}));
}

TEST_F(ModelFilesTest, RefusesAModelOfWhichAnInnerBlockNeedsAReader) {
  ProgramDesc program = WithUntoldBlock();
  VarDesc& reader = program.block(0).Var("reader");
  reader.kind = VarKind::kReader;
  reader.persistable = true;
  reader.reader = {{.dims = {-1, 2}}};
  program.block(0).InsertOp(0, {"read", {{"Reader", {"reader"}}}, {{"Out", {"doubled"}}}, {}});
  program.block(0).RemoveOps(2, 3);
  try {
    SaveInferenceModel(program, {}, {"y"}, scope_, folder_);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("depends on 'doubled'"));
  }
}

TEST_F(ModelFilesTest, AProgramThatCannotBeReadIsAnIoError) {
  EXPECT_THAT([] { LoadProgram("/proc/self/mem"); },  // nothing lies at its beginning
              testing::ThrowsMessage<IoError>(testing::HasSubstr("cannot read the program '/proc/self/mem'")));
}

TEST_F(ModelFilesTest, LoadsIntoAScope) {
  SaveInferenceModel(net_.main(), {"x"}, {net_.probabilities}, scope_, folder_);
  EXPECT_THROW(LoadInferenceModel(folder_, nullptr), InvalidArgument);
  EXPECT_THROW(LoadPersistables(net_.main(), nullptr, folder_), InvalidArgument);
}

TEST_F(ModelFilesTest, ABlockThatIsNotThereIsOutOfRange) {
  ProgramDesc program = WithUntoldBlock();
  program.AppendBlock(0);
  program.AppendBlock(2);
  program.block(2).AppendOp(
      {"conditional_block", {{"Cond", {"cond"}}}, {}, {{"sub_block", BlockRef{3}}, {"is_scalar_condition", true}}});
  program.block(1).AppendOp(
      {"conditional_block", {{"Cond", {"cond"}}}, {}, {{"sub_block", BlockRef{2}}, {"is_scalar_condition", true}}});
  program.block(2).MutableOp(0).attrs["sub_block"] = BlockRef{1 << 30};
  EXPECT_THROW(Prune(&program, {"x"}, {"y"}), OutOfRange);
}

TEST_F(ModelFilesTest, NoTwoFetchesHaveOneColumn) {
  const std::string twice = net_.Add("scale", {{"X", net_.probabilities}}, {"Out"}, {{"scale", 2.0F}});
  SaveInferenceModel(net_.main(), {"x"}, {net_.probabilities, twice}, scope_, folder_);
  const auto program = LoadProgram(folder_ / "__model__");
  BlockDesc& block = program->block(0);
  const size_t last = block.ops().size() - 1;
  block.MutableOp(last).attrs["col"] = int32_t{7};  // Paddle leaves columns out
  SaveProgram(*program, folder_ / "__model__");
  EXPECT_EQ(LoadInferenceModel(folder_, &scope_).fetches, (std::vector<std::string>{net_.probabilities, twice}));
  for (const int32_t column : {0, -1}) {
    block.MutableOp(last).attrs["col"] = column;
    SaveProgram(*program, folder_ / "__model__");
    EXPECT_THROW(LoadInferenceModel(folder_, &scope_), DataLoss);
  }
}

TEST_F(ModelFilesTest, EveryErrorOfAProgramNamesItsFile) {
  std::string bytes = net_.main().Serialize();
  bytes.replace(bytes.find("\x07softmax"), 8, "\x07unheard");  // the operator
  Overwrite("main", bytes);
  try {
    LoadProgram(folder_ / "main");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const NotFound& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("unheard"), testing::HasSubstr(folder_ / "main")));
  }
}

TEST(VariableFileName, StaysInTheFolderAndIsSeen) {
  EXPECT_EQ(VariableFileName("fc_0.w_0"), "fc_0.w_0");
  EXPECT_EQ(VariableFileName("encoder/fc_0.w_0"), "encoder/fc_0.w_0");
  EXPECT_EQ(VariableFileName("w@GRAD é"), "w@GRAD é");
  EXPECT_EQ(VariableFileName(".hidden"), "%2Ehidden");
  EXPECT_EQ(VariableFileName("../é"), "%2E%2E%2F%C3%A9");
  EXPECT_EQ(VariableFileName("/a~-_"), "%2Fa~-_");
  EXPECT_EQ(VariableFileName("a//b"), "a%2F%2Fb");
  EXPECT_EQ(VariableFileName("a/"), "a%2F");
  EXPECT_EQ(VariableFileName(std::string("a\0b", 3)), "a%00b");
}

}  // namespace
}  // namespace headrace
