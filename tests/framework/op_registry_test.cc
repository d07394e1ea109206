#include "framework/op_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "test_ops.h"

namespace headrace {
namespace {

using testing::HasSubstr;

// The message of the E that `fn` throws.
template <typename E, typename Fn>
std::string MessageOf(Fn fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "the expected error was not thrown";
  return {};
}

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
  EXPECT_THAT(MessageOf<AlreadyExists>([] { OpRegistrar again = OpRegistrar("test_mul").Kernel<float>(Nothing()); }),
              HasSubstr("test_mul"));
  EXPECT_EQ(OpRegistry::Get("test_mul").inputs.size(), 2U);
}

TEST(OpRegistry, ContradictoryDeclarationsAreRefused) {
  EXPECT_THROW(OpRegistrar op = OpRegistrar("").Kernel<float>(Nothing()), InvalidArgument);
  EXPECT_THROW(OpRegistrar op = OpRegistrar("bad").Comment("neither kernel nor class"), InvalidArgument);
  EXPECT_THROW(OpRegistrar op = OpRegistrar("bad").Input("X", "").Input("X", "").Kernel<float>(Nothing()),
               InvalidArgument);
  EXPECT_THROW(OpRegistrar op = OpRegistrar("bad").Kernel<float>(nullptr), InvalidArgument);
  EXPECT_THROW(OpRegistrar op = OpRegistrar("bad").Input("X", "").KernelTypeFrom("Y").Kernel<float>(Nothing()),
               InvalidArgument);
  EXPECT_THROW(
      OpRegistrar op = OpRegistrar("bad").Attr<float>("dtype", "").KernelTypeFromAttr("dtype").Kernel<float>(Nothing()),
      InvalidArgument);
  EXPECT_THROW(OpRegistrar op = OpRegistrar("bad").Kernel<float>(Nothing()).Kernel<double>(Nothing()), InvalidArgument);
  EXPECT_EQ(OpRegistry::Find("bad"), nullptr);
}

TEST(OpCheck, FillsInDefaultsAndCoercesAttributes) {
  OpDesc op{"test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}};
  OpRegistry::Check(op);
  EXPECT_EQ(op.Attr<float>("factor"), 1.0F);
  op.attrs["factor"] = int64_t{3};
  OpRegistry::Check(op);
  EXPECT_EQ(op.Attr<float>("factor"), 3.0F);
}

TEST(OpCheck, UnknownSlotIsNamed) {
  OpDesc op{"test_scale", {{"X", {"x"}}, {"Z", {"z"}}}, {{"Out", {"y"}}}, {}};
  EXPECT_THAT(MessageOf<NotFound>([&] { OpRegistry::Check(op); }),
              testing::AllOf(HasSubstr("'Z'"), HasSubstr("operator 'test_scale'")));
}

TEST(OpCheck, MissingSlotIsNamed) {
  OpDesc op{"test_mul", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}};
  EXPECT_THAT(MessageOf<InvalidArgument>([&] { OpRegistry::Check(op); }), HasSubstr("'Y'"));
  op.inputs["Y"] = {};
  EXPECT_THAT(MessageOf<InvalidArgument>([&] { OpRegistry::Check(op); }), HasSubstr("'Y'"));
}

TEST(OpCheck, SlotOfOneTakesNoTwo) {
  OpDesc op{"test_scale", {{"X", {"x", "x2"}}}, {{"Out", {"y"}}}, {}};
  EXPECT_THAT(MessageOf<InvalidArgument>([&] { OpRegistry::Check(op); }), HasSubstr("got 2"));
}

TEST(OpCheck, NamelessVariableIsRefused) {
  OpDesc op{"test_scale", {{"X", {""}}}, {{"Out", {"y"}}}, {}};
  EXPECT_THROW(OpRegistry::Check(op), InvalidArgument);
}

TEST(OpCheck, UnknownAttributeIsNamed) {
  OpDesc op{"test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"facto", 1.0F}}};
  EXPECT_THAT(MessageOf<NotFound>([&] { OpRegistry::Check(op); }), HasSubstr("'facto'"));
}

TEST(OpCheck, AttributeOfAnotherTypeIsNamed) {
  OpDesc op{"test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"factor", std::string("two")}}};
  EXPECT_THAT(MessageOf<TypeMismatch>([&] { OpRegistry::Check(op); }),
              testing::AllOf(HasSubstr("'factor'"), HasSubstr("expected float"), HasSubstr("'two'")));
}

TEST(OpCheck, MissingAttributeWithoutDefaultIsNamed) {
  OpDesc op{"test_fill", {}, {{"Out", {"y"}}}, {{"value", 1.0F}}};
  EXPECT_THAT(MessageOf<InvalidArgument>([&] { OpRegistry::Check(op); }),
              testing::AllOf(HasSubstr("'shape'"), HasSubstr("list of int64")));
}

TEST(OpCheck, AttributeCheckRuns) {
  OpDesc op{"test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"factor", std::numeric_limits<double>::infinity()}}};
  EXPECT_THAT(MessageOf<InvalidArgument>([&] { OpRegistry::Check(op); }),
              testing::AllOf(HasSubstr("finite"), HasSubstr("operator 'test_scale'")));
}

TEST(OpDescAttr, WrongTypeAndMissingAreNamed) {
  const OpDesc op{"some", {}, {}, {{"a", 1.0F}}};
  EXPECT_THAT(MessageOf<TypeMismatch>([&] { (void)op.Attr<int32_t>("a"); }), HasSubstr("is float, expected int32"));
  EXPECT_THAT(MessageOf<NotFound>([&] { (void)op.Attr<float>("b"); }), HasSubstr("'b'"));
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
