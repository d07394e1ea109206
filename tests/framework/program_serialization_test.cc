#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "framework/op_registry.h"
#include "framework/program_desc.h"
#include "test_ops.h"

namespace headrace {
namespace {

using test::Append;
using test::Declare;

KernelFn NoKernel() {
  return [](const ExecutionContext&) {};
}

HEADRACE_REGISTER_OP(test_every_attr)
    .Attr<bool>("bool", "")
    .Attr<int32_t>("int", "")
    .Attr<int64_t>("long", "")
    .Attr<float>("float", "")
    .Attr<double>("double", "")
    .Attr<std::string>("string", "")
    .Attr<std::vector<bool>>("bools", "")
    .Attr<std::vector<int32_t>>("ints", "")
    .Attr<std::vector<int64_t>>("longs", "")
    .Attr<std::vector<float>>("floats", "")
    .Attr<std::vector<std::string>>("strings", "")
    .Attr<BlockRef>("block", "")
    .Kernel<float>(NoKernel());

// A program with something of everything.
ProgramDesc Sample() {
  ProgramDesc program;
  Declare(&program, "x", {-1, 3}).tensor.lod_level = 2;
  Declare(&program, "half", {3}).tensor.dtype = DataType::kBFloat16;
  test::DeclareParameter(&program, "w", {4, 5});
  program.block(0).MutableVar("w").attrs = {
      {"trainable", false}, {"optimize_attr.learning_rate", 0.1}, {"regularizer", std::string("L2")}};
  Declare(&program, "skip").stop_gradient = true;
  VarDesc& reader = Declare(&program, "reader");
  reader.kind = VarKind::kReader;
  reader.reader = {{{-1, 28}, DataType::kFloat32, 0}, {{-1, 1}, DataType::kInt64, 1}};
  Declare(&program, "queue").kind = VarKind::kRaw;
  Declare(&program, "array", {2}).kind = VarKind::kLoDTensorArray;
  Declare(&program, "rows", {-1, 2}).kind = VarKind::kSelectedRows;
  Declare(&program, "steps").kind = VarKind::kStepScopes;
  Declare(&program, "table").kind = VarKind::kLoDRankTable;
  BlockDesc& inner = program.AppendBlock(0);
  inner.Var("local").tensor.dims = {1};
  Append(&program, "test_scale", {{"X", {"x"}}}, {{"Out", {"y"}}}, {{"factor", 0.1F}});
  inner.AppendOp({"test_scale", {{"X", {"x"}}}, {{"Out", {"local"}}}, {}});
  Append(&program, "test_every_attr", {}, {},
         {{"bool", true},
          {"int", int32_t{-1}},
          {"long", int64_t{1} << 40},
          {"float", -0.0F},
          {"double", 1e-300},
          {"string", std::string("zero\0inside", 11)},
          {"bools", std::vector<bool>{true, false}},
          {"ints", std::vector<int32_t>{}},
          {"longs", std::vector<int64_t>{INT64_MIN}},
          {"floats", std::vector<float>{1.5F}},
          {"strings", std::vector<std::string>{"", "b"}},
          {"block", BlockRef{1}}});
  return program;
}

TEST(ProgramSerialization, RoundTripKeepsEverything) {
  const ProgramDesc program = Sample();
  const auto parsed = ProgramDesc::Parse(program.Serialize());
  EXPECT_EQ(parsed->ToString(), program.ToString());
  EXPECT_EQ(parsed->block(0).ops()[1]->attrs, program.block(0).ops()[1]->attrs);
  EXPECT_EQ(parsed->block(0).GetVar("reader").reader, program.block(0).GetVar("reader").reader);
  EXPECT_EQ(parsed->block(0).GetVar("w").attrs, program.block(0).GetVar("w").attrs);
  EXPECT_FALSE(parsed->block(0).GetVar("w").IsTrainable());
  EXPECT_EQ(parsed->block(1).parent(), 0);
}

TEST(ProgramSerialization, EqualProgramsGiveEqualBytes) {
  const std::string bytes = Sample().Serialize();
  EXPECT_EQ(Sample().Serialize(), bytes);
  EXPECT_EQ(ProgramDesc::Parse(bytes)->Serialize(), bytes);
}

// Fields as Protocol Buffers encodes them.
std::string Number(int field, char value) { return {static_cast<char>(field << 3), value}; }
std::string Bytes(int field, const std::string& value) {
  return std::string{static_cast<char>(field << 3 | 2), static_cast<char>(value.size())} + value;
}

TEST(ProgramSerialization, HasATextFormat) {
  const std::string text = Sample().ToTextFormat();
  for (const char* part :
       {"blocks {\n  idx: 0\n  parent_idx: -1\n", "    name: \"x\"\n    type {\n      type: LOD_TENSOR\n",
        "        data_type: BF16\n", "      name: \"longs\"\n      type: LONGS\n", "      s: \"zero\\000inside\"\n",
        "    type: \"test_scale\"\n"}) {
    EXPECT_THAT(text, testing::HasSubstr(part));
  }
}

TEST(ProgramSerialization, HasPaddlesFieldNumbers) {
  const std::string float32_vector = Bytes(1, Number(1, 5) + Number(2, 3));  // TensorDesc: data_type, dims
  const std::string weight = Bytes(1, "w") + Bytes(2, Number(1, 7) + Bytes(3, float32_vector + Number(2, 0))) +
                             Number(3, 1) + Number(5, 1) + Number(6, 0);  // persistable, is_parameter, stop_gradient
  const std::string array = Bytes(1, "a") + Bytes(2, Number(1, 13) + Bytes(4, float32_vector + Number(2, 1))) +
                            Number(3, 0) + Number(5, 0) + Number(6, 1);
  const std::string root = Number(1, 0) + "\x10" + std::string(9, '\xff') + "\x01";  // idx 0, parent_idx -1
  const std::string bytes = Bytes(1, root + Bytes(3, weight) + Bytes(3, array)) + Bytes(4, Number(1, 0));

  const auto program = ProgramDesc::Parse(bytes);
  const VarDesc& w = program->block(0).GetVar("w");
  EXPECT_EQ(w.tensor, (TensorSpec{{3}, DataType::kFloat32, 0}));
  EXPECT_TRUE(w.persistable && w.is_parameter && !w.stop_gradient);
  const VarDesc& a = program->block(0).GetVar("a");
  EXPECT_EQ(a.kind, VarKind::kLoDTensorArray);
  EXPECT_EQ(a.tensor, (TensorSpec{{3}, DataType::kFloat32, 1}));
  EXPECT_TRUE(!a.persistable && !a.is_parameter && a.stop_gradient);
  EXPECT_EQ(program->Serialize(), bytes);
}

TEST(ProgramParse, EmptyAndGarbageAreDataLoss) {
  EXPECT_THROW(ProgramDesc::Parse(""), DataLoss);
  EXPECT_THROW(ProgramDesc::Parse("not a program at all"), DataLoss);
  EXPECT_THROW(ProgramDesc::Parse(std::string(1000, '\xff')), DataLoss);
}

// Only a cut between two fields of the message leaves a program, the one with the fields before it.
TEST(ProgramParse, EveryTruncationIsReported) {
  const ProgramDesc program = Sample();
  const std::string bytes = program.Serialize();
  // A field is a byte that says which, the number of its bytes, and these: two blocks and the version.
  const auto end_of_field = [&](size_t at) {
    size_t size = 0;
    int shift = 0;
    do {
      size |= static_cast<size_t>(bytes[++at] & 0x7F) << shift;
      shift += 7;
    } while ((bytes[at] & 0x80) != 0);
    return at + 1 + size;
  };
  const size_t first_block = end_of_field(0);
  const size_t second_block = end_of_field(first_block);
  ASSERT_EQ(end_of_field(second_block), bytes.size());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto parse = [&] { return ProgramDesc::Parse(std::string_view(bytes).substr(0, size)); };
    if (size == second_block) {
      EXPECT_EQ(parse()->ToString(), program.ToString());
    } else {
      EXPECT_THROW(parse(), DataLoss) << size;  // without the second block, too: the first refers to it
    }
  }
}

TEST(ProgramParse, FailureWritesNothingToStderr) {
  testing::internal::CaptureStderr();
  EXPECT_THROW(ProgramDesc::Parse(std::string("\x0a\x02\x08\x00", 4)),
               DataLoss);  // a block without its required parent
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(ProgramParse, UnregisteredOperatorIsNotFound) {
  std::string bytes = Sample().Serialize();
  bytes.replace(bytes.find("test_every_attr"), 15, "test_every_attX");
  EXPECT_THROW(ProgramDesc::Parse(bytes), NotFound);
}

TEST(ProgramParse, UndeclaredVariableIsNotFound) {
  ProgramDesc program;
  Declare(&program, "abc");
  Append(&program, "test_scale", {{"X", {"abc"}}}, {{"Out", {"y"}}});
  std::string bytes = program.Serialize();
  bytes.replace(bytes.rfind("abc"), 3, "abd");
  try {
    ProgramDesc::Parse(bytes);
    FAIL() << "nothing was thrown";
  } catch (const NotFound& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("'abd'"), testing::HasSubstr("'X'"),
                                             testing::HasSubstr("test_scale")));
  }
}

