#include "framework/op_library.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <thread>

#include "framework/errors.h"
#include "framework/executor.h"
#include "framework/op_registry.h"

namespace headrace {
namespace {

using testing::HasSubstr;

TEST(OpLibrary, ReturnsWhatItRegistersEachTime) {
  EXPECT_EQ(LoadOpLibrary(PLUGIN_RELU6), (std::vector<std::string>{"plugin_relu6"}));
  EXPECT_EQ(LoadOpLibrary(PLUGIN_RELU6), (std::vector<std::string>{"plugin_relu6"}));
}

TEST(OpLibrary, ItsOperatorsRun) {
  LoadOpLibrary(PLUGIN_RELU6);
  ProgramDesc program;
  program.block(0).Var("x").tensor.dims = {-1};
  program.block(0).Var("y");
  program.block(0).AppendOp({"plugin_relu6", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}});
  const auto prepared = Executor().Prepare(*ProgramDesc::Parse(program.Serialize()), {"y"});
  LoDTensor x;
  float* data = x.Resize({3}).mutable_data<float>();
  std::copy_n(std::vector<float>{-1, 3, 9}.begin(), 3, data);
  Scope scope;
  std::vector<LoDTensor> fetched;
  Executor().Run(*prepared, &scope, {{"x", x}}, &fetched);
  EXPECT_EQ(std::vector<float>(fetched[0].data<float>(), fetched[0].data<float>() + 3), (std::vector<float>{0, 3, 6}));
}

// The element of a program with the operators that `append` adds, in variable "y".
template <typename T>
T RunFor(const std::function<void(BlockDesc&)>& append, const std::map<std::string, LoDTensor>& feeds = {}) {
  ProgramDesc program;
  program.block(0).Var("y");
  append(program.block(0));
  const auto prepared = Executor().Prepare(program, {"y"});
  Scope scope;
  std::vector<LoDTensor> fetched;
  Executor().Run(*prepared, &scope, feeds, &fetched);
  return *fetched[0].data<T>();
}

TEST(OpLibrary, AddsKernelsForOtherTypesToOperatorsThatExist) {
  const auto relu = [](BlockDesc& block) {
    block.Var("x").tensor = {{1}, DataType::kInt32, 0};
    block.AppendOp({"relu", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}});
  };
  LoDTensor x;
  *x.Resize({1}).mutable_data<int32_t>() = -5;
  const OpInfo& info = OpRegistry::Get("relu");
  EXPECT_EQ(OpRegistry::FindKernel(info, DataType::kInt32), nullptr);
  EXPECT_THROW(RunFor<int32_t>(relu, {{"x", x}}), Unimplemented);

  EXPECT_EQ(LoadOpLibrary(PLUGIN_KERNELS), (std::vector<std::string>{"create_plugin_counter"}));
  EXPECT_EQ(RunFor<int32_t>(relu, {{"x", x}}), 0);
  *x.mutable_data<int32_t>() = 7;
  EXPECT_EQ(RunFor<int32_t>(relu, {{"x", x}}), 7);
  EXPECT_EQ(OpRegistry::KernelTypes(info),
            (std::vector<DataType>{DataType::kInt32, DataType::kFloat32, DataType::kFloat64}));
  EXPECT_EQ(&OpRegistry::Get("relu"), &info);
}

TEST(OpLibrary, AddsReaders) {
  LoadOpLibrary(PLUGIN_KERNELS);
  ProgramDesc program;
  BlockDesc& block = program.block(0);
  block.Var("reader").persistable = true;
  block.Var("y");
  block.AppendOp({"create_plugin_counter", {}, {{"Out", {"reader"}}}, {{"count", 2}}});
  block.AppendOp({"read", {{"Reader", {"reader"}}}, {{"Out", {"y"}}}, {}});
  EXPECT_EQ(block.GetVar("y").tensor.dtype, DataType::kInt64);
  Scope scope;
  Executor().Run(program, &scope);  // makes it, and reads the first batch
  const auto prepared = Executor().Prepare(program, {"y"});
  std::vector<LoDTensor> fetched;
  Executor().Run(*prepared, &scope, {}, &fetched);
  EXPECT_EQ(*fetched[0].data<int64_t>(), 1);
  EXPECT_THROW(Executor().Run(*prepared, &scope), EndOfData);
}

TEST(OpLibrary, OneWhoseKernelCannotBeAddedLeavesNothing) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THROW(LoadOpLibrary(PLUGIN_KERNEL_TWICE), AlreadyExists);
    EXPECT_THROW(LoadOpLibrary(PLUGIN_KERNEL_NOWHERE), InvalidArgument);
  }
  EXPECT_EQ(OpRegistry::Find("plugin_beside_a_kernel"), nullptr);
  EXPECT_EQ(OpRegistry::FindKernel(OpRegistry::Get("sigmoid"), DataType::kInt32), nullptr);
}

TEST(OpLibrary, OneThatDuplicatesAnOperatorLeavesNothing) {
  LoadOpLibrary(PLUGIN_RELU6);
  const OpInfo* before = OpRegistry::Find("plugin_relu6");
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      LoadOpLibrary(PLUGIN_DUPLICATE);
      FAIL() << "nothing was thrown";
    } catch (const AlreadyExists& error) {
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("plugin_relu6"), HasSubstr(PLUGIN_DUPLICATE)));
    }
  }
  EXPECT_EQ(OpRegistry::Find("plugin_innocent"), nullptr);
  EXPECT_EQ(OpRegistry::Find("plugin_relu6"), before);
}

