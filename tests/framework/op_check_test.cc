#include "framework/op_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/op_registry.h"
#include "framework/op_role.h"
#include "test_ops.h"

namespace headrace {
namespace {

using test::MessageOf;
using testing::HasSubstr;

TEST(OpCheck, TwoOutputsCannotShareAVariable) {
  OpDesc op{"test_split", {{"X", {"x"}}}, {{"A", {"y"}}, {"B", {"y"}}}, {}};
  EXPECT_THAT(MessageOf<InvalidArgument>([&] { OpRegistry::Check(op); }),
              testing::AllOf(HasSubstr("'A'"), HasSubstr("'B'"), HasSubstr("'y'"), HasSubstr("test_split")));
  op.outputs = {{"A", {"@EMPTY@"}}, {"B", {"@EMPTY@"}}};
  EXPECT_NO_THROW(OpRegistry::Check(op));
}

HEADRACE_REGISTER_OP(test_many_outputs).Output("Out", "", kDuplicable).Kernel<float>([](const ExecutionContext&) {});

TEST(OpCheck, ASlotCannotHoldAVariableTwiceAsOutput) {
  OpDesc op{"test_many_outputs", {}, {{"Out", {"a", "b", "a"}}}, {}};
  EXPECT_THAT(MessageOf<InvalidArgument>([&] { OpRegistry::Check(op); }), HasSubstr("'a'"));
}

TEST(OpCheck, OutputIsAnInputOnlyWhereItIsDeclared) {
  OpDesc declared{"test_sgd", {{"Param", {"w"}}, {"Grad", {"g"}}}, {{"ParamOut", {"w"}}}, {}};
  EXPECT_NO_THROW(OpRegistry::Check(declared));
  OpDesc other{"test_sgd", {{"Param", {"w"}}, {"Grad", {"g"}}}, {{"ParamOut", {"g"}}}, {}};
  EXPECT_THAT(MessageOf<InvalidArgument>([&] { OpRegistry::Check(other); }),
              testing::AllOf(HasSubstr("'ParamOut'"), HasSubstr("'Grad'"), HasSubstr("'g'"), HasSubstr("in place")));
  // In place of one input, while the other still needs the old value.
  OpDesc both{"test_sgd", {{"Param", {"w"}}, {"Grad", {"w"}}}, {{"ParamOut", {"w"}}}, {}};
  EXPECT_THROW(OpRegistry::Check(both), InvalidArgument);
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

TEST(OpCheck, GradientOperatorsLeaveOutWhatTheyHaveNoUseFor) {
  OpDesc op{"test_exp_grad", {{"X", {"x"}}, {"Out", {"y"}}, {"Out@GRAD", {"dy"}}}, {{"X@GRAD", {"dx"}}}, {}};
  OpRegistry::Check(op);
  EXPECT_EQ(op.inputs, (VarNameMap{{"Out", {"y"}}, {"Out@GRAD", {"dy"}}}));
  op.inputs["Z"] = {"z"};
  EXPECT_THAT(MessageOf<NotFound>([&] { OpRegistry::Check(op); }), HasSubstr("'Z'"));
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

TEST(OpCheck, AttributesThatChooseALibraryAreLeftOut) {
  OpDesc op{"relu", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}};
  op.attrs = {{"use_cudnn", true}, {"fuse_relu", false}, {"data_format", std::string("NCHW")}};
  OpRegistry::Check(op);
  EXPECT_EQ(op.attrs, (AttributeMap{{"op_role", int32_t{kRoleForward}}}));
  op.attrs = {{"fuse_relu", true}};  // this would change the result
  EXPECT_THAT(MessageOf<Unimplemented>([&] { OpRegistry::Check(op); }),
              testing::AllOf(HasSubstr("'relu'"), HasSubstr("'fuse_relu' as false, got true")));
}

TEST(OpCheck, AttributesOfOtherNamesAreTold) {
  EXPECT_TRUE(OpRegistry::HasAttrLike("test_scale", "factor"));
  EXPECT_TRUE(OpRegistry::HasAttrLike("test_scale", "op_role"));
  EXPECT_TRUE(OpRegistry::HasAttrLike("test_scale", "use_cudnn"));
  EXPECT_TRUE(OpRegistry::HasAttrLike("test_scale", "facter"));
  EXPECT_FALSE(OpRegistry::HasAttrLike("test_scale", "lambda"));
  EXPECT_FALSE(OpRegistry::HasAttrLike("test_scale", "grad_inplace"));  // lookup_table's
  EXPECT_THROW((void)OpRegistry::HasAttrLike("no_such_op", "lambda"), NotFound);
  OpDesc op{"test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"facter", 1.0}}};
  EXPECT_THAT(MessageOf<NotFound>([&] { OpRegistry::Check(op); }), HasSubstr("did you mean 'factor'"));
}

TEST(OpCheck, EveryOperatorHasARole) {
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

TEST(OpCheck, AttributesOfSomeOperatorsAreLeftOutOfThem) {
  OpDesc op{"nearest_interp", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}};
  op.attrs = {{"interp_method", std::string("nearest")}, {"out_d", int32_t{-1}}};
  OpRegistry::Check(op);
  EXPECT_FALSE(op.attrs.contains("interp_method") || op.attrs.contains("out_d"));
  op.attrs["interp_method"] = std::string("bilinear");
  EXPECT_THAT(MessageOf<Unimplemented>([&] { OpRegistry::Check(op); }), HasSubstr("'nearest', got 'bilinear'"));
  op.attrs = {{"grad_inplace", false}};  // lookup_table's
  EXPECT_THAT(MessageOf<NotFound>([&] { OpRegistry::Check(op); }), HasSubstr("no attribute 'grad_inplace'"));
}

}  // namespace
}  // namespace headrace
