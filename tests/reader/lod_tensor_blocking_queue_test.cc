#include "reader/lod_tensor_blocking_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "framework/errors.h"
#include "framework/scope.h"
#include "reader/py_reader.h"
#include "tests/reader/reader_test_util.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Images and labels.
std::vector<TensorSpec> ImageSpecs() {
  return {{.dims = {-1, 4}, .dtype = DataType::kFloat32, .lod_level = 0},
          {.dims = {-1, 1}, .dtype = DataType::kInt64, .lod_level = 0}};
}

LoDTensorArray ImageBatch(int64_t rows) {
  return {MakeTensor<float>({rows, 4}, 0.5F), MakeTensor<int64_t>({rows, 1}, 7)};
}

std::shared_ptr<LoDTensorBlockingQueue> ImageQueue() {
  return MakeQueue(8, ImageSpecs(), {.name = "feed", .tensor_names = {"img", "label"}});
}

TEST(QueueHolderTest, LivesInAScopeVariable) {
  Scope scope;
  scope.Var("queue")->GetMutable<LoDTensorBlockingQueueHolder>()->InitOnce(3, ScalarSpecs());
  EXPECT_EQ(scope.FindVar("queue")->Get<LoDTensorBlockingQueueHolder>().GetQueue()->Cap(), 3u);
}

TEST(QueueHolderTest, GetQueueBeforeInitOnceIsAFailedPrecondition) {
  const LoDTensorBlockingQueueHolder holder;
  EXPECT_FALSE(holder.initialized());
  EXPECT_THROW(holder.GetQueue(), FailedPrecondition);
}

TEST(QueueHolderTest, ASecondInitOnceNamesTheQueueAndChangesNothing) {
  LoDTensorBlockingQueueHolder holder;
  holder.InitOnce(3, ScalarSpecs(), {.name = "train_queue"});
  const auto queue = holder.GetQueue();
  const auto error = ErrorOf<AlreadyExists>([&] { holder.InitOnce(4, ScalarSpecs(), {.name = "train_queue"}); });
  EXPECT_THAT(error.message(), HasSubstr("'train_queue'"));
  EXPECT_EQ(holder.GetQueue(), queue);
}

TEST(QueueHolderTest, RefusesSenselessDeclarations) {
  LoDTensorBlockingQueueHolder holder;
  EXPECT_THAT(ErrorOf<InvalidArgument>([&] { holder.InitOnce(0, ScalarSpecs(), {.name = "train_queue"}); }).message(),
              HasSubstr("'train_queue'"));
  EXPECT_THROW(holder.InitOnce(1, std::vector<TensorSpec>{}), InvalidArgument);
  EXPECT_THROW(holder.InitOnce(1, std::vector<DDim>{{-2, 3}}), InvalidArgument);
  EXPECT_THROW(holder.InitOnce(1, std::vector<TensorSpec>{{.dims = {1}, .lod_level = -1}}), InvalidArgument);
  EXPECT_THROW(holder.InitOnce(1, ScalarSpecs(), {.tensor_names = {"a", "b"}}), InvalidArgument);
  EXPECT_THROW(holder.Init(1, {.specs = std::vector<TensorSpec>(2, {.dims = {1}}), .checked = {true}}),
               InvalidArgument);
  EXPECT_FALSE(holder.initialized());
}

TEST(LoDTensorBlockingQueueTest, PopsWhatWasPushedWithoutCopying) {
  const auto queue = ImageQueue();
  const LoDTensorArray batch = ImageBatch(3);
  EXPECT_TRUE(queue->Push(batch));
  EXPECT_EQ(queue->Size(), 1u);
  bool success = false;
  const LoDTensorArray popped = queue->Pop(&success);
  EXPECT_TRUE(success);
  ASSERT_EQ(popped.size(), 2u);
  EXPECT_EQ(popped[0].allocation(), batch[0].allocation());
  EXPECT_EQ(popped[1].data<int64_t>()[2], 7);
}

TEST(LoDTensorBlockingQueueTest, TakesBatchesOfAnySizeWhereTheDimIsUnknown) {
  const auto queue = ImageQueue();
  for (const int64_t rows : {1, 32, 5}) EXPECT_TRUE(queue->Push(ImageBatch(rows)));
  for (const int64_t rows : {1, 32, 5}) EXPECT_EQ(queue->Pop()[0].dims(), (DDim{rows, 4}));
}

TEST(LoDTensorBlockingQueueTest, ATensorThatHasOutgrownItsMemoryIsRefusedAtOnce) {
  const auto queue = ImageQueue();
  LoDTensorArray batch = ImageBatch(2);
  batch[0].Resize({3, 4});
  EXPECT_THAT([&] { queue->Push(batch); },
              ::testing::ThrowsMessage<InvalidArgument>(HasSubstr("variable 'img': the tensor was resized to [3, 4]")));
}

