#include <cmath>
#include <limits>

#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

// --- lookup_table ---

OpTest Lookup(const std::vector<int64_t>& ids, int64_t padding = -1) {
  OpTest test("lookup_table");
  test.In<double>("W", {4, 2}, {0, 1, 10, 11, 20, 21, 30, 31})
      .In<int64_t>("Ids", {static_cast<int64_t>(ids.size()), 1}, ids, {{0, ids.size()}});
  test.Out("Out").Attr("padding_idx", padding);
  return test;
}

TEST(LookupTable, TakesRowsAndKeepsTheLoD) {
  OpTest test = Lookup({3, 0, 3});
  test.Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{3, 2}));
  EXPECT_EQ(test.Get<double>("Out"), (std::vector<double>{30, 31, 0, 1, 30, 31}));
  EXPECT_EQ(test.Output("Out").lod(), (LoD{{0, 3}}));
}

TEST(LookupTable, AddsUpTheGradientsOfARow) { Lookup({3, 0, 3, 3}).CheckGradient({"W"}, {"Out"}); }

TEST(LookupTable, GivesPaddingZerosAndNoGradient) {
  OpTest test = Lookup({1, 2}, 2);
  test.CheckGradient({"W"}, {"Out"});
  EXPECT_EQ(test.Get<double>("Out"), (std::vector<double>{10, 11, 0, 0}));
}

TEST(LookupTable, TakesAnEmptyBatch) {
  OpTest test = Lookup({});
  test.Run();
  EXPECT_EQ(test.Dims("Out"), (DDim{0, 2}));
}

TEST(LookupTable, RefusesBadInput) {
  for (const int64_t id : {int64_t{4}, int64_t{-1}, INT64_MAX}) {
    OpTest test = Lookup({0, id});
    ExpectRunThrows<OutOfRange>(test, "lookup_table", "Ids", "row 1", std::to_string(id), "[0, 4)");
  }
  OpTest dims("lookup_table");
  dims.In<float>("W", {1, 1}, {1}).In<int64_t>("Ids", {1, 2}, {0, 0}).Out("Out");
  ExpectRunThrows<InvalidArgument>(dims, "Ids", "[1, 2]");
  OpTest type("lookup_table");
  type.In<float>("W", {1, 1}, {1}).In<int32_t>("Ids", {1, 1}, {0}).Out("Out");
  ExpectRunThrows<TypeMismatch>(type, "Ids", "int64", "int32");
  OpTest padding = Lookup({0}, 4);
  ExpectRunThrows<InvalidArgument>(padding, "padding_idx", "4");
}

TEST(LookupTable, PropagatesUnknownDims) {
  OpTest test("lookup_table");
  test.Declare("W", {100, 8}).Declare("Ids", {-1, 1}, DataType::kInt64, 1).Out("Out");
  EXPECT_EQ(test.InferredDims("Out"), (DDim{-1, 8}));
}

// --- sequence_pool ---

// Sequences of 2, 0 and 3 rows, in two paragraphs.
OpTest Pool(const std::string& type) {
  OpTest test("sequence_pool");
  test.In<double>("X", {5, 2}, {1, 20, 3, 10, 5, 60, 6, 50, 4, 70}, {{0, 1, 3}, {0, 2, 2, 5}})
      .Out("Out")
      .Attr("pooltype", type);
  test.Attr("pad_value", -1.0f);
  if (type == "MAX") {
    test.Out("MaxIndex");
  }
  return test;
}

TEST(SequencePool, MakesOneRowOfEachSequence) {
  const auto pooled = [](const std::string& type) {
    OpTest test = Pool(type);
    test.Run();
    EXPECT_EQ(test.Dims("Out"), (DDim{3, 2})) << type;
    EXPECT_EQ(test.Output("Out").lod(), (LoD{{0, 1, 3}})) << type;
    return test.Get<double>("Out");
  };
  EXPECT_EQ(pooled("SUM"), (std::vector<double>{4, 30, -1, -1, 15, 180}));
  EXPECT_EQ(pooled("AVERAGE"), (std::vector<double>{2, 15, -1, -1, 5, 60}));
  EXPECT_EQ(pooled("MAX"), (std::vector<double>{3, 20, -1, -1, 6, 70}));
  EXPECT_EQ(pooled("FIRST"), (std::vector<double>{1, 20, -1, -1, 5, 60}));
  EXPECT_EQ(pooled("LAST"), (std::vector<double>{3, 10, -1, -1, 4, 70}));
  EXPECT_NEAR(pooled("SQRT")[0], 4 / std::sqrt(2.0), 1e-12);
}

