// The operators that create readers and read from them, one by one, without an executor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "framework/program_desc.h"
#include "framework/scope.h"
#include "reader/buffered_reader.h"
#include "reader/lod_tensor_blocking_queue.h"
#include "reader/py_reader.h"
#include "reader/reader.h"
#include "tests/reader/reader_test_util.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int32_t kFp32 = static_cast<int32_t>(DataType::kFloat32);
constexpr int32_t kInt64 = static_cast<int32_t>(DataType::kInt64);

std::vector<TensorSpec> ImageSpecs() {
  return {{.dims = {-1, 4}, .dtype = DataType::kFloat32, .lod_level = 0},
          {.dims = {-1, 1}, .dtype = DataType::kInt64, .lod_level = 0}};
}

LoDTensorArray ImageBatch(int64_t rows, float value = 0) {
  return {MakeTensor<float>({rows, 4}, value), MakeTensor<int64_t>({rows, 1}, 7)};
}

AttributeMap ImageAttrs() {
  return {{"shape_concat", std::vector<int32_t>{-1, 4, -1, 1}},
          {"ranks", std::vector<int32_t>{2, 2}},
          {"dtypes", std::vector<int32_t>{kFp32, kInt64}},
          {"lod_levels", std::vector<int32_t>{0, 0}}};
}

// A scope and a program with a queue, readers and the variables that are read.
class ReaderOpTest : public ::testing::Test {
 protected:
  ReaderOpTest() {
    VarDesc& queue = block().Var("queue");
    queue.kind = VarKind::kRaw;
    queue.persistable = true;
    for (const char* name : {"source", "buffered"}) block().Var(name).kind = VarKind::kReader;
    for (const char* name : {"queue", "source", "buffered", "img", "label"}) scope_.Var(name);
    block().Var("img");
    block().Var("label");
  }

  BlockDesc& block() { return program_.block(0); }
  void InitQueue(size_t capacity = 8) {
    scope_.GetVar("queue").GetMutable<LoDTensorBlockingQueueHolder>()->InitOnce(capacity, ImageSpecs());
  }
  LoDTensorBlockingQueue& queue() { return *scope_.GetVar("queue").Get<LoDTensorBlockingQueueHolder>().GetQueue(); }
  std::shared_ptr<ReaderBase> Reader(const std::string& name) { return scope_.GetVar(name).Get<ReaderHolder>().Get(); }

  const OpDesc& AppendCreate(AttributeMap attrs = ImageAttrs()) {
    return block().AppendOp({.type = "create_py_reader",
                             .inputs = {{"blocking_queue", {"queue"}}},
                             .outputs = {{"Out", {"source"}}},
                             .attrs = std::move(attrs)});
  }
  const OpDesc& AppendDoubleBuffer() {
    return block().AppendOp({.type = "create_double_buffer_reader",
                             .inputs = {{"UnderlyingReader", {"source"}}},
                             .outputs = {{"Out", {"buffered"}}},
                             .attrs = {}});
  }
  const OpDesc& AppendRead(const std::string& reader, std::vector<std::string> outputs = {"img", "label"},
                           AttributeMap attrs = {}) {
    return block().AppendOp({.type = "read",
                             .inputs = {{"Reader", {reader}}},
                             .outputs = {{"Out", std::move(outputs)}},
                             .attrs = std::move(attrs)});
  }
  void Run(const OpDesc& op) { OpRegistry::Create(op)->Run(scope_, {}); }
  const LoDTensor& Tensor(const std::string& name) { return scope_.GetVar(name).Get<LoDTensor>(); }

  ProgramDesc program_;
  Scope scope_;
};

TEST_F(ReaderOpTest, CreatePyReaderDeclaresAPersistableReader) {
  AppendCreate();
  const VarDesc& source = block().GetVar("source");
  EXPECT_EQ(source.kind, VarKind::kReader);
  EXPECT_TRUE(source.persistable);
  EXPECT_EQ(source.reader, ImageSpecs());
}

TEST_F(ReaderOpTest, ReadDeclaresItsVariables) {
  AppendCreate();
  AppendDoubleBuffer();
  AppendRead("buffered");
  EXPECT_EQ(block().GetVar("img").tensor, ImageSpecs()[0]);
  EXPECT_EQ(block().GetVar("label").tensor, ImageSpecs()[1]);
  EXPECT_TRUE(block().GetVar("img").stop_gradient);
  EXPECT_TRUE(OpRegistry::Get("read").reads_data);
}