TEST(LoDTensorBlockingQueueTest, PopOfAClosedAndDrainedQueueIsNoSuccess) {
  const auto queue = ImageQueue();
  queue->Push(ImageBatch(1));
  queue->Close();
  bool success = false;
  EXPECT_EQ(queue->Pop(&success).size(), 2u);
  EXPECT_TRUE(success);
  EXPECT_TRUE(queue->Pop(&success).empty());
  EXPECT_FALSE(success);
  EXPECT_TRUE(queue->Pop().empty());
}

TEST(LoDTensorBlockingQueueTest, PushAfterCloseIsFalse) {
  const auto queue = ImageQueue();
  queue->Close();
  EXPECT_TRUE(queue->IsClosed());
  EXPECT_FALSE(queue->Push(ImageBatch(1)));
}

TEST(LoDTensorBlockingQueueTest, PushOfAnOldEpochIsFalse) {
  const auto queue = ImageQueue();
  const uint64_t epoch = queue->epoch();
  queue->ReOpen();
  EXPECT_FALSE(queue->Push(ImageBatch(1), epoch));
  EXPECT_FALSE(queue->Close(epoch));
  EXPECT_TRUE(queue->Push(ImageBatch(1), queue->epoch()));
}

TEST(LoDTensorBlockingQueueTest, PopForAndPushForGiveUp) {
  const auto queue = MakeQueue(1);
  LoDTensorArray batch;
  EXPECT_EQ(queue->PopFor(&batch, std::chrono::milliseconds(1)), ReceiveResult::kTimedOut);
  queue->Push(MakeBatch(1));
  batch = MakeBatch(2);
  EXPECT_EQ(queue->PushFor(std::move(batch), std::chrono::milliseconds(1)), SendResult::kTimedOut);
  EXPECT_EQ(ValueOf(batch), 2);  // NOLINT(bugprone-use-after-move): untouched unless taken
  EXPECT_EQ(queue->PopFor(&batch, std::chrono::milliseconds(1)), ReceiveResult::kItem);
  EXPECT_EQ(ValueOf(batch), 1);
}

TEST(LoDTensorBlockingQueueTest, PopThrowsTheOriginalErrorOfAFailedQueue) {
  const auto queue = MakeQueue(2);
  queue->Push(MakeBatch(1));
  queue->Fail(std::make_exception_ptr(std::domain_error("sample 3 is bad")));
  EXPECT_EQ(ValueOf(queue->Pop()), 1);
  EXPECT_STREQ(ErrorOf<std::domain_error>([&] { queue->Pop(); }).what(), "sample 3 is bad");
}

TEST(LoDTensorBlockingQueueTest, PopOfAKilledQueueSaysSo) {
  const auto queue = ImageQueue();
  queue->Push(ImageBatch(1));
  queue->Kill();
  EXPECT_THAT(ErrorOf<QueueClosed>([&] { queue->Pop(); }).message(), HasSubstr("'feed' was killed"));
  EXPECT_FALSE(queue->Push(ImageBatch(1)));
}

TEST(LoDTensorBlockingQueueTest, AForkedChildMayDropAQueueOnWhichThreadsOfItsParentWait) {
  SKIP_WITHOUT_FORK();
  auto queue = MakeQueue(1);
  std::jthread consumer([&] { queue->Pop(); });
  GiveOthersTime();
  for (int i = 0; i < 20; ++i) {  // the waiter sleeps, is on its way to, or holds the lock
    ASSERT_TRUE(EndsInAForkedChild([&] { queue.reset(); }));
  }
  queue->Close();
}

TEST(LoDTensorBlockingQueueTest, SpeedTestModePopsWithoutRemoving) {
  const auto queue = MakeQueue(1, ScalarSpecs(), {.speed_test_mode = true});
  queue->Push(MakeBatch(3));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ValueOf(queue->Pop()), 3);
  EXPECT_EQ(queue->Size(), 1u);
}

TEST(QueueCheckTest, ABadShapeNamesVariableExpectedActualAndBatch) {
  const auto queue = ImageQueue();
  queue->Push(ImageBatch(1));
  LoDTensorArray batch = ImageBatch(2);
  batch[0] = MakeTensor<float>({2, 5}, 0);
  const auto error = ErrorOf<InvalidArgument>([&] { queue->Push(batch); });
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("batch 1"), HasSubstr("'img'"), HasSubstr("[-1, 4]"), HasSubstr("[2, 5]")));
  EXPECT_EQ(error.variable(), "img");
}