TEST(ProgramParse, DuplicateVariableIsDataLoss) {
  ProgramDesc program;
  Declare(&program, "aa");
  Declare(&program, "bb");
  std::string bytes = program.Serialize();
  bytes.replace(bytes.find("bb"), 2, "aa");
  EXPECT_THROW(ProgramDesc::Parse(bytes), DataLoss);
}

// Programs that contradict themselves, made by editing the one byte in which a field's value is.
std::string WithByte(std::string bytes, const std::string& before, char value) {
  const size_t at = bytes.find(before);
  EXPECT_NE(at, std::string::npos);
  bytes[at + before.size()] = value;
  return bytes;
}

TEST(ProgramParse, BlockThatIsItsOwnParentIsDataLoss) {
  ProgramDesc program;
  program.AppendBlock(0);
  const std::string bytes = program.Serialize();
  const std::string second_block("\x08\x01\x10", 3);  // idx 1, parent_idx …
  EXPECT_NO_THROW(ProgramDesc::Parse(WithByte(bytes, second_block, 0)));
  EXPECT_THROW(ProgramDesc::Parse(WithByte(bytes, second_block, 1)), DataLoss);
  EXPECT_THROW(ProgramDesc::Parse(WithByte(bytes, second_block, 5)), DataLoss);
}