TEST_F(ReaderOpTest, ReadsWhatWasPushedWithoutCopying) {
  InitQueue();
  Run(AppendCreate());
  const LoDTensorArray batch = ImageBatch(3, 2.5F);
  queue().Push(batch);
  Run(AppendRead("source"));
  EXPECT_EQ(Tensor("img").allocation(), batch[0].allocation());
  EXPECT_EQ(Tensor("img").dims(), (DDim{3, 4}));
  EXPECT_EQ(Tensor("label").data<int64_t>()[2], 7);
}

TEST_F(ReaderOpTest, ReadLetsGoOfTheBatchBeforeItWaitsForTheNext) {
  InitQueue();
  Run(AppendCreate());
  const OpDesc& read = AppendRead("source");
  LoDTensorArray batch = ImageBatch(3);
  const std::weak_ptr<Allocation> memory = batch[0].allocation();
  queue().Push(std::move(batch));
  Run(read);
  EXPECT_FALSE(memory.expired());
  std::jthread reading([&] { EXPECT_THROW(Run(read), EndOfData); });
  EXPECT_TRUE(Eventually([&] { return memory.expired(); }));
  queue().Close();
}

TEST_F(ReaderOpTest, CreatingTwiceKeepsTheReaders) {
  InitQueue();
  const OpDesc& create = AppendCreate();
  const OpDesc& buffer = AppendDoubleBuffer();
  Run(create);
  Run(buffer);
  const auto source = Reader("source");
  const auto buffered = Reader("buffered");
  Run(create);
  Run(buffer);
  EXPECT_EQ(Reader("source"), source);
  EXPECT_EQ(Reader("buffered"), buffered);
}

TEST_F(ReaderOpTest, ANewQueueUnderTheSameNameGetsNewReaders) {
  InitQueue();
  const OpDesc& create = AppendCreate();
  const OpDesc& buffer = AppendDoubleBuffer();
  Run(create);
  Run(buffer);
  scope_.GetVar("queue").Clear();
  InitQueue();
  Run(create);
  Run(buffer);
  queue().Push(ImageBatch(1, 4));
  Run(AppendRead("buffered"));
  EXPECT_EQ(Tensor("img").data<float>()[0], 4);
}

TEST_F(ReaderOpTest, CreatePyReaderNeedsAnInitialisedQueue) {
  const OpDesc& create = AppendCreate();
  EXPECT_THAT(ErrorOf<FailedPrecondition>([&] { Run(create); }).what(),
              AllOf(HasSubstr("'queue'"), HasSubstr("create_py_reader")));
  scope_.GetVar("queue").GetMutable<LoDTensorBlockingQueueHolder>();
  EXPECT_THROW(Run(create), FailedPrecondition);
}

TEST_F(ReaderOpTest, CreatePyReaderRefusesAnInputThatIsNoQueue) {
  scope_.GetVar("queue").GetMutable<LoDTensor>();
  const OpDesc& create = AppendCreate();
  EXPECT_THROW(Run(create), TypeMismatch);
}

TEST_F(ReaderOpTest, CreatePyReaderRefusesAQueueOfOtherTensors) {
  InitQueue();
  AttributeMap attrs = ImageAttrs();
  attrs["shape_concat"] = std::vector<int32_t>{-1, 5, -1, 1};
  const OpDesc& other_shape = AppendCreate(attrs);
  EXPECT_THAT(ErrorOf<InvalidArgument>([&] { Run(other_shape); }).message(),
              AllOf(HasSubstr("[-1, 5]"), HasSubstr("[-1, 4]")));
  attrs = ImageAttrs();
  attrs["dtypes"] = std::vector<int32_t>{kFp32, kFp32};
  const OpDesc& other_dtype = AppendCreate(attrs);
  EXPECT_THROW(Run(other_dtype), TypeMismatch);
  const OpDesc& other_count = AppendCreate({{"shape_concat", std::vector<int32_t>{-1, 4}},
                                            {"ranks", std::vector<int32_t>{2}},
                                            {"dtypes", std::vector<int32_t>{kFp32}}});
  EXPECT_THROW(Run(other_count), InvalidArgument);
}

