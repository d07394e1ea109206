#include "reader/shared_memory/arena/batch_layout.h"

#include <atomic>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "tests/reader/shared_memory/transport_test_util.h"

namespace headrace::shared_memory {
namespace {

constexpr size_t kSlotBytes = size_t{1} << 20;

LeafSpec Array(uint32_t item_bytes, const DDim& dims) { return {LeafKind::kArray, 0, item_bytes, dims}; }

TEST(BatchLayoutTest, LeavesAreAlignedAndDoNotOverlap) {
  const BatchLayout layout({Array(1, {3}), Array(8, {3, 5}), {LeafKind::kObject, -1, 0, {3}}, Array(4, {3})}, "",
                           kDataOffset + 24, kSlotBytes);
  uint64_t end = kDataOffset + 24;
  const std::vector<uint64_t> bytes = {3, 120, 3 * sizeof(SideRecord), 12};
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(layout.leaf(i).offset % kLeafAlignment, 0U);
    EXPECT_GE(layout.leaf(i).offset, end);
    EXPECT_LT(layout.leaf(i).offset, end + kLeafAlignment);
    end = layout.leaf(i).offset + bytes[i];
  }
}

TEST(BatchLayoutTest, ViewReadsWhatWasWritten) {
  const BatchLayout layout({Array(8, {2, 3, 4}), Array(2, {2})}, "tree of two", kDataOffset, kSlotBytes);
  std::vector<uint64_t> slot(kDataOffset / 8);
  auto* base = reinterpret_cast<std::byte*>(slot.data());
  std::memcpy(base + kLayoutOffset, layout.bytes().data(), layout.bytes().size());
  const LayoutView view(base);
  ASSERT_EQ(view.leaf_count(), 2U);
  EXPECT_EQ(view.tree(), "tree of two");
  EXPECT_EQ(view.leaf(0).ndim, 3U);
  EXPECT_EQ(view.leaf(0).dims[2], 4U);
  EXPECT_EQ(view.leaf(1).item_bytes, 2U);
  EXPECT_EQ(view.end(), view.leaf(1).offset + 4);
}

TEST(BatchLayoutTest, BatchWithoutLeavesEndsWhereItBegins) {
  const BatchLayout layout({}, "nothing", kDataOffset + 8, kSlotBytes);
  EXPECT_EQ(layout.leaf_count(), 0U);
  EXPECT_EQ(layout.end(), kDataOffset + 8);
}

TEST(BatchLayoutTest, LeafThatJustFitsIsTaken) {
  EXPECT_NO_THROW(BatchLayout({Array(1, {kSlotBytes - kDataOffset})}, "", kDataOffset, kSlotBytes));
  EXPECT_THROW(BatchLayout({Array(1, {kSlotBytes - kDataOffset + 1})}, "", kDataOffset, kSlotBytes), ResourceExhausted);
  EXPECT_THROW(BatchLayout({Array(1, {kSlotBytes - kDataOffset}), Array(1, {1})}, "", kDataOffset, kSlotBytes),
               ResourceExhausted);
}

TEST(BatchLayoutTest, SizesThatOverflowAreRefused) {
  // 2^62 elements of 4 bytes, and of 8: 2^64 and 2^65 bytes.
  EXPECT_THROW(BatchLayout({Array(4, {int64_t{1} << 31, int64_t{1} << 31})}, "", kDataOffset, kSlotBytes),
               ResourceExhausted);
  EXPECT_THROW(BatchLayout({Array(8, {int64_t{1} << 31, int64_t{1} << 31})}, "", kDataOffset, kSlotBytes),
               ResourceExhausted);
  // 2^64 - 2 bytes: past the end of 64 bits once the offset is added.
  EXPECT_THROW(BatchLayout({Array(2, {std::numeric_limits<int64_t>::max()})}, "", kDataOffset, kSlotBytes),
               ResourceExhausted);
}

TEST(BatchLayoutTest, TooManyDimensionsAreRefused) {
  EXPECT_NO_THROW(BatchLayout({Array(1, DDim(kMaxDims, 1))}, "", kDataOffset, kSlotBytes));
  EXPECT_THROW(BatchLayout({Array(1, DDim(kMaxDims + 1, 1))}, "", kDataOffset, kSlotBytes), InvalidArgument);
}

TEST(BatchLayoutTest, DescriptionLargerThanItsRoomIsRefused) {
  const std::string tree(kDataOffset - kLayoutOffset - sizeof(LayoutHeader), 'x');
  EXPECT_NO_THROW(BatchLayout({}, tree, kDataOffset, kSlotBytes));
  EXPECT_THROW(BatchLayout({}, tree + "x", kDataOffset, kSlotBytes), ResourceExhausted);
}

// While another producer writes the layout, which may take for ever if it is killed meanwhile.
TEST(PublishLayoutTest, TryDoesNotWait) {
  const auto scheduler = BatchScheduler::Create(SmallOptions(8, 4));
  scheduler->StartEpoch(0);
  BatchProducer producer(scheduler->arena(), 0, scheduler->completion_fd());
  const Claim claim = *producer.TryClaim();
  std::atomic<uint32_t>& state = scheduler->arena()->slot(claim.slot).layout_state;
  const BatchLayout layout = SampleLayout(producer, claim, 4);
  state.store(LayoutWriting(1));
  EXPECT_EQ(producer.TryPublishLayout(claim, layout.bytes()), std::nullopt);
  state.store(kLayoutEmpty);
  EXPECT_EQ(producer.TryPublishLayout(claim, layout.bytes()), true);
  EXPECT_EQ(producer.TryPublishLayout(claim, SampleLayout(producer, claim, 5).bytes()), false);
}

}  // namespace
}  // namespace headrace::shared_memory