TEST(ProgramParse, BlockRefOutOfRangeIsDataLoss) {
  const std::string bytes = Sample().Serialize();
  const std::string ref(
      "\x0a\x05"
      "block"
      "\x10\x08\x60",
      10);  // name "block", type BLOCK, block_idx …
  EXPECT_NO_THROW(ProgramDesc::Parse(WithByte(bytes, ref, 1)));
  EXPECT_THROW(ProgramDesc::Parse(WithByte(bytes, ref, 2)), DataLoss);
}

// Blocks 1 to `depth`, each within the one before it, of which each is run by `operators` operators.
std::string NestedBlocks(int32_t depth, int operators) {
  ProgramDesc program;
  Declare(&program, "on", {1}).tensor.dtype = DataType::kBool;
  for (int32_t i = 0; i < depth; ++i) {
    program.AppendBlock(i);
    for (int op = 0; op < operators; ++op) {
      program.block(static_cast<size_t>(i))
          .AppendOp({"conditional_block",
                     {{"Cond", {"on"}}},
                     {},
                     {{"sub_block", BlockRef{i + 1}}, {"is_scalar_condition", true}}});
    }
  }
  return program.Serialize();
}

TEST(ProgramParse, BlocksThatCannotBeRunAreDataLoss) {
  EXPECT_NO_THROW(ProgramDesc::Parse(NestedBlocks(64, 1)));
  EXPECT_THAT([] { ProgramDesc::Parse(NestedBlocks(65, 1)); },
              testing::ThrowsMessage<DataLoss>(testing::HasSubstr("block 65 lies more than 64 blocks deep")));
  // What looks into blocks within blocks would see the innermost one 2^64 times.
  EXPECT_THAT([] { ProgramDesc::Parse(NestedBlocks(64, 2)); },
              testing::ThrowsMessage<DataLoss>(testing::HasSubstr("block 1 belongs to two operators")));
}

// What version 1 called factors, and 2 promill; names of one length, so that bytes can be edited.
HEADRACE_REGISTER_OP(test_versioned)
    .Output("Out", "")
    .Attr<int32_t>("percent", "", 100)
    .Version(3,
             [](OpDesc* op, int32_t from) {
               HR_ENFORCE(from > 0, Unimplemented, "version 0 had no factors");
               const auto old = op->attrs.extract(from == 1 ? "factors" : "promill");
               const auto value = std::get<int32_t>(old.mapped());
               op->attrs["percent"] = from == 1 ? value * 100 : value / 10;
             })
    .Kernel<float>(NoKernel());

std::string ProgramOfVersion(char version, const std::string& attr) {
  ProgramDesc program;
  Declare(&program, "y", {1});
  Append(&program, "test_versioned", {}, {{"Out", {"y"}}}, {{"percent", int32_t{50}}});
  std::string bytes = program.Serialize();
  EXPECT_EQ(bytes.back(), 3);  // the last field of all
  bytes.back() = version;
  return bytes.replace(bytes.find("percent"), 7, attr);
}

int32_t PercentOf(const std::string& bytes) {
  return ProgramDesc::Parse(bytes)->block(0).ops().front()->Attr<int32_t>("percent");
}

