#include "framework/op_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/op_role.h"
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
  EXPECT_THAT(MessageOf<AlreadyExists>([] { OpRegistrar("test_mul").Kernel<float>(Nothing()).Register(); }),
              HasSubstr("test_mul"));
  EXPECT_EQ(OpRegistry::Get("test_mul").inputs.size(), 2U);
}

TEST(OpRegistryCheck, TwoOutputsCannotShareAVariable) {
  OpDesc op{"test_split", {{"X", {"x"}}}, {{"A", {"y"}}, {"B", {"y"}}}, {}};
  EXPECT_THAT(MessageOf<InvalidArgument>([&] { OpRegistry::Check(op); }),
              testing::AllOf(HasSubstr("'A'"), HasSubstr("'B'"), HasSubstr("'y'"), HasSubstr("test_split")));
  op.outputs = {{"A", {"@EMPTY@"}}, {"B", {"@EMPTY@"}}};
  EXPECT_NO_THROW(OpRegistry::Check(op));
}

HEADRACE_REGISTER_OP(test_many_outputs).Output("Out", "", kDuplicable).Kernel<float>(Nothing());

TEST(OpRegistryCheck, ASlotCannotHoldAVariableTwiceAsOutput) {
  OpDesc op{"test_many_outputs", {}, {{"Out", {"a", "b", "a"}}}, {}};
  EXPECT_THAT(MessageOf<InvalidArgument>([&] { OpRegistry::Check(op); }), HasSubstr("'a'"));
}

TEST(OpRegistryCheck, OutputIsAnInputOnlyWhereItIsDeclared) {
  OpDesc declared{"test_sgd", {{"Param", {"w"}}, {"Grad", {"g"}}}, {{"ParamOut", {"w"}}}, {}};
  EXPECT_NO_THROW(OpRegistry::Check(declared));
  OpDesc other{"test_sgd", {{"Param", {"w"}}, {"Grad", {"g"}}}, {{"ParamOut", {"g"}}}, {}};
  EXPECT_THAT(MessageOf<InvalidArgument>([&] { OpRegistry::Check(other); }),
              testing::AllOf(HasSubstr("'ParamOut'"), HasSubstr("'Grad'"), HasSubstr("'g'"), HasSubstr("in place")));
  // In place of one input, while the other still needs the old value.
  OpDesc both{"test_sgd", {{"Param", {"w"}}, {"Grad", {"w"}}}, {{"ParamOut", {"w"}}}, {}};
  EXPECT_THROW(OpRegistry::Check(both), InvalidArgument);
}

TEST(OpRegistry, ContradictoryDeclarationsAreRefused) {
  EXPECT_THROW(OpRegistrar("").Kernel<float>(Nothing()).Register(), InvalidArgument);
  EXPECT_THROW(OpRegistrar("bad").Comment("neither kernel nor class").Register(), InvalidArgument);
  EXPECT_THROW(OpRegistrar("bad").Input("X", "").Input("X", "").Kernel<float>(Nothing()).Register(), InvalidArgument);
  EXPECT_THROW(OpRegistrar("bad").Kernel<float>(nullptr).Register(), InvalidArgument);
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

TEST(OpRegistry, AttributesThatChooseALibraryAreLeftOut) {
  OpDesc op{"relu", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}};
  op.attrs = {{"use_cudnn", true}, {"fuse_relu", false}, {"data_format", std::string("NCHW")}};
  OpRegistry::Check(op);
  EXPECT_EQ(op.attrs, (AttributeMap{{"op_role", int32_t{kRoleForward}}}));
  op.attrs = {{"fuse_relu", true}};  // this would change the result
  EXPECT_THAT(MessageOf<Unimplemented>([&] { OpRegistry::Check(op); }),
              testing::AllOf(HasSubstr("'relu'"), HasSubstr("'fuse_relu' as false, got true")));
}

TEST(OpRegistry, EveryOperatorHasARole) {
  OpDesc op{"relu", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}};
  EXPECT_EQ(RoleOf(op), kRoleForward);
  const AttributeMap given = {{"op_role", int32_t{kRoleBackward | kRoleLoss}},
                              {"op_role_var", std::vector<std::string>{"w", "w@GRAD"}},
                              {"op_namescope", std::string("/encoder/")}};
  op.attrs = given;
  OpRegistry::Check(op);
  EXPECT_EQ(op.attrs, given);
  EXPECT_TRUE(HasRole(op, kRoleTraining));
  EXPECT_FALSE(HasRole(op, kRoleOptimize | kRoleLRSched));
  op.attrs = {{"op_role", int32_t{0x1000}}};  // Fluid's "not specified"
  OpRegistry::Check(op);
  EXPECT_FALSE(HasRole(op, kRoleTraining));
  op.attrs = {{"op_role", std::string("backward")}};
  EXPECT_THROW(OpRegistry::Check(op), TypeMismatch);
  op.attrs = {{"op_role", int32_t{-1}}};
  EXPECT_THROW(OpRegistry::Check(op), InvalidArgument);
}

TEST(OpRegistry, AttributesOfSomeOperatorsAreLeftOutOfThem) {
  OpDesc op{"nearest_interp", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}};
  op.attrs = {{"interp_method", std::string("nearest")}, {"out_d", int32_t{-1}}};
  OpRegistry::Check(op);
  EXPECT_FALSE(op.attrs.contains("interp_method") || op.attrs.contains("out_d"));
  op.attrs["interp_method"] = std::string("bilinear");
  EXPECT_THAT(MessageOf<Unimplemented>([&] { OpRegistry::Check(op); }), HasSubstr("'nearest', got 'bilinear'"));
  op.attrs = {{"grad_inplace", false}};  // lookup_table's
  EXPECT_THAT(MessageOf<NotFound>([&] { OpRegistry::Check(op); }), HasSubstr("no attribute 'grad_inplace'"));
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