TEST(QueueCheckTest, ABadRankIsRefused) {
  const auto queue = ImageQueue();
  LoDTensorArray batch = ImageBatch(2);
  batch[1] = MakeTensor<int64_t>({2}, 0);
  const auto error = ErrorOf<InvalidArgument>([&] { queue->Push(batch); });
  EXPECT_THAT(error.message(), AllOf(HasSubstr("'label'"), HasSubstr("[-1, 1]"), HasSubstr("[2]")));
}

TEST(QueueCheckTest, ABadDtypeIsATypeMismatch) {
  const auto queue = ImageQueue();
  LoDTensorArray batch = ImageBatch(2);
  batch[1] = MakeTensor<int32_t>({2, 1}, 0);
  const auto error = ErrorOf<TypeMismatch>([&] { queue->Push(batch); });
  EXPECT_THAT(error.message(), AllOf(HasSubstr("'label'"), HasSubstr("int64"), HasSubstr("int32")));
}

TEST(QueueCheckTest, ABadCountIsRefused) {
  const auto queue = ImageQueue();
  LoDTensorArray batch = ImageBatch(2);
  batch.pop_back();
  EXPECT_THAT(ErrorOf<InvalidArgument>([&] { queue->Push(batch); }).message(),
              HasSubstr("expected 2 tensors, for img, label, got 1"));
  EXPECT_THROW(queue->Push(LoDTensorArray{}), InvalidArgument);
}

TEST(QueueCheckTest, ATensorWithoutDataIsRefused) {
  const auto queue = MakeQueue(1);
  EXPECT_THAT(ErrorOf<InvalidArgument>([&] { queue->Push(LoDTensorArray(1)); }).message(), HasSubstr("tensor 0"));
}

TEST(QueueCheckTest, ABadLoDDepthIsRefused) {
  const auto queue = MakeQueue(2, {{.dims = {-1}, .dtype = DataType::kFloat32, .lod_level = 1}});
  EXPECT_TRUE(queue->Push({MakeTensor<float>({5}, 0, {{0, 2, 5}})}));
  const auto error = ErrorOf<InvalidArgument>([&] { queue->Push({MakeTensor<float>({5}, 0)}); });
  EXPECT_THAT(error.message(), HasSubstr("expected 1 levels of LoD, got 0"));
}

TEST(QueueCheckTest, ALoDThatDoesNotFitItsRowsIsRefused) {
  const auto queue = MakeQueue(2, {{.dims = {-1}, .dtype = DataType::kFloat32, .lod_level = 1}});
  EXPECT_THROW(queue->Push({MakeTensor<float>({5}, 0, {{0, 2, 4}})}), InvalidArgument);
}

TEST(QueueCheckTest, AQueueDeclaredByDimsTakesAnyDtype) {
  LoDTensorBlockingQueueHolder holder;
  holder.InitOnce(4, std::vector<DDim>{{-1, 2}});
  EXPECT_TRUE(holder.GetQueue()->Push({MakeTensor<double>({3, 2}, 0)}));
  EXPECT_TRUE(holder.GetQueue()->Push({MakeTensor<int8_t>({1, 2}, 0)}));
  EXPECT_THROW(holder.GetQueue()->Push({MakeTensor<int8_t>({1, 3}, 0)}), InvalidArgument);
}

TEST(QueueCheckTest, AQueueWithoutADeclarationTakesAnyTensorsThatAreSound) {
  LoDTensorBlockingQueueHolder holder;
  holder.InitOnce(4, QueueOptions{.name = "queue", .tensor_names = {"img"}});
  const auto queue = holder.GetQueue();
  EXPECT_TRUE(queue->Push(ImageBatch(2)));
  EXPECT_TRUE(queue->Push({MakeTensor<double>({5}, 0, {{0, 2, 5}})}));
  EXPECT_THROW(queue->Push({MakeTensor<double>({5}, 0, {{0, 2, 4}})}), InvalidArgument);
  EXPECT_THROW(queue->Push(LoDTensorArray(1)), InvalidArgument);
  EXPECT_THROW(queue->Push(LoDTensorArray{}), InvalidArgument);
  EXPECT_EQ(queue->Size(), 2u);
  EXPECT_THROW(PyReader{queue}, InvalidArgument);
}

TEST(QueueCheckTest, ARefusedBatchLeavesTheQueueAsItWas) {
  const auto queue = ImageQueue();
  EXPECT_THROW(queue->Push({MakeTensor<float>({1}, 0)}), InvalidArgument);
  EXPECT_EQ(queue->Size(), 0u);
  EXPECT_FALSE(queue->IsClosed());
  EXPECT_TRUE(queue->Push(ImageBatch(1)));
}

}  // namespace
}  // namespace headrace
