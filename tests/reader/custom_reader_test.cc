// A reader that runs a block: as a program, and its errors.
#include "reader/custom_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "framework/executor.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using Strings = std::vector<std::string>;

// Reads the numbers of a random source, times the persistable variable "factor", plus 1.
class CustomReaderTest : public testing::Test {
 protected:
  CustomReaderTest() {
    BlockDesc& root = program_.block(0);
    VarDesc& source = Declare(&root, "source", VarKind::kReader);
    source.reader = {kSpec};
    source.persistable = true;
    root.AppendOp({"create_random_data_generator",
                   {},
                   {{"Out", {"source"}}},
                   {{"low", 1.0F},
                    {"high", 2.0F},
                    {"shape_concat", std::vector<int32_t>{4}},
                    {"ranks", std::vector<int32_t>{1}},
                    {"dtypes", std::vector<int32_t>{static_cast<int32_t>(DataType::kFloat32)}}}});
    VarDesc& factor = Declare(&root, "factor");
    factor.tensor.dims = {1};
    factor.persistable = true;
    BlockDesc& body = program_.AppendBlock(0);
    for (const char* name : {"x", "product", "sum"}) {
      Declare(&body, name).tensor = kSpec;
    }
    body.AppendOp({"elementwise_mul", {{"X", {"x"}}, {"Y", {"factor"}}}, {{"Out", {"product"}}}, {}});
    body.AppendOp({"scale", {{"X", {"product"}}}, {{"Out", {"sum"}}}, {{"bias", 1.0F}}});
    VarDesc& reader = Declare(&root, "reader", VarKind::kReader);
    reader.reader = {kSpec};
    reader.persistable = true;
  }

  static VarDesc& Declare(BlockDesc* block, const std::string& name, VarKind kind = VarKind::kLoDTensor) {
    VarDesc& var = block->Var(name);
    var.kind = kind;
    return var;
  }
  void AppendReader(const Strings& sources = {"x"}, const Strings& sinks = {"sum"}) {
    program_.block(0).AppendOp(
        {"create_custom_reader",
         {{"UnderlyingReader", {"source"}}},
         {{"Out", {"reader"}}},
         {{"sub_block", BlockRef{1}}, {"source_var_names", sources}, {"sink_var_names", sinks}}});
  }
  void AppendRead(const std::string& reader) {
    Declare(&program_.block(0), "out");
    program_.block(0).AppendOp({"read", {{"Reader", {reader}}}, {{"Out", {"out"}}}, {}});
  }
  void SetFactor(float value) {
    auto* factor = scope_.Var("factor")->GetMutable<LoDTensor>();
    *factor = LoDTensor();
    *factor->Resize({1}).mutable_data<float>() = value;
  }
  void ExpectRefused(const std::string& text) {
    try {
      (void)Executor().Prepare(program_);
      ADD_FAILURE() << "nothing was thrown; expected " << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  }

  const TensorSpec kSpec{.dims = {4}, .dtype = DataType::kFloat32, .lod_level = 0};
  ProgramDesc program_;
  Scope scope_;
};

TEST_F(CustomReaderTest, RunsItsBlockOnEachBatchWithThePresentValues) {
  AppendReader();
  AppendRead("reader");
  const Executor executor;
  const auto prepared = executor.Prepare(program_, {"out"});
  for (const float factor : {0.0F, 10.0F, -100.0F}) {
    SetFactor(factor);
    for (int i = 0; i < 2; ++i) {
      std::vector<LoDTensor> fetched;
      executor.Run(*prepared, &scope_, {}, &fetched);
      for (int64_t k = 0; k < 4; ++k) {
        const float random = (fetched[0].data<float>()[k] - 1) / (factor == 0 ? 1 : factor);
        EXPECT_GE(random, factor == 0 ? 0.0F : 0.999F);
        EXPECT_LE(random, factor == 0 ? 0.0F : 2.001F);
      }
    }
  }
}

// The program's copy, which the reader has, outlives it; the thread of the double buffer runs it.
TEST_F(CustomReaderTest, RunsInTheThreadOfADoubleBuffer) {
  AppendReader();
  VarDesc& buffered = Declare(&program_.block(0), "buffered", VarKind::kReader);
  buffered.persistable = true;
  program_.block(0).AppendOp(
      {"create_double_buffer_reader", {{"UnderlyingReader", {"reader"}}}, {{"Out", {"buffered"}}}, {}});
  AppendRead("buffered");
  SetFactor(1);
  const Executor executor;
  for (int i = 0; i < 3; ++i) {
    const auto prepared = executor.Prepare(program_, {"out"});
    for (int k = 0; k < 20; ++k) {
      std::vector<LoDTensor> fetched;
      executor.Run(*prepared, &scope_, {}, &fetched);
      EXPECT_GE(fetched[0].data<float>()[3], 2.0F);
      SetFactor(1 + static_cast<float>(k));
    }
  }
}

TEST_F(CustomReaderTest, WantsTheVariablesThatItsBlockReads) {
  AppendReader();
  Executor executor;
  try {
    executor.Run(program_, &scope_);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const FailedPrecondition& error) {
    EXPECT_THAT(error.what(), HasSubstr("'factor', which the block of a reader uses, has not been written yet"));
  }
}

TEST_F(CustomReaderTest, RefusesBlocksThatReachOutside) {
  program_.block(0).MutableVar("factor").persistable = false;
  AppendReader();
  ExpectRefused("reads 'factor' of the block around it, which is not a persistable tensor");
}

TEST_F(CustomReaderTest, RefusesBlocksThatWriteOutside) {
  program_.block(1).AppendOp({"assign", {{"X", {"sum"}}}, {{"Out", {"factor"}}}, {}});
  AppendReader();
  ExpectRefused("writes 'factor'");
}

TEST_F(CustomReaderTest, RefusesNamesThatDoNotFit) {
  AppendReader({"x"}, {"sum", "sum"});
  ExpectRefused("the reader 'reader' yields 1 tensors, but attribute 'sink_var_names' names 2");
}

TEST_F(CustomReaderTest, RefusesVariablesOfAnotherBlock) {
  AppendReader({"x"}, {"factor"});
  ExpectRefused("block 1 declares no variable 'factor' of its own");
}

TEST_F(CustomReaderTest, RefusesVariablesOfAnotherShape) {
  program_.block(1).MutableVar("x").tensor.dims = {3};
  AppendReader();
  ExpectRefused("tensor 0 of the reader 'source' is declared as float32 of shape [4]");
}

}  // namespace
}  // namespace headrace