TEST(ProgramParse, OperatorsOfOlderVersionsAreUpgraded) {
  EXPECT_EQ(PercentOf(ProgramOfVersion(3, "percent")), 50);
  EXPECT_EQ(PercentOf(ProgramOfVersion(2, "promill")), 5);
  EXPECT_EQ(PercentOf(ProgramOfVersion(1, "factors")), 5000);
  try {
    PercentOf(ProgramOfVersion(0, "percent"));
    FAIL() << "nothing was thrown";
  } catch (const Unimplemented& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("version 0 had no factors"), testing::HasSubstr("test_versioned")));
  }
}

TEST(OpRegistry, AVersionNeedsAnUpgrade) {
  EXPECT_THROW(
      OpRegistrar("test_version_without_upgrade").Output("Out", "").Version(1, {}).Kernel<float>(NoKernel()).Register(),
      InvalidArgument);
}

TEST(ProgramParse, OperatorsOfNewerVersionsAreRefused) {
  ProgramDesc program;
  Declare(&program, "y", {1});
  Append(&program, "test_versioned", {}, {{"Out", {"y"}}}, {});
  std::string bytes = program.Serialize();
  ASSERT_EQ(bytes.back(), 3);  // the last field of all
  EXPECT_EQ(ProgramDesc::Parse(bytes)->Serialize(), bytes);
  bytes.back() = 4;
  try {
    ProgramDesc::Parse(bytes);
    FAIL() << "nothing was thrown";
  } catch (const Unimplemented& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("version 4 of operator 'test_versioned'"),
                                             testing::HasSubstr("at version 3 here")));
  }
}

TEST(ProgramParse, NegativeVersionsAreDataLoss) {
  const auto field = [](char number, const std::string& bytes) {
    return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
  };
  const std::string minus_one = "\x08" + std::string(9, '\xff') + "\x01";
  for (const char* type : {"test_versioned", "test_scale", "unheard_of"}) {
    // In the map of versions (5), a pair (1) of name and version.
    const std::string versions = field(5, field(1, field(1, type) + field(2, minus_one)));
    EXPECT_THROW(ProgramDesc::Parse(ProgramOfVersion(3, "percent") + versions), DataLoss) << type;
  }
}

TEST(ProgramParse, BadEnumValuesAreDataLoss) {
  ProgramDesc program;
  Declare(&program, "v");
  const std::string bytes = program.Serialize();
  const std::string data_type("\x0a\x02\x08", 3);  // TensorDesc of 2 bytes: data_type …
  EXPECT_NO_THROW(ProgramDesc::Parse(WithByte(bytes, data_type, 6)));
  EXPECT_THROW(ProgramDesc::Parse(WithByte(bytes, data_type, 7)), DataLoss);   // LOD_TENSOR is no element type
  EXPECT_THROW(ProgramDesc::Parse(WithByte(bytes, data_type, 99)), DataLoss);  // nothing is
  const std::string kind("\x0a\x01v\x12\x0a\x08", 6);                    // name "v", type: VarType of 10 bytes: type …
  EXPECT_THROW(ProgramDesc::Parse(WithByte(bytes, kind, 5)), DataLoss);  // FP32 is no kind of variable
}

TEST(ProgramParse, AbsurdShapesAreDataLoss) {
  for (const DDim& dims : {DDim{INT64_MAX, 3}, DDim{-2}, DDim{INT64_MIN}}) {
    ProgramDesc program;
    Declare(&program, "v", dims);
    EXPECT_THROW(ProgramDesc::Parse(program.Serialize()), DataLoss) << ToString(dims);
  }
  ProgramDesc program;
  Declare(&program, "v").tensor.lod_level = -1;
  EXPECT_THROW(ProgramDesc::Parse(program.Serialize()), DataLoss);
}

TEST(ProgramParse, MutatedBytesAreParsedOrReported) {
  const std::string original = Sample().Serialize();
  std::mt19937 random(20240607);
  int parsed = 0;
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = original;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < edits && !bytes.empty(); ++i) {
      const size_t at = random() % bytes.size();
      const size_t length = std::min<size_t>(1 + random() % 8, bytes.size() - at);
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
          break;
        case 2:
          bytes.erase(at, length);
          break;
        default:
          bytes.insert(random() % bytes.size(), bytes.substr(at, length));
      }
    }
    try {
      const auto program = ProgramDesc::Parse(bytes);
      (void)program->ToString();
      EXPECT_NO_THROW(ProgramDesc::Parse(program->Serialize()));
      ++parsed;
    } catch (const DataLoss&) {
      ++refused;
    } catch (const NotFound&) {
      ++refused;
    }
  }
  // Both ends were reached, or the mutations test nothing.
  EXPECT_GT(parsed, 50);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace headrace