TEST(SequencePool, HasItsGradient) {
  for (const char* type : {"SUM", "AVERAGE", "SQRT", "MAX", "FIRST", "LAST"}) {
    Pool(type).CheckGradient({"X"}, {"Out"});
  }
}

TEST(SequencePool, SaysWhereTheMaximaAre) {
  OpTest test = Pool("MAX");
  test.Run();
  EXPECT_EQ(test.Get<int32_t>("MaxIndex"), (std::vector<int32_t>{1, 0, -1, -1, 3, 4}));
}

TEST(SequencePool, DoesNotKnowTheNumberOfSequencesBeforeItRuns) {
  OpTest test("sequence_pool");
  test.Declare("X", {-1, 8}, DataType::kFloat32, 1).Out("Out");
  EXPECT_EQ(test.InferredDims("Out"), (DDim{-1, 8}));
}

TEST(SequencePool, DeclaresTheLoDThatItLeaves) {
  for (const int32_t level : {0, 1, 2}) {
    ProgramDesc program;
    BlockDesc& block = program.block(0);
    block.Var("x").tensor = {{-1, 2}, DataType::kFloat32, level};
    block.Var("y").tensor.lod_level = 7;
    block.AppendOp({"sequence_pool", {{"X", {"x"}}}, {{"Out", {"y"}}}, {}});
    EXPECT_EQ(block.GetVar("y").tensor.lod_level, std::max(level - 1, 0));
  }
}

TEST(SequencePool, RefusesBadInput) {
  OpTest none("sequence_pool");
  none.In<float>("X", {2, 1}, {1, 2}).Out("Out");
  ExpectRunThrows<InvalidArgument>(none, "sequence_pool", "X", "LoD", "[2, 1]");
  OpTest wrong("sequence_pool");
  wrong.In<float>("X", {2, 1}, {1, 2}, {{0, 3}}).Out("Out");
  ExpectRunThrows<InvalidArgument>(wrong, "sequence_pool");
  OpTest decreasing("sequence_pool");
  decreasing.In<float>("X", {2, 1}, {1, 2}, {{0, 2, 1, 2}}).Out("Out");
  ExpectRunThrows<InvalidArgument>(decreasing, "sequence_pool");
  OpTest type = Pool("MIN");
  ExpectRunThrows<InvalidArgument>(type, "pooltype", "MIN");
  OpTest index("sequence_pool");
  index.In<float>("X", {1, 1}, {1}, {{0, 1}}).Out("Out").Attr("pooltype", std::string("MAX"));
  ExpectRunThrows<InvalidArgument>(index, "MaxIndex");
}

// --- sequence_softmax ---

TEST(SequenceSoftmax, MakesProbabilitiesOfEachSequence) {
  OpTest test("sequence_softmax");
  test.In<double>("X", {5, 1}, {1, 1, 3, 3, 3}, {{0, 2, 2, 5}}).Out("Out").Run();
  const auto out = test.Get<double>("Out");
  EXPECT_DOUBLE_EQ(out[0], 0.5);
  EXPECT_DOUBLE_EQ(out[4], 1.0 / 3);
}

TEST(SequenceSoftmax, HasItsGradient) {
  OpTest test("sequence_softmax");
  test.In<double>("X", {5, 1}, Numbers(5, -1, 1), {{0, 2, 2, 5}}).Out("Out").CheckGradient({"X"}, {"Out"});
}

TEST(SequenceSoftmax, RefusesBadInput) {
  OpTest none("sequence_softmax");
  none.In<float>("X", {2, 1}, {1, 2}).Out("Out");
  ExpectRunThrows<InvalidArgument>(none, "sequence_softmax", "LoD");
  OpTest wide("sequence_softmax");
  wide.In<float>("X", {1, 2}, {1, 2}, {{0, 1}}).Out("Out");
  ExpectRunThrows<InvalidArgument>(wide, "X", "[1, 2]");
}

}  // namespace
}  // namespace headrace
