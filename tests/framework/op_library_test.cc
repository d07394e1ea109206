#include "framework/op_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(OpLibrary, MissingFileIsAnIoErrorWithTheLinkersMessage) {
  try {
    LoadOpLibrary("/nowhere/libnothing.so");
    FAIL() << "nothing was thrown";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("/nowhere/libnothing.so"), HasSubstr("No such file")));
  }
}

TEST(OpLibrary, OneBuiltForAnotherVersionIsRefused) {
  try {
    LoadOpLibrary(PLUGIN_OTHER_ABI);
    FAIL() << "nothing was thrown";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr(PLUGIN_OTHER_ABI), HasSubstr("another version of headrace"),
                                             HasSubstr("headrace_op_library_abi_0")));
  }
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
