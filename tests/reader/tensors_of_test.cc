#include <cstring>
#include <memory>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "reader/queue_feeder.h"
#include "reader/shared_memory/arena/batch_layout.h"

namespace headrace {
namespace {

using shared_memory::BatchLayout;
using shared_memory::kDataOffset;
using shared_memory::LeafKind;
using shared_memory::LeafSpec;
using shared_memory::ReadyBatch;

constexpr size_t kSlotBytes = kDataOffset + 4096;

LeafSpec Values(int64_t rows) { return {LeafKind::kArray, static_cast<int32_t>(DataType::kFloat32), 4, {rows, 2}}; }
LeafSpec Offsets(int64_t count) { return {LeafKind::kOffsets, static_cast<int32_t>(DataType::kInt64), 8, {count}}; }

// A batch of leaves; those that are offsets have those given.
ReadyBatch Batch(const std::vector<LeafSpec>& leaves, const std::vector<int64_t>& offsets) {
  ReadyBatch batch;
  batch.memory = Allocation::OnHeap(kSlotBytes);
  auto* slot = static_cast<std::byte*>(batch.memory->data());
  std::memset(slot, 0, kSlotBytes);
  batch.slot = slot;
  batch.layout_copy = std::make_shared<const BatchLayout>(leaves, "", kDataOffset, kSlotBytes);
  const BatchLayout& layout = batch.layout();
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].kind == LeafKind::kOffsets && !offsets.empty()) {
      std::memcpy(slot + layout.leaf(i).offset, offsets.data(), offsets.size() * sizeof(int64_t));
    }
  }
  return batch;
}

TEST(TensorsOfTest, OffsetsAreTheLodOfTheTensorBeforeThem) {
  const LoDTensorArray tensors = TensorsOf(Batch({Values(3), Values(5), Offsets(4), Values(2)}, {0, 2, 2, 5}));
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_TRUE(tensors[0].lod().empty());
  EXPECT_EQ(tensors[1].lod(), LoD({{0, 2, 2, 5}}));
  EXPECT_EQ(tensors[1].dims(), DDim({5, 2}));
  EXPECT_TRUE(tensors[2].lod().empty());
}

TEST(TensorsOfTest, CopiesOfTheLastSlotsHaveTheirLod) {
  ReadyBatch batch = Batch({Values(5), Offsets(2)}, {0, 5});
  batch.last_slots = true;
  const LoDTensorArray tensors = TensorsOf(batch);
  EXPECT_NE(tensors[0].allocation(), batch.memory);
  EXPECT_EQ(tensors[0].lod(), LoD({{0, 5}}));
}

TEST(TensorsOfTest, OffsetsOfOtherValuesAreRefused) {
  EXPECT_THROW(TensorsOf(Batch({Values(5), Offsets(2)}, {0, 4})), InvalidArgument);
  EXPECT_THROW(TensorsOf(Batch({Values(5), Offsets(3)}, {0, 7, 5})), InvalidArgument);
  EXPECT_THROW(TensorsOf(Batch({Values(5), Offsets(2)}, {1, 5})), InvalidArgument);
  EXPECT_THROW(TensorsOf(Batch({Values(5), Offsets(0)}, {})), InvalidArgument);
}

TEST(TensorsOfTest, OffsetsOfNothingAreRefused) {
  EXPECT_THROW(TensorsOf(Batch({Offsets(2), Values(5)}, {0, 5})), TypeMismatch);
}

LoDTensor Floats(const DDim& dims) {
  LoDTensor tensor;
  tensor.Resize(dims);
  tensor.mutable_data<float>();
  return tensor;
}

// The shape that rows get where `declared` is what the queue takes; their elements must stay where they are.
DDim Shaped(const DDim& declared, const DDim& dims) {
  LoDTensorArray batch{Floats(dims)};
  const float* data = batch[0].data<float>();
  ShapeRowsAsDeclared({.specs = {{declared, DataType::kFloat32}}}, &batch);
  EXPECT_EQ(batch[0].data<float>(), data);
  return batch[0].dims();
}

TEST(ShapeRowsAsDeclaredTest, DimensionsOfOneComeAndGo) {
  EXPECT_EQ(Shaped({-1, 1}, {3}), DDim({3, 1}));
  EXPECT_EQ(Shaped({3, 1}, {3}), DDim({3, 1}));
  EXPECT_EQ(Shaped({-1}, {3, 1}), DDim({3}));
  EXPECT_EQ(Shaped({-1, 1, 4, 5}, {3, 4, 5}), DDim({3, 1, 4, 5}));
  EXPECT_EQ(Shaped({-1, 4, 5}, {3, 1, 4, 1, 5}), DDim({3, 4, 5}));
}

TEST(ShapeRowsAsDeclaredTest, WhateverElseDiffersStays) {
  EXPECT_EQ(Shaped({-1, 5, 4}, {3, 4, 5}), DDim({3, 4, 5}));
  EXPECT_EQ(Shaped({-1, 20}, {3, 4, 5}), DDim({3, 4, 5}));
  EXPECT_EQ(Shaped({-1, 1}, {3, 2}), DDim({3, 2}));
  EXPECT_EQ(Shaped({-1, -1, 1}, {3, 4}), DDim({3, 4}));  // which of the two is any extent, and which 1?
  EXPECT_EQ(Shaped({}, {3, 1}), DDim({3, 1}));
  EXPECT_EQ(Shaped({-1, 1}, {}), DDim({}));
}

TEST(ShapeRowsAsDeclaredTest, WhatFitsStays) {
  EXPECT_EQ(Shaped({-1, -1}, {3, 1}), DDim({3, 1}));
  EXPECT_EQ(Shaped({-1, 1}, {3, 1}), DDim({3, 1}));
}

TEST(ShapeRowsAsDeclaredTest, PackedRowsKeepTheirLod) {
  LoDTensorArray batch{Floats({5})};
  batch[0].set_lod({{0, 2, 5}});
  ShapeRowsAsDeclared({.specs = {{{-1, 1}, DataType::kFloat32, 1}}}, &batch);
  EXPECT_EQ(batch[0].dims(), DDim({5, 1}));
  EXPECT_EQ(batch[0].lod(), LoD({{0, 2, 5}}));
}

TEST(ShapeRowsAsDeclaredTest, ABatchOfAnotherLengthIsLeftToTheCheck) {
  LoDTensorArray batch{Floats({2}), Floats({2})};
  ShapeRowsAsDeclared({.specs = {{{-1, 1}, DataType::kFloat32}}}, &batch);
  EXPECT_EQ(batch[0].dims(), DDim({2, 1}));
  EXPECT_EQ(batch[1].dims(), DDim({2}));
}

TEST(ShapeRowsAsDeclaredTest, WhatIsNotCheckedIsShapedToo) {
  LoDTensorArray batch{Floats({2})};
  ShapeRowsAsDeclared({.specs = {{{-1, 1}, DataType::kFloat32}}, .checked = {false}}, &batch);
  EXPECT_EQ(batch[0].dims(), DDim({2, 1}));
}

}  // namespace
}  // namespace headrace
