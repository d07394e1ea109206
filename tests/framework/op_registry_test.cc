#include "framework/op_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test_ops.h"

namespace headrace {
namespace {

using test::MessageOf;
using testing::HasSubstr;

KernelFn Nothing() {
  return [](const ExecutionContext&) {};
}

TEST(OpRegistry, UnknownOperatorIsNamedWithCloseMatches) {
  EXPECT_EQ(OpRegistry::Find("test_scael"), nullptr);
  EXPECT_THAT(MessageOf<NotFound>([] { OpRegistry::Get("test_scael"); }),
              testing::AllOf(HasSubstr("'test_scael'"), HasSubstr("did you mean"), HasSubstr("'test_scale'")));
}

TEST(OpRegistry, TypesAreSortedAndKnown) {
  const auto types = OpRegistry::Types();
  EXPECT_TRUE(std::is_sorted(types.begin(), types.end()));
  EXPECT_THAT(types, testing::Contains("test_mul"));
}

TEST(OpRegistry, TakenTypeIsRefused) {
  EXPECT_THAT(MessageOf<AlreadyExists>([] { OpRegistrar("test_mul").Kernel<float>(Nothing()).Register(); }),
              HasSubstr("test_mul"));
  EXPECT_EQ(OpRegistry::Get("test_mul").inputs.size(), 2U);
}

TEST(OpRegistry, ContradictoryDeclarationsAreRefused) {
  EXPECT_THROW(OpRegistrar("").Kernel<float>(Nothing()).Register(), InvalidArgument);
  EXPECT_THROW(OpRegistrar("bad").Comment("neither kernel nor class").Register(), InvalidArgument);
  EXPECT_THROW(OpRegistrar("bad").Input("X", "").Input("X", "").Kernel<float>(Nothing()).Register(), InvalidArgument);
  EXPECT_THROW(OpRegistrar("bad").Kernel<float>(nullptr).Register(), InvalidArgument);
  EXPECT_THAT(MessageOf<InvalidArgument>(
                  [] { OpRegistrar("bad").Kernel<float>(Nothing()).Kernel<float>(Nothing()).Register(); }),
              HasSubstr("float32, or several"));
  EXPECT_THROW(OpRegistrar("bad").Input("X", "").KernelTypeFrom("Y").Kernel<float>(Nothing()).Register(),
               InvalidArgument);
  EXPECT_THROW(
      OpRegistrar("bad").Attr<float>("dtype", "").KernelTypeFromAttr("dtype").Kernel<float>(Nothing()).Register(),
      InvalidArgument);
  EXPECT_THROW(OpRegistrar("bad").Kernel<float>(Nothing()).Kernel<double>(Nothing()).Register(), InvalidArgument);
  EXPECT_THROW(OpRegistrar("bad").Input("X", "").InPlace("Out", "X").Kernel<float>(Nothing()).Register(),
               InvalidArgument);
  EXPECT_EQ(OpRegistry::Find("bad"), nullptr);
}

TEST(OpRegistry, DeclarationIsRegisteredOnceHoweverOftenItMoves) {
  OpRegistrar first = OpRegistrar("test_moved").Kernel<float>(Nothing());
  OpRegistrar second(std::move(first));
  EXPECT_EQ(OpRegistry::Find("test_moved"), nullptr);
  std::move(second).Register();
  EXPECT_NE(OpRegistry::Find("test_moved"), nullptr);
}

TEST(OpRegistry, KernelsAreAddedOnceToOperatorsThatHaveSome) {
  OpRegistrar("test_more_kernels").Output("Out", "").Kernel<float>(Nothing()).Register();
  OpRegistry::RegisterKernel("test_more_kernels", DataType::kInt8, Nothing());
  const OpInfo& info = OpRegistry::Get("test_more_kernels");
  EXPECT_EQ(OpRegistry::KernelTypes(info), (std::vector<DataType>{DataType::kFloat32, DataType::kInt8}));
  EXPECT_EQ(OpRegistry::FindKernel(info, DataType::kFloat64), nullptr);
  for (const DataType type : {DataType::kFloat32, DataType::kInt8}) {
    EXPECT_THROW(OpRegistry::RegisterKernel("test_more_kernels", type, Nothing()), AlreadyExists);
  }
  EXPECT_THROW(OpRegistry::RegisterKernel("test_more_kernels", DataType::kInt16, {}), InvalidArgument);
  EXPECT_THROW(OpRegistry::RegisterKernel("while", DataType::kInt16, Nothing()), InvalidArgument);
  EXPECT_THROW(OpRegistry::RegisterKernel("nowhere", DataType::kInt16, Nothing()), NotFound);
}

TEST(OpDescAttr, WrongTypeAndMissingAreNamed) {
  const OpDesc op{"some", {}, {}, {{"a", 1.0F}}};
  EXPECT_THAT(MessageOf<TypeMismatch>([&] { (void)op.Attr<int32_t>("a"); }), HasSubstr("is float, expected int32"));
  EXPECT_THAT(MessageOf<NotFound>([&] { (void)op.Attr<float>("b"); }), HasSubstr("'b'"));
}

TEST(OpDesc, BlocksAreThoseThatAttributesReferTo) {
  const OpDesc op{"some", {}, {}, {{"a", BlockRef{2}}, {"b", int32_t{3}}, {"c", BlockRef{1}}}};
  EXPECT_EQ(op.Blocks(), (std::vector<BlockRef>{{2}, {1}}));
}

TEST(DefaultGradient, TakesOutputGradientsAndGivesInputGradients) {
  const OpDesc op{"f", {{"X", {"a", "b"}}, {"Label", {"l"}}}, {{"Out", {"o"}}}, {{"k", int32_t{2}}}};
  const auto grads = DefaultGradient({.inputs = {"X"}, .outputs = {"Out"}, .no_gradient = {"Label"}})(op);
  ASSERT_EQ(grads.size(), 1U);
  EXPECT_EQ(grads[0].type, "f_grad");
  EXPECT_EQ(grads[0].inputs, (VarNameMap{{"X", {"a", "b"}}, {"Out", {"o"}}, {"Out@GRAD", {"o@GRAD"}}}));
  EXPECT_EQ(grads[0].outputs, (VarNameMap{{"X@GRAD", {"a@GRAD", "b@GRAD"}}}));
  EXPECT_EQ(grads[0].attrs, op.attrs);
}

}  // namespace
}  // namespace headrace