TEST(OpLibrary, OneThatDeclaresNonsenseLeavesNothing) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THROW(LoadOpLibrary(PLUGIN_INVALID), InvalidArgument);
  }
  EXPECT_EQ(OpRegistry::Find("plugin_good"), nullptr);
}

TEST(OpLibrary, AFolderIsAnIoErrorThatNamesIt) {
  EXPECT_THAT([] { LoadOpLibrary("/tmp"); },
              testing::ThrowsMessage<IoError>(testing::HasSubstr("cannot load operator library '/tmp': ")));
}

TEST(OpLibrary, MissingFileIsAnIoErrorWithTheLinkersMessage) {
  try {
    LoadOpLibrary("/nowhere/libnothing.so");
    FAIL() << "nothing was thrown";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("/nowhere/libnothing.so"), HasSubstr("No such file")));
  }
}

TEST(OpLibrary, OneWithOtherLayoutsIsRefused) {
  for (const char* path : {PLUGIN_OTHER_LAYOUT, PLUGIN_OTHER_OPTIONS}) {
    EXPECT_THAT([path] { LoadOpLibrary(path); },
                testing::ThrowsMessage<IoError>(testing::AllOf(
                    HasSubstr(path), HasSubstr("headers of another version of headrace"), HasSubstr("_GLIBCXX_DEBUG"),
                    HasSubstr("rebuild it"), HasSubstr("/libheadrace.so"))));
  }
  EXPECT_EQ(OpRegistry::Find("plugin_other_abi"), nullptr);
}

TEST(OpLibrary, OneWithAnotherStandardLibraryIsRefused) {
  EXPECT_THAT([] { LoadOpLibrary(PLUGIN_OTHER_LIBRARY); },
              testing::ThrowsMessage<IoError>(testing::AllOf(
                  HasSubstr(PLUGIN_OTHER_LIBRARY), HasSubstr("built with libstdc++ with _GLIBCXX_USE_CXX11_ABI=0"),
                  HasSubstr("libstdc++ with _GLIBCXX_USE_CXX11_ABI=1; rebuild it"))));
  EXPECT_EQ(OpRegistry::Find("plugin_other_abi"), nullptr);
}

// Neither the first time nor later, and not only once the function is called.
TEST(OpLibrary, OneThatMissesASymbolIsRefusedWithItsName) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT([] { LoadOpLibrary(PLUGIN_MISSING_SYMBOL); },
                testing::ThrowsMessage<IoError>(
                    testing::AllOf(HasSubstr(PLUGIN_MISSING_SYMBOL), HasSubstr("undefined symbol"),
                                   HasSubstr("headrace::FunctionOfAnotherVersion(headrace::ExecutionContext const&)"),
                                   testing::Not(HasSubstr("of another version of headrace")))));
    EXPECT_EQ(OpRegistry::Find("plugin_missing_symbol"), nullptr);
  }
}

TEST(OpLibrary, AnEmptyPathIsRefused) {
  EXPECT_THAT([] { LoadOpLibrary(""); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("expected the path of an operator library")));
}

TEST(OpLibrary, OneThatRegistersNothingIsRefused) {
  EXPECT_THROW(LoadOpLibrary(PLUGIN_ELSEWHERE), InvalidArgument);  // another libheadrace, which is none of its
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT([] { LoadOpLibrary(PLUGIN_EMPTY); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("it registers neither operators nor kernels")));
  }
}

TEST(OpLibrary, OneThatWasLinkedWithAnotherLibheadraceNamesBoth) {
  EXPECT_THAT([] { LoadOpLibrary(PLUGIN_ELSEWHERE); },
              testing::ThrowsMessage<InvalidArgument>(testing::AllOf(
                  HasSubstr("/elsewhere/libheadrace.so.0', which it"), HasSubstr("/libheadrace.so'; link it"))));
}

TEST(OpLibrary, WhatTheProgramHasLoadedItselfIsNotRefused) {
  ASSERT_NE(dlopen(PLUGIN_LINKED, RTLD_NOW | RTLD_LOCAL), nullptr);
  EXPECT_EQ(LoadOpLibrary(PLUGIN_LINKED), std::vector<std::string>());
  EXPECT_NE(OpRegistry::Find("plugin_linked"), nullptr);
}

TEST(OpLibrary, RegistrationOutsideOfALibraryGoesOnAsBefore) {
  EXPECT_THROW(LoadOpLibrary("/nowhere/libnothing.so"), IoError);
  OpRegistrar("registered_directly").Output("Out", "").Kernel<float>([](const ExecutionContext&) {}).Register();
  EXPECT_NE(OpRegistry::Find("registered_directly"), nullptr);
}

TEST(OpLibrary, ThreadsThatOpenItAtOnceGetTheSame) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] { EXPECT_EQ(LoadOpLibrary(PLUGIN_RELU6), (std::vector<std::string>{"plugin_relu6"})); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace headrace
