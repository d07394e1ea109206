#include "framework/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace headrace {
namespace {

Tensor Iota(DDim dims) {
  Tensor tensor;
  float* data = tensor.Resize(std::move(dims)).mutable_data<float>();
  std::iota(data, data + tensor.numel(), 0.0F);
  return tensor;
}

TEST(Tensor, IsUninitialisedUntilItHasMemory) {
  Tensor tensor;
  EXPECT_FALSE(tensor.initialized());
  EXPECT_THROW(tensor.data<float>(), FailedPrecondition);
  EXPECT_THROW(std::as_const(tensor).raw_data(), FailedPrecondition);
  EXPECT_THROW(tensor.raw_mutable_data(), FailedPrecondition);
}

TEST(Tensor, DataOfAnotherTypeIsRefused) { EXPECT_THROW(Iota({2}).data<double>(), TypeMismatch); }

TEST(Tensor, EmptyTensorHasMemory) {
  Tensor tensor = Iota({0, 3});
  EXPECT_TRUE(tensor.initialized());
  EXPECT_NE(tensor.data<float>(), nullptr);
  EXPECT_EQ(tensor.nbytes(), 0U);
}

TEST(Tensor, WritingAgainReusesMemoryOfItsOwn) {
  Tensor tensor = Iota({4, 4});
  const void* before = tensor.raw_data();
  EXPECT_EQ(tensor.Resize({2, 3}).mutable_data<double>(), before);
  EXPECT_EQ(tensor.dtype(), DataType::kFloat64);
}

TEST(Tensor, WritingLeavesMemoryThatIsShared) {
  Tensor tensor = Iota({2});
  const Tensor shared = tensor;
  tensor.mutable_data<float>()[0] = 9.0F;
  EXPECT_EQ(shared.data<float>()[0], 0.0F);
}

TEST(Tensor, WritingLeavesForeignMemory) {
  float memory[2] = {1.0F, 2.0F};
  Tensor tensor(Allocation::Foreign(memory, sizeof(memory), nullptr), DataType::kFloat32, {2});
  tensor.mutable_data<float>()[0] = 9.0F;
  EXPECT_EQ(memory[0], 1.0F);
}

TEST(Tensor, RawMutableDataWritesInPlaceEvenIfShared) {
  Tensor tensor = Iota({2});
  const Tensor shared = tensor;
  static_cast<float*>(tensor.raw_mutable_data())[0] = 9.0F;
  EXPECT_EQ(shared.data<float>()[0], 9.0F);
}

TEST(Tensor, OutgrownMemoryCannotBeReadUntilReplaced) {
  Tensor tensor = Iota({2});
  tensor.Resize({1000});
  EXPECT_THROW(tensor.data<float>(), FailedPrecondition);
  EXPECT_NO_THROW(tensor.mutable_data<float>());
  EXPECT_NO_THROW(tensor.data<float>());
}

TEST(Tensor, ShapesThatDoNotFitIntoMemoryAreRefused) {
  Tensor tensor;
  EXPECT_THROW(tensor.Resize({-1, 2}), InvalidArgument);
  tensor.Resize({INT64_MAX / 2});
  EXPECT_THROW(tensor.mutable_data<double>(), InvalidArgument);
  tensor.Resize({INT64_MAX / 8});
  EXPECT_THROW(tensor.mutable_data<float>(), ResourceExhausted);
}

TEST(Tensor, ViewMustFitIntoItsMemory) {
  const auto memory = Allocation::OnHeap(16);
  EXPECT_NO_THROW(Tensor(memory, DataType::kFloat32, {3}, 4));
  EXPECT_THROW(Tensor(memory, DataType::kFloat32, {4}, 4), InvalidArgument);
  EXPECT_THROW(Tensor(memory, DataType::kFloat32, {0}, 20), InvalidArgument);
  EXPECT_THROW(Tensor(memory, DataType::kFloat32, {INT64_MAX / 2}), InvalidArgument);
  EXPECT_THROW(Tensor(nullptr, DataType::kFloat32, {1}), InvalidArgument);
}

TEST(Tensor, ViewMustBeAligned) {
  EXPECT_THROW(Tensor(Allocation::OnHeap(16), DataType::kFloat32, {1}, 2), InvalidArgument);
}

TEST(Tensor, SliceSharesRows) {
  const Tensor tensor = Iota({3, 2});
  const Tensor slice = tensor.Slice(1, 3);
  EXPECT_EQ(slice.dims(), (DDim{2, 2}));
  EXPECT_EQ(slice.data<float>(), tensor.data<float>() + 2);
}

TEST(Tensor, SliceOfNoRowsIsEmpty) { EXPECT_EQ(Iota({3, 2}).Slice(3, 3).numel(), 0); }

TEST(Tensor, SliceOutsideIsOutOfRange) {
  const Tensor tensor = Iota({3, 2});
  EXPECT_THROW(tensor.Slice(-1, 2), OutOfRange);
  EXPECT_THROW(tensor.Slice(2, 1), OutOfRange);
  EXPECT_THROW(tensor.Slice(0, 4), OutOfRange);
  EXPECT_THROW(Iota({}).Slice(0, 1), OutOfRange);
}

TEST(Tensor, CopyFromHasMemoryOfItsOwn) {
  const Tensor source = Iota({2, 2});
  Tensor copy;
  copy.CopyFrom(source);
  EXPECT_NE(copy.raw_data(), source.raw_data());
  EXPECT_EQ(copy.dims(), source.dims());
  EXPECT_EQ(std::vector<float>(copy.data<float>(), copy.data<float>() + 4), (std::vector<float>{0, 1, 2, 3}));
}

TEST(Tensor, UnsharingCopiesOnlyWhatOthersHold) {
  Tensor tensor = Iota({3});
  const void* own = tensor.raw_data();
  EXPECT_TRUE(tensor.IsSoleHolder());
  tensor.Unshare();
  EXPECT_EQ(tensor.raw_data(), own);
  const Tensor shared = tensor.Slice(1, 3);
  EXPECT_FALSE(tensor.IsSoleHolder());
  tensor.Unshare();
  EXPECT_TRUE(tensor.IsSoleHolder());
  EXPECT_EQ(shared.raw_data(), static_cast<const float*>(own) + 1);
  EXPECT_EQ(tensor.data<float>()[2], 2.0F);
}

TEST(Tensor, UnsharingLeavesForeignMemory) {
  float memory[2] = {1.0F, 2.0F};
  Tensor tensor(Allocation::Foreign(memory, sizeof(memory), nullptr), DataType::kFloat32, {2});
  EXPECT_FALSE(tensor.IsSoleHolder());
  tensor.Unshare();
  EXPECT_NE(tensor.raw_data(), memory);
  EXPECT_EQ(tensor.data<float>()[1], 2.0F);
}

TEST(Tensor, WithoutMemoryThereIsNothingToUnshare) {
  Tensor tensor;
  tensor.Unshare();
  EXPECT_FALSE(tensor.IsSoleHolder());
  EXPECT_FALSE(tensor.initialized());
}

TEST(Tensor, CopyFromItselfLeavesSharedMemory) {
  Tensor tensor = Iota({3});
  const Tensor shared = tensor;
  tensor.CopyFrom(tensor);
  EXPECT_NE(tensor.raw_data(), shared.raw_data());
  EXPECT_EQ(tensor.data<float>()[2], 2.0F);
  EXPECT_EQ(tensor.allocation().use_count(), 1);
}

TEST(Tensor, CopyFromAnOverlappingSliceOfItself) {
  Tensor tensor = Iota({4});
  tensor.CopyFrom(tensor.Slice(1, 3));
  EXPECT_EQ(tensor.dims(), (DDim{2}));
  EXPECT_EQ(tensor.data<float>()[0], 1.0F);
}

TEST(Tensor, CopyFromAnUninitialisedTensorIsRefused) { EXPECT_THROW(Tensor().CopyFrom(Tensor()), FailedPrecondition); }

TEST(Tensor, ClearForgetsEverything) {
  Tensor tensor = Iota({3});
  tensor.Clear();
  EXPECT_FALSE(tensor.initialized());
  EXPECT_TRUE(tensor.dims().empty());
}

// Under the thread sanitizer: a writer that finds itself the only holder must see that the former holder has finished
// reading.
TEST(Tensor, WhatWasMovedFromIsAsNew) {
  const auto expect_new = [](Tensor tensor) {
    EXPECT_FALSE(tensor.initialized());
    EXPECT_EQ(tensor.dtype(), DataType::kFloat32);
    EXPECT_EQ(tensor.dims(), DDim{});
    EXPECT_EQ(tensor.nbytes(), sizeof(float));
    *tensor.mutable_data<float>() = 7;
  };
  Tensor from = Iota({2, 3}).Slice(1, 2);
  Tensor to(std::move(from));
  expect_new(from);  // NOLINT(bugprone-use-after-move): that is what is tested
  EXPECT_EQ(to.dims(), (DDim{1, 3}));
  EXPECT_EQ(to.data<float>()[2], 5);
  from = std::move(to);
  expect_new(to);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(from.numel(), 3);
  EXPECT_EQ(from.data<float>()[0], 3);
}

TEST(Tensor, ReuseAfterAnotherThreadLetGoIsNoRace) {
  for (int i = 0; i < 100; ++i) {
    Tensor tensor = Iota({64});
    std::thread reader([copy = tensor]() mutable {
      volatile float sink = copy.data<float>()[63];
      (void)sink;
      copy.Clear();
    });
    tensor.mutable_data<float>()[63] = -1.0F;
    EXPECT_EQ(tensor.data<float>()[63], -1.0F);
    reader.join();
  }
}

}  // namespace
}  // namespace headrace