TEST_F(ReaderOpTest, CreatePyReaderRefusesAttributesThatDoNotFitTogether) {
  const auto with = [](const std::string& name, std::vector<int32_t> value) {
    AttributeMap attrs = ImageAttrs();
    attrs[name] = std::move(value);
    return attrs;
  };
  EXPECT_THROW(AppendCreate(with("ranks", {2, 1})), InvalidArgument);
  EXPECT_THROW(AppendCreate(with("ranks", {2, 3})), InvalidArgument);
  EXPECT_THROW(AppendCreate(with("ranks", {4})), InvalidArgument);
  EXPECT_THROW(AppendCreate(with("ranks", {5, -1})), InvalidArgument);
  EXPECT_THROW(AppendCreate(with("dtypes", {kFp32})), InvalidArgument);
  EXPECT_THROW(AppendCreate(with("dtypes", {kFp32, 99})), InvalidArgument);
  EXPECT_THROW(AppendCreate(with("lod_levels", {0})), InvalidArgument);
  EXPECT_THROW(AppendCreate(with("need_check_feed", {1})), InvalidArgument);
  EXPECT_THROW(AppendCreate(with("shape_concat", {-2, 4, -1, 1})), InvalidArgument);
  EXPECT_THROW(AppendCreate({{"shape_concat", std::vector<int32_t>{}},
                             {"ranks", std::vector<int32_t>{}},
                             {"dtypes", std::vector<int32_t>{}}}),
               InvalidArgument);
}

TEST_F(ReaderOpTest, TheDoubleBufferRefusesAnUnknownPlace) {
  EXPECT_THROW(block().AppendOp({.type = "create_double_buffer_reader",
                                 .inputs = {{"UnderlyingReader", {"source"}}},
                                 .outputs = {{"Out", {"buffered"}}},
                                 .attrs = {{"place", std::string("CUDA:0")}}}),
               InvalidArgument);
}

TEST_F(ReaderOpTest, ReadBeforeTheReaderIsCreatedIsAFailedPrecondition) {
  const OpDesc& read = AppendRead("source");
  EXPECT_THAT(ErrorOf<FailedPrecondition>([&] { Run(read); }).what(),
              AllOf(HasSubstr("'source'"), HasSubstr("startup")));
}

TEST_F(ReaderOpTest, ReadRefusesAVariableThatIsNoReader) { EXPECT_THROW(AppendRead("img", {"label"}), TypeMismatch); }

TEST_F(ReaderOpTest, ReadRefusesAnotherNumberOfVariables) {
  AppendCreate();
  EXPECT_THAT(ErrorOf<InvalidArgument>([&] { AppendRead("source", {"img"}); }).message(),
              AllOf(HasSubstr("a tensor for each variable"), HasSubstr("expected 1, got 2")));
}

TEST_F(ReaderOpTest, TheEndOfTheDataIsEndOfDataEveryTime) {
  InitQueue();
  Run(AppendCreate());
  Run(AppendDoubleBuffer());
  const OpDesc& read = AppendRead("buffered");
  queue().Push(ImageBatch(1));
  queue().Close();
  Run(read);
  EXPECT_EQ(ErrorOf<EndOfData>([&] { Run(read); }).message(), "There is no next data.");
  EXPECT_THROW(Run(read), EndOfData);
}

TEST_F(ReaderOpTest, WithoutThrowEofExpTheEndLeavesTheVariablesEmpty) {
  InitQueue();
  Run(AppendCreate());
  const OpDesc& read = AppendRead("source", {"img", "label"}, {{"throw_eof_exp", false}});
  queue().Push(ImageBatch(1));
  queue().Close();
  Run(read);
  EXPECT_TRUE(Tensor("img").initialized());
  Run(read);
  EXPECT_FALSE(Tensor("img").initialized());
  EXPECT_FALSE(Tensor("label").initialized());
}

TEST_F(ReaderOpTest, AnErrorOfTheFeederReachesReadWithItsType) {
  InitQueue();
  Run(AppendCreate());
  Run(AppendDoubleBuffer());
  queue().Fail(std::make_exception_ptr(std::domain_error("sample 12 cannot be decoded")));
  queue().Close();
  const OpDesc& read = AppendRead("buffered");
  EXPECT_STREQ(ErrorOf<std::domain_error>([&] { Run(read); }).what(), "sample 12 cannot be decoded");
}

// A queue that is declared by its dims alone leaves the rest to `read`.
class LooseQueueTest : public ReaderOpTest {
 protected:
  LooseQueueTest() {
    scope_.GetVar("queue").GetMutable<LoDTensorBlockingQueueHolder>()->InitOnce(8,
                                                                                std::vector<DDim>{{-1, -1}, {-1, 1}});
  }
};

TEST_F(LooseQueueTest, ABadShapeNamesVariableExpectedActualAndBatchAndTakesThatBatchAlone) {
  Run(AppendCreate());
  const OpDesc& read = AppendRead("source");
  queue().Push(ImageBatch(1, 1));
  queue().Push({MakeTensor<float>({2, 5}, 0), MakeTensor<int64_t>({2, 1}, 0)});
  queue().Push(ImageBatch(1, 3));
  Run(read);
  const auto error = ErrorOf<InvalidArgument>([&] { Run(read); });
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("batch 1"), HasSubstr("'img'"), HasSubstr("[-1, 4]"), HasSubstr("[2, 5]")));
  EXPECT_EQ(error.variable(), "img");
  EXPECT_EQ(error.op_type(), "read");
  EXPECT_FALSE(Tensor("img").initialized()) << "nothing stale may be taken for new";
  Run(read);
  EXPECT_EQ(Tensor("img").data<float>()[0], 3);
}

