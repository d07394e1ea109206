#include "framework/program_desc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "framework/op_registry.h"
#include "test_ops.h"

namespace headrace {
namespace {

using test::Append;
using test::Declare;
using testing::HasSubstr;

TEST(ProgramDesc, StartsWithOneRootBlock) {
  const ProgramDesc program;
  EXPECT_EQ(program.num_blocks(), 1U);
  EXPECT_EQ(program.block(0).parent(), -1);
  EXPECT_THROW(program.block(1), OutOfRange);
}

TEST(ProgramDesc, InnerBlocksSeeOuterVariables) {
  ProgramDesc program;
  Declare(&program, "x");
  BlockDesc& inner = program.AppendBlock(0);
  BlockDesc& innermost = program.AppendBlock(inner.index());
  EXPECT_EQ(innermost.FindVar("x"), program.block(0).FindVar("x"));
  EXPECT_FALSE(innermost.HasLocalVar("x"));
  EXPECT_NE(&innermost.Var("x"), program.block(0).FindVar("x"));
  EXPECT_EQ(program.block(0).FindVar("y"), nullptr);
  EXPECT_THROW(innermost.GetVar("y"), NotFound);
  EXPECT_THROW(program.AppendBlock(7), OutOfRange);
}

TEST(ProgramDesc, ADeclarationKeepsItsName) {
  ProgramDesc program;
  Declare(&program, "x", {2});
  Declare(&program, "y", {3});
  program.block(0).Var("copy") = program.block(0).GetVar("y");
  EXPECT_THAT(([&] { Append(&program, "test_scale", {{"X", {"x"}}}, {{"Out", {"copy"}}}); }),
              testing::ThrowsMessage<InvalidArgument>(testing::AllOf(HasSubstr("'copy'"), HasSubstr("name 'y'"))));
  EXPECT_EQ(program.block(0).GetVar("y").tensor.dims, (DDim{3}));
  program.block(0).Var("copy").name = "copy";
  EXPECT_NO_THROW(Append(&program, "test_scale", {{"X", {"x"}}}, {{"Out", {"copy"}}}));
}

TEST(ProgramDesc, VariablesKeepTheirOrder) {
  ProgramDesc program;
  for (const char* name : {"c", "a", "b"}) {
    Declare(&program, name);
  }
  program.block(0).RemoveVar("a");
  std::vector<std::string> names;
  for (const VarDesc* var : program.block(0).LocalVars()) {
    names.push_back(var->name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"c", "b"}));
  EXPECT_THROW(program.block(0).RemoveVar("a"), NotFound);
}

TEST(ProgramDesc, ReservedNamesAreRefused) {
  ProgramDesc program;
  EXPECT_THROW(program.block(0).Var(""), InvalidArgument);
  EXPECT_THROW(program.block(0).Var(std::string(kEmptyVarName)), InvalidArgument);
}

TEST(ProgramDesc, CopyIsIndependent) {
  ProgramDesc program;
  Declare(&program, "x", {2});
  Append(&program, "test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}});
  const ProgramDesc copy(program);
  program.block(0).MutableVar("x").tensor.dims = {9};
  program.block(0).RemoveOps(0, 1);
  EXPECT_EQ(copy.block(0).GetVar("x").tensor.dims, (DDim{2}));
  EXPECT_EQ(copy.block(0).ops().size(), 1U);
  EXPECT_EQ(&copy.block(0).program(), &copy);
}

TEST(ProgramDesc, AppendDeclaresOutputsAndTakesThemBackIfItFails) {
  ProgramDesc program;
  BlockDesc& block = program.block(0);
  block.Var("x").tensor.dims = {2};
  block.Append("test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"factor", 2.0F}});
  EXPECT_EQ(block.GetVar("y").tensor.dims, (DDim{2}));
  BlockDesc& inner = program.AppendBlock(0);
  inner.Append("test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"factor", 2.0F}});
  EXPECT_FALSE(inner.HasLocalVar("y"));
  EXPECT_THROW(inner.Append("test_scale", {{"X", {"missing"}}}, {{"Out", {"z"}}}, {{"factor", 2.0F}}), NotFound);
  EXPECT_EQ(inner.FindVar("z"), nullptr);
  EXPECT_EQ(inner.ops().size(), 1U);
}

TEST(ProgramDesc, RevisionGrowsWithEveryChange) {
  ProgramDesc program;
  uint64_t last = program.revision();
  const auto grew = [&] { return std::exchange(last, program.revision()) < program.revision(); };
  Declare(&program, "x");
  EXPECT_TRUE(grew());
  Append(&program, "test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}});
  EXPECT_TRUE(grew());
  program.block(0).RemoveOps(0, 1);
  EXPECT_TRUE(grew());
  program.block(0).RemoveVar("y");
  EXPECT_TRUE(grew());
  (void)program.Serialize();
  EXPECT_FALSE(grew());
}

TEST(ProgramDesc, ListingShowsVariablesAndOperators) {
  ProgramDesc program;
  Declare(&program, "x", {-1, 3});
  Append(&program, "test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"factor", 2.0F}});
  EXPECT_THAT(program.ToString(), testing::AllOf(HasSubstr("x: LoDTensor float32[-1, 3]"),
                                                 HasSubstr("test_scale(X=[x]) → Out=[y] factor=2")));
}

TEST(ProgramDesc, RevisionGrowsWhateverIsHandedOutToBeChanged) {
  ProgramDesc program;
  Declare(&program, "x");
  Append(&program, "test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}});
  BlockDesc& inner = program.AppendBlock(0);
  const auto grows = [&](auto&& change) {
    const uint64_t before = program.revision();
    change();
    return program.revision() > before;
  };
  EXPECT_TRUE(grows([&] { program.block(0).Var("x").persistable = true; }));
  EXPECT_TRUE(grows([&] { inner.MutableVar("x").stop_gradient = true; }));
  EXPECT_TRUE(grows([&] { program.block(0).MutableOp(0).attrs["factor"] = 2.0F; }));
  EXPECT_FALSE(grows([&] { (void)inner.GetVar("x").tensor; }));
  EXPECT_THROW(inner.MutableVar("nowhere"), NotFound);
  EXPECT_THROW(program.block(0).MutableOp(1), OutOfRange);

  // What can be read without a change is const.
  static_assert(std::is_same_v<decltype(inner.FindVar("x")), const VarDesc*>);
  static_assert(std::is_same_v<decltype(inner.GetVar("x")), const VarDesc&>);
  static_assert(std::is_same_v<decltype(*inner.LocalVars()[0]), const VarDesc&>);
  static_assert(std::is_same_v<decltype(*inner.ops()[0]), const OpDesc&>);
  static_assert(std::is_same_v<decltype(std::as_const(inner).program()), const ProgramDesc&>);
}

TEST(AppendOp, InfersShapeTypeAndLoDOfTheOutputs) {
  ProgramDesc program;
  VarDesc& x = Declare(&program, "x", {-1, 3});
  x.tensor.dtype = DataType::kFloat64;
  x.tensor.lod_level = 1;
  Append(&program, "test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}});
  EXPECT_EQ(program.block(0).GetVar("y").tensor, x.tensor);
}

TEST(AppendOp, UndeclaredVariableIsNamedWithSlotAndOperator) {
  ProgramDesc program;
  Declare(&program, "x");
  try {
    program.block(0).AppendOp({"test_scale", {{"X", {"x"}}}, {{"Out", {"nowhere"}}}, {}});
    FAIL() << "nothing was thrown";
  } catch (const NotFound& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("'nowhere'"), HasSubstr("'Out'"), HasSubstr("test_scale")));
    EXPECT_EQ(error.variable(), "nowhere");
  }
}

TEST(AppendOp, UnknownOperatorIsNotFound) {
  ProgramDesc program;
  EXPECT_THROW(program.block(0).AppendOp({"no_such_operator", {}, {}, {}}), NotFound);
}

TEST(AppendOp, FailureLeavesTheBlockAsItWas) {
  ProgramDesc program;
  Declare(&program, "x", {2});
  Declare(&program, "y", {3});
  Declare(&program, "out", {7});
  const std::string before = program.Serialize();
  const uint64_t revision = program.revision();
  EXPECT_THROW(program.block(0).AppendOp({"test_mul", {{"X", {"x"}}, {"Y", {"y"}}}, {{"Out", {"out"}}}, {}}),
               InvalidArgument);
  EXPECT_EQ(program.Serialize(), before);
  EXPECT_EQ(program.revision(), revision);
}

TEST(AppendOp, ShapeErrorCarriesTheOperator) {
  ProgramDesc program;
  Declare(&program, "x", {2});
  Declare(&program, "y", {3});
  try {
    Append(&program, "test_mul", {{"X", {"x"}}, {"Y", {"y"}}}, {{"Out", {"out"}}});
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.op_type(), "test_mul");
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("[2]"), HasSubstr("[3]")));
  }
}

TEST(AppendOp, TensorOperatorRefusesAReaderVariable) {
  ProgramDesc program;
  Declare(&program, "r").kind = VarKind::kReader;
  EXPECT_THROW(Append(&program, "test_scale", {{"X", {"r"}}}, {{"Out", {"y"}}}), TypeMismatch);
}

HEADRACE_REGISTER_OP(test_to_double)
    .Input("X", "")
    .Output("Out", "")
    .InferShape([](InferShapeContext& ctx) {
      ctx.ShareAll("X", "Out");
      ctx.SetOutputType("Out", DataType::kFloat64);
    })
    .Kernel<float>([](const ExecutionContext&) {});

TEST(AppendOp, ResultWithoutLoDIsDeclaredWithoutLoD) {
  ProgramDesc program;
  Declare(&program, "x", {-1}).tensor.lod_level = 1;
  Declare(&program, "y").tensor.lod_level = 1;
  Append(&program, "test_mean", {{"X", {"x"}}}, {{"Out", {"y"}}});
  EXPECT_EQ(program.block(0).GetVar("y").tensor.lod_level, 0);
}

TEST(AppendOp, ShapesThatNoTensorCanHaveAreRefused) {
  ProgramDesc program;
  Declare(&program, "x", {INT64_MAX, 2});
  EXPECT_THROW(Append(&program, "test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}), InvalidArgument);
  EXPECT_THROW(Append(&program, "test_fill", {}, {{"Out", {"y"}}},
                      {{"shape", std::vector<int64_t>{INT64_MAX, 2}}, {"value", 1.0F}}),
               InvalidArgument);
}

TEST(AppendOp, ResultOfAnotherTypeCannotReplaceItsInput) {
  ProgramDesc program;
  Declare(&program, "x", {1});
  EXPECT_THROW(Append(&program, "test_to_double", {{"X", {"x"}}}, {{"Out", {"x"}}}), InvalidArgument);
  EXPECT_EQ(program.block(0).GetVar("x").tensor.dtype, DataType::kFloat32);
  EXPECT_NO_THROW(Append(&program, "test_to_double", {{"X", {"x"}}}, {{"Out", {"y"}}}));
}

TEST(AppendOp, EmptyNameStandsForNoVariable) {
  ProgramDesc program;
  for (const char* name : {"x", "y", "g"}) {
    Declare(&program, name, {2});
  }
  Append(&program, "test_mul_grad", {{"X", {"x"}}, {"Y", {"y"}}, {"Out@GRAD", {"g"}}},
         {{"X@GRAD", {"dx"}}, {"Y@GRAD", {std::string(kEmptyVarName)}}});
  EXPECT_EQ(program.block(0).GetVar("dx").tensor.dims, (DDim{2}));
}

TEST(InsertOp, KeepsTheOrderOfTheOthers) {
  ProgramDesc program;
  Declare(&program, "x");
  Append(&program, "test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}});
  program.block(0).InsertOp(0, {"test_exp", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}});
  EXPECT_EQ(program.block(0).ops()[0]->type, "test_exp");
  EXPECT_EQ(program.block(0).ops()[1]->type, "test_scale");
  EXPECT_THROW(program.block(0).InsertOp(3, *program.block(0).ops()[0]), OutOfRange);
  EXPECT_THROW(program.block(0).RemoveOps(1, 3), OutOfRange);
}

}  // namespace
}  // namespace headrace