TEST_F(LooseQueueTest, ABadDtypeIsATypeMismatchAndAResetGoesOn) {
  Run(AppendCreate());
  Run(AppendDoubleBuffer());
  const OpDesc& read = AppendRead("buffered");
  queue().Push({MakeTensor<double>({2, 4}, 0), MakeTensor<int64_t>({2, 1}, 0)});
  EXPECT_THAT(ErrorOf<TypeMismatch>([&] { Run(read); }).message(),
              AllOf(HasSubstr("'img'"), HasSubstr("float32"), HasSubstr("float64")));
  Reader("source")->ResetAll();
  queue().Push(ImageBatch(2, 5));
  Run(read);
  EXPECT_EQ(Tensor("img").data<float>()[0], 5);
}

TEST_F(LooseQueueTest, ABadLoDDepthIsRefused) {
  AttributeMap attrs = ImageAttrs();
  attrs["lod_levels"] = std::vector<int32_t>{1, 0};
  Run(AppendCreate(attrs));
  const OpDesc& read = AppendRead("source");
  queue().Push(ImageBatch(2));
  EXPECT_THAT(ErrorOf<InvalidArgument>([&] { Run(read); }).message(),
              AllOf(HasSubstr("'img'"), HasSubstr("expected 1 levels of LoD, got 0")));
}

TEST_F(LooseQueueTest, NeedCheckFeedSaysWhichTensorsAreChecked) {
  AttributeMap attrs = ImageAttrs();
  attrs["need_check_feed"] = std::vector<int32_t>{0, 1};
  Run(AppendCreate(attrs));
  const OpDesc& read = AppendRead("source");
  queue().Push({MakeTensor<float>({2, 9}, 0, {{0, 2}}), MakeTensor<int64_t>({2, 1}, 0)});
  Run(read);
  EXPECT_EQ(Tensor("img").dims(), (DDim{2, 9}));
  queue().Push({MakeTensor<int32_t>({2, 4}, 0), MakeTensor<int64_t>({2, 1}, 0)});
  Run(read);
  EXPECT_EQ(Tensor("img").dtype(), DataType::kInt32);
  queue().Push({MakeTensor<double>({2, 4}, 0), MakeTensor<int64_t>({2, 1}, 0)});
  EXPECT_THROW(Run(read), TypeMismatch);
  queue().Push({MakeTensor<float>({2, 4}, 0), MakeTensor<float>({2, 1}, 0)});
  EXPECT_THROW(Run(read), TypeMismatch);
}

TEST_F(ReaderOpTest, TheProgramDeclaresWhatAQueueDoesNot) {
  scope_.GetVar("queue").GetMutable<LoDTensorBlockingQueueHolder>()->InitOnce(8);
  Run(AppendCreate());
  const OpDesc& read = AppendRead("source");
  queue().Push(ImageBatch(1, 2));
  queue().Push({MakeTensor<float>({1, 4}, 0)});
  Run(read);
  EXPECT_EQ(Tensor("img").data<float>()[0], 2);
  EXPECT_THAT(ErrorOf<InvalidArgument>([&] { Run(read); }).message(), HasSubstr("expected 2 tensors, for img, label"));
}

TEST_F(ReaderOpTest, SeveralReadersOfOneProgramAreIndependent) {
  InitQueue();
  scope_.Var("queue2")->GetMutable<LoDTensorBlockingQueueHolder>()->InitOnce(2, ImageSpecs());
  scope_.Var("source2");
  block().Var("queue2").kind = VarKind::kRaw;
  block().Var("source2").kind = VarKind::kReader;
  Run(AppendCreate());
  Run(block().AppendOp({.type = "create_py_reader",
                        .inputs = {{"blocking_queue", {"queue2"}}},
                        .outputs = {{"Out", {"source2"}}},
                        .attrs = ImageAttrs()}));
  scope_.GetVar("queue2").Get<LoDTensorBlockingQueueHolder>().GetQueue()->Push(ImageBatch(1, 2));
  queue().Close();
  const OpDesc& first = AppendRead("source");
  const OpDesc& second = AppendRead("source2");
  EXPECT_THROW(Run(first), EndOfData);
  Run(second);
  EXPECT_EQ(Tensor("img").data<float>()[0], 2);
}

}  // namespace
}  // namespace headrace
