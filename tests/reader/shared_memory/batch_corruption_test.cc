// Workers gone wild: whatever they write to the arena, the scheduler neither crashes nor hangs nor delivers a batch
// that contradicts its own facts.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "reader/shared_memory/waiting/futex.h"
#include "transport_test_util.h"

namespace headrace::shared_memory {
namespace {

class CorruptionTest : public ::testing::Test {
 protected:
  void Begin(const SchedulerOptions& options) {
    scheduler_ = BatchScheduler::Create(options);
    scheduler_->StartEpoch(0);
  }
  BatchProducer Producer(uint32_t id) { return {scheduler_->arena(), id, scheduler_->completion_fd()}; }
  // The slot of the batch that the consumer waits for.
  uint32_t OldestSlot() const {
    const ControlBlock& control = scheduler_->arena()->control();
    return control.ring[control.oldest.load() % kMaxSlots].load();
  }
  SlotHeader& Oldest() const { return scheduler_->arena()->slot(OldestSlot()); }
  LayoutHeader& Layout() const {
    return *reinterpret_cast<LayoutHeader*>(scheduler_->arena()->slot_data(OldestSlot()) + kLayoutOffset);
  }
  LeafRecord& Leaf() const { return *reinterpret_cast<LeafRecord*>(&Layout() + 1); }
  void ExpectCorrupt(const std::string& what = "shared memory of batch") {
    ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kBatch);
    const ReadyBatch batch = scheduler_->Take();
    EXPECT_EQ(batch.problem, ProblemKind::kCorrupt);
    EXPECT_NE(batch.problem_message.find(what), std::string::npos) << batch.problem_message;
    EXPECT_EQ(batch.memory, nullptr);
  }

  std::shared_ptr<BatchScheduler> scheduler_;
};

SchedulerOptions Hasty(uint64_t length, uint64_t batch_size) {
  SchedulerOptions options = SmallOptions(length, batch_size);
  options.cross_epochs = false;
  options.arena.recheck_ms = 5;
  return options;
}

// One batch of a stream at a time, of 4 rows.
SchedulerOptions OneStream() {
  SchedulerOptions options = Hasty(0, 4);
  options.arena.order = IndexOrder::kStream;
  options.prefetch = 1;
  return options;
}

TEST_F(CorruptionTest, ABatchWhoseFactsChangedFailsAndTheNextOnesAreRight) {
  const std::vector<std::function<void(BatchFacts&)>> changes = {
      [](BatchFacts& facts) { facts.rows = 0; },        [](BatchFacts& facts) { facts.chunks = 0; },
      [](BatchFacts& facts) { facts.chunks = ~0U; },    [](BatchFacts& facts) { facts.chunk_rows = 0; },
      [](BatchFacts& facts) { facts.epoch += 1; },      [](BatchFacts& facts) { facts.first_position += 1; },
      [](BatchFacts& facts) { facts.stream = 7; },      [](BatchFacts& facts) { facts.kind = ClaimKind::kStream; },
      [](BatchFacts& facts) { facts.excluded = 1000; }, [](BatchFacts& facts) { facts.indices_bytes = 1 << 30; },
      [](BatchFacts& facts) { facts.revision += 1; },
  };
  for (const auto& change : changes) {
    for (const bool made : {false, true}) {
      Begin(Hasty(8, 4));
      BatchProducer producer = Producer(0);
      for (int i = 0; made && i < 4; ++i) {
        MakeRows(producer, *producer.TryClaim());
      }
      change(Oldest().facts);
      ExpectCorrupt();
      MakeAll(producer);
      ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kBatch);
      EXPECT_TRUE(HasSamples(scheduler_->Take(), Range(4, 4)));
      EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kEndOfEpoch);
    }
  }
}

TEST_F(CorruptionTest, AProducerHasNoIndexForAPositionBeyondTheDataset) {
  for (const IndexOrder order : {IndexOrder::kSequential, IndexOrder::kShuffled}) {
    SchedulerOptions options = Hasty(8, 4);
    options.arena.order = order;
    Begin(options);
    Oldest().facts.first_position = 8;
    BatchProducer producer = Producer(0);
    const std::optional<Claim> claim = producer.TryClaim();
    ASSERT_TRUE(claim.has_value());
    EXPECT_THROW(producer.IndexAt(*claim, claim->begin), DataLoss);
    producer.Fail(*claim, claim->begin, ProblemKind::kFailed, "lost");
    ExpectCorrupt();
  }
}

TEST_F(CorruptionTest, ALayoutThatContradictsItselfIsRefused) {
  const std::vector<std::function<void(LayoutHeader&, LeafRecord&)>> changes = {
      [](LayoutHeader& header, LeafRecord&) { header.tree_bytes = 0x7FFFFFFF; },
      [](LayoutHeader& header, LeafRecord&) { header.leaf_count = ~0U; },
      [](LayoutHeader& header, LeafRecord&) { header.leaf_count = 0; },
      [](LayoutHeader& header, LeafRecord&) { header.end += 1; },
      [](LayoutHeader&, LeafRecord& leaf) { leaf.ndim = 1; },
      [](LayoutHeader&, LeafRecord& leaf) { leaf.ndim = 1 << 20; },
      [](LayoutHeader&, LeafRecord& leaf) { leaf.offset += kLeafAlignment; },
      [](LayoutHeader&, LeafRecord& leaf) { leaf.offset = uint64_t{1} << 62; },
      [](LayoutHeader&, LeafRecord& leaf) { leaf.dims[0] = uint64_t{1} << 61; },
      [](LayoutHeader&, LeafRecord& leaf) { leaf.dims[0] = 3; },
      [](LayoutHeader&, LeafRecord& leaf) { leaf.dtype = 1; },
      [](LayoutHeader&, LeafRecord& leaf) { leaf.kind = LeafKind::kObject; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    for (const bool with_checksum : {false, true}) {
      if (with_checksum && (i < 3 || i == 10)) {
        continue;  // no checksum there; any dtype is a producer's right
      }
      Begin(Hasty(4, 4));
      BatchProducer producer = Producer(0);
      MakeAll(producer);
      changes[i](Layout(), Leaf());
      if (with_checksum) {  // as a producer would that means it
        Layout().checksum = Checksum(&Leaf(), sizeof(LeafRecord) + Layout().tree_bytes, Layout().end);
      }
      ExpectCorrupt();
    }
  }
}

TEST_F(CorruptionTest, ABatchWithoutALayoutIsRefused) {
  Begin(Hasty(8, 4));
  BatchProducer producer = Producer(0);
  while (const std::optional<Claim> claim = producer.TryClaim()) {
    producer.Complete(*claim);
  }
  ExpectCorrupt();
}

TEST_F(CorruptionTest, AProducerDoesNotWaitForALayoutThatNobodyWrites) {
  for (const uint32_t state : {3U, 0x80000000U, LayoutWriting(kMaxProducers)}) {
    Begin(Hasty(4, 4));
    BatchProducer producer = Producer(0);
    const Claim claim = *producer.TryClaim();
    Oldest().layout_state.store(state);
    EXPECT_THROW(MakeRows(producer, claim), DataLoss);
  }
}

TEST_F(CorruptionTest, MessagesOutsideTheSlotAreRefused) {
  for (const auto& change : std::vector<std::function<void(ChunkProblem&)>>{
           [](ChunkProblem& problem) { problem.offset = uint64_t{1} << 60; },
           [](ChunkProblem& problem) { problem.bytes = uint64_t{1} << 40; },
           [](ChunkProblem& problem) { problem.row = 9; },
           [](ChunkProblem& problem) { problem.kind = ProblemKind::kKilled; }}) {
    for (const bool with_checksum : {false, true}) {
      SchedulerOptions options = Hasty(4, 4);
      options.collation = Collation::kWhole;
      Begin(options);
      BatchProducer producer = Producer(0);
      producer.Fail(*producer.TryClaim(), 1, ProblemKind::kFailed, "why");
      change(Oldest().problems[0]);
      if (with_checksum) {
        Oldest().problems[0].checksum = ChecksumOf(Oldest().problems[0], Oldest().sequence.load());
      }
      ExpectCorrupt();
    }
  }
}

TEST_F(CorruptionTest, WhatIsSaidOfABatchIsChecked) {
  for (const auto& change : std::vector<std::function<void(BatchEnd&)>>{
           [](BatchEnd& end) { end.rows = 1000; }, [](BatchEnd& end) { end.stream_end = static_cast<StreamEnd>(77); },
           [](BatchEnd& end) { end.attachment.offset = uint64_t{1} << 62; },
           [](BatchEnd& end) { end.attachment.bytes = ~uint64_t{0}; },
           [](BatchEnd& end) { end.kept_bytes = uint64_t{1} << 50; }}) {
    for (const bool with_checksum : {false, true}) {
      Begin(OneStream());
      BatchProducer producer = Producer(0);
      const Claim claim = *producer.TryClaim();
      producer.PublishLayout(claim, SampleLayout(producer, claim, 4).bytes());
      producer.Attach(claim, "state");
      producer.Complete(claim);
      change(Oldest().end);
      if (with_checksum) {
        Oldest().end.checksum = ChecksumOf(Oldest().end, Oldest().sequence.load());
      }
      ExpectCorrupt();
    }
  }
  // An end that no producer has said is not believed: the stream goes on.
  Begin(OneStream());
  BatchProducer producer = Producer(0);
  MakeRows(producer, *producer.TryClaim());
  Oldest().end.stream_end = StreamEnd::kAfter;
  ExpectCorrupt();
  EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kTimedOut);
}

// A producer keeps to itself what it says of a batch until the batch is done.
TEST_F(CorruptionTest, WhatIsSaidOfABatchIsNotReadBack) {
  Begin(OneStream());
  BatchProducer producer = Producer(0);
  const Claim claim = *producer.TryClaim();
  producer.PublishLayout(claim, SampleLayout(producer, claim, 4).bytes());
  for (uint32_t row = 0; row < 4; ++row) {
    WriteRow(producer, claim, row, 4);
  }
  producer.SetStreamEnd(claim, StreamEnd::kGoesOn);
  Oldest().end.stream_end = StreamEnd::kAfter;
  Oldest().end.rows = 1;
  producer.Complete(claim);
  ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler_->Take(), Range(0, 4)));
  EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kTimedOut) << "the stream goes on";
}

TEST_F(CorruptionTest, IndicesThatWereWrittenOverAreNoticed) {
  SchedulerOptions options = Hasty(0, 4);
  options.arena.order = IndexOrder::kExplicit;
  Begin(options);
  const std::vector<uint64_t> indices = {5, 3, 8, 1};
  for (int i = 0; i < 2; ++i) {
    scheduler_->Supply(4, {reinterpret_cast<const char*>(indices.data()), 4 * sizeof(uint64_t)}, false);
  }
  reinterpret_cast<uint64_t*>(scheduler_->arena()->slot_data(OldestSlot()) + kDataOffset)[2] ^= 4;
  BatchProducer producer = Producer(0);
  MakeAll(producer);
  ExpectCorrupt();
  ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler_->Take(), indices));
}

// Producers would lay what they have beside the leaves over each other's.
TEST_F(CorruptionTest, ACountOfSideDataThatWasSetBackIsNoticed) {
  for (const Collation collation : {Collation::kNone, Collation::kSplit}) {
    SchedulerOptions options = Hasty(4, 2);
    options.collation = collation;
    Begin(options);
    BatchProducer producer = Producer(0);
    for (int row = 0; row < 2; ++row) {
      const Claim claim = *producer.TryClaim();
      if (claim.kind == ClaimKind::kItems) {
        producer.Keep(claim, claim.begin, std::to_string(row), {});
      } else {
        const BatchLayout layout({{LeafKind::kObject, -1, 0, {2}}}, "", producer.DataOffset(claim),
                                 producer.LeavesLimit(claim));
        ASSERT_TRUE(producer.PublishLayout(claim, layout.bytes()));
        const SideRecord place = producer.AllocateSide(claim, 10, layout.end());
        std::memcpy(producer.Data(claim) + layout.leaf(0).offset + claim.begin * sizeof(place), &place, sizeof(place));
      }
      producer.Complete(claim);
      if (row == 0) {
        Oldest().side_bytes.fetch_sub(64);
      }
    }
    if (collation == Collation::kNone) {
      ExpectCorrupt();
    } else {
      const Claim claim = *producer.TryClaim();
      ASSERT_EQ(claim.kind, ClaimKind::kCollate);
      EXPECT_THROW(producer.Kept(claim), DataLoss);
    }
  }
}

TEST_F(CorruptionTest, ObjectsOutsideTheSlotAreRefused) {
  for (const auto& change : std::vector<std::function<void(SideRecord&, size_t)>>{
           [](SideRecord& place, size_t) { place.offset = 0; },  // the header
           [](SideRecord& place, size_t) { place.offset = kDataOffset - 1; },
           [](SideRecord& place, size_t slot_bytes) { place.offset = slot_bytes + 1; },
           [](SideRecord& place, size_t) { place.offset = ~uint64_t{0}; },
           [](SideRecord& place, size_t slot_bytes) { place.bytes = slot_bytes - place.offset + 1; },
           [](SideRecord& place, size_t) { place.bytes = ~uint64_t{0}; }}) {
    Begin(Hasty(1, 1));
    BatchProducer producer = Producer(0);
    const Claim claim = *producer.TryClaim();
    const BatchLayout layout({{LeafKind::kObject, -1, 0, {1}}}, "", producer.DataOffset(claim),
                             producer.LeavesLimit(claim));
    ASSERT_TRUE(producer.PublishLayout(claim, layout.bytes()));
    SideRecord place = producer.AllocateSide(claim, 10, layout.end());
    change(place, scheduler_->arena()->slot_bytes());
    std::memcpy(producer.Data(claim) + layout.leaf(0).offset, &place, sizeof(place));
    producer.Complete(claim);
    ExpectCorrupt("an object of " + std::to_string(place.bytes) + " bytes");
  }
}

TEST_F(CorruptionTest, OffsetsThatAreNoneAreRefused) {
  struct Case {
    LeafSpec leaf;
    std::vector<int64_t> offsets;
    const char* what;  // nullptr: nothing is wrong
  };
  const LeafSpec three{LeafKind::kOffsets, -1, sizeof(int64_t), {3}};
  constexpr const char* kForm = "offsets of rows are not one-dimensional, or not int64";
  for (const auto& [leaf, offsets, what] : std::vector<Case>{
           {three, {0, 2, 6}, nullptr},
           {three, {0, 0, 6}, nullptr},
           {three, {1, 2, 6}, "offset 0 of its rows is 1"},
           {three, {0, -1, 6}, "offset 1 of its rows is -1 after 0"},
           {three, {0, 7, 6}, "offset 2 of its rows is 6 after 7"},
           {three, {0, 2, 5}, "end at 5 instead of 6"},
           {three, {0, 2, int64_t{1} << 62}, "instead of 6"},
           {{LeafKind::kOffsets, -1, sizeof(int32_t), {3}}, {0, 2, 6}, kForm},
           {{LeafKind::kOffsets, -1, sizeof(int64_t), {1, 3}}, {0, 2, 6}, kForm},
           {{LeafKind::kOffsets, -1, sizeof(int64_t), {0}}, {}, kForm},
       }) {
    SchedulerOptions options = Hasty(2, 2);
    options.collation = Collation::kWhole;
    Begin(options);
    BatchProducer producer = Producer(0);
    const Claim claim = *producer.TryClaim();
    const BatchLayout layout({{LeafKind::kArray, -1, 1, {6}}, leaf}, "", producer.DataOffset(claim),
                             producer.LeavesLimit(claim));
    ASSERT_TRUE(producer.PublishLayout(claim, layout.bytes()));
    std::copy(offsets.begin(), offsets.end(), reinterpret_cast<int64_t*>(producer.Data(claim) + layout.leaf(1).offset));
    producer.Complete(claim);
    if (what != nullptr) {
      ExpectCorrupt(what);
    } else {
      ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kBatch);
      EXPECT_EQ(scheduler_->Take().problem, ProblemKind::kNone);
    }
  }
}

TEST_F(CorruptionTest, RecordsOfKeptSamplesAreChecked) {
  for (const auto& change : std::vector<std::function<void(SideRecord&, uint64_t*)>>{
           [](SideRecord& place, uint64_t*) { place.offset = 0; },
           [](SideRecord& place, uint64_t*) { place.offset = uint64_t{1} << 60; },
           [](SideRecord& place, uint64_t*) { place.bytes = ~uint64_t{0}; },
           [](SideRecord& place, uint64_t*) { place.bytes = 8; },
           [](SideRecord&, uint64_t* sizes) { sizes[0] = uint64_t{1} << 40; },
           [](SideRecord&, uint64_t* sizes) { sizes[0] = ~uint64_t{0}; },
           [](SideRecord&, uint64_t* sizes) { sizes[1] = ~uint64_t{0}; },
           [](SideRecord&, uint64_t* sizes) { sizes[1] = 9; }, [](SideRecord&, uint64_t* sizes) { sizes[2] = 1000; }}) {
    SchedulerOptions options = Hasty(1, 1);
    options.collation = Collation::kSplit;
    Begin(options);
    BatchProducer producer = Producer(0);
    MakeSplit(producer, *producer.TryClaim());
    const Claim claim = *producer.TryClaim();
    ASSERT_EQ(claim.kind, ClaimKind::kCollate);
    ASSERT_NO_THROW(producer.Kept(claim));
    std::byte* slot = producer.Data(claim);
    auto& place = *reinterpret_cast<SideRecord*>(slot + scheduler_->arena()->slot_bytes() - KeptTableBytes(1));
    change(place, reinterpret_cast<uint64_t*>(slot + place.offset));
    EXPECT_THROW(producer.Kept(claim), DataLoss);
  }
}

TEST(ChunkWordTest, FewFlippedBitsDoNotMakeAnotherStateOfOne) {
  const std::vector<uint64_t> words = {ChunkWord(7, kChunkUnclaimed), ChunkWord(7, kChunkClaimed, 4),
                                       ChunkWord(7, kChunkDone, 4), ChunkWord(7, kChunkFailed, 4)};
  for (const uint64_t word : words) {
    ASSERT_TRUE(IsValid(word, 7));
    for (int one = 0; one < 64; ++one) {
      for (int two = one; two < 64; ++two) {
        for (int three = two; three < 64; ++three) {
          const uint64_t flipped = word ^ (uint64_t{1} << one | uint64_t{1} << two | uint64_t{1} << three);
          EXPECT_TRUE(!IsValid(flipped, 7) || (flipped & kChunkStateMask) == (word & kChunkStateMask));
        }
      }
    }
  }
}

// The word is right again before the scheduler looks at it; but this producer looks for work behind all there is.
TEST_F(CorruptionTest, AProducerThatWasLedAstrayLooksAgain) {
  Begin(Hasty(4, 4));
  BatchProducer producer = Producer(0);
  ControlBlock& control = scheduler_->arena()->control();
  const uint64_t oldest = control.oldest.exchange(1000);
  EXPECT_FALSE(producer.TryClaim().has_value());
  control.oldest.store(oldest);
  EXPECT_EQ(scheduler_->Wait(20 * kMillisecond), WaitOutcome::kTimedOut);
  MakeAll(producer);
  ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler_->Take(), Range(0, 4)));
}

TEST_F(CorruptionTest, WordsThatNobodyWritesDoNotHoldTheConsumerUp) {
  for (const uint64_t word : {uint64_t{0}, ~uint64_t{0}, ChunkWord(1, kChunkClaimed, kMaxProducers),
                              ChunkWord(1, kChunkClaimed), ChunkWord(1, kChunkWithdrawn), ChunkWord(1, 0x8001)}) {
    Begin(Hasty(8, 4));
    Oldest().chunk_words[2].store(word);
    BatchProducer producer = Producer(0);
    MakeAll(producer);
    ExpectCorrupt();
    ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kBatch);
    EXPECT_TRUE(HasSamples(scheduler_->Take(), Range(4, 4)));
  }
}

TEST_F(CorruptionTest, ACompletionThatNobodyMadeIsNotBelieved) {
  Begin(Hasty(8, 4));
  BatchProducer producer = Producer(0);
  MakeRows(producer, *producer.TryClaim());
  for (std::atomic<uint64_t>& word : Oldest().chunk_words) {
    word.store(~uint64_t{0});
  }
  ExpectCorrupt();
}

// Producers are killed that hold claims of a batch that was written over; so their successors do something useful.
TEST_F(CorruptionTest, WhoWorksOnACorruptBatchIsEnded) {
  SKIP_WITHOUT_FORK();
  Begin(Hasty(8, 4));
  const ChildProcess child([&] {
    BatchProducer producer = Producer(0);
    producer.TryClaim();
    pause();
  });
  child.AwaitSleep();
  scheduler_->WatchProducer(0, child.pidfd());
  Oldest().facts.rows = 1 << 30;
  ExpectCorrupt();
  ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kProducerDied);
  const ProducerDeath death = scheduler_->TakeDeaths().at(0);
  EXPECT_TRUE(death.busy);
  EXPECT_TRUE(death.corrupt);
}

// The consumer may understand what the scheduler does not: messages, for one.
TEST_F(CorruptionTest, WhoIsAccusedByTheConsumerIsEnded) {
  SKIP_WITHOUT_FORK();
  Begin(Hasty(8, 4));
  const ChildProcess child([&] {
    BatchProducer producer = Producer(3);
    producer.Fail(*producer.TryClaim(), 0, ProblemKind::kFailed, "?");
    MakeAll(producer);
    pause();
  });
  scheduler_->WatchProducer(3, child.pidfd());
  ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kBatch);
  EXPECT_EQ(scheduler_->Take().author, 3U);
  ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kBatch);
  const ReadyBatch good = scheduler_->Take();
  EXPECT_EQ(good.problem, ProblemKind::kNone);
  ASSERT_EQ(good.author, 3U);
  scheduler_->Accuse(7);  // whom nobody watches: a thread of the main process
  scheduler_->Accuse(*good.author);
  scheduler_->StartEpoch(1);
  ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kProducerDied);
  EXPECT_TRUE(scheduler_->TakeDeaths().at(0).corrupt);
}

// Or the producer that takes its place would not find its way, and so on.
TEST_F(CorruptionTest, TheControlBlockIsRestoredWhenAProducerDies) {
  SKIP_WITHOUT_FORK();
  SchedulerOptions options = SmallOptions(8, 4);
  options.cross_epochs = false;
  Begin(options);
  EXPECT_EQ(scheduler_->Wait(0), WaitOutcome::kTimedOut);  // the next look at the control block comes in an hour
  ControlBlock& control = scheduler_->arena()->control();
  const ChildProcess child([&] {
    std::memset(&control.constants, 0xAB, sizeof(control.constants));
    control.oldest.store(1 << 20);
    raise(SIGKILL);
  });
  scheduler_->WatchProducer(0, child.pidfd());
  ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kProducerDied);
  BatchProducer producer = Producer(0);
  MakeAll(producer);
  ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kBatch);
  EXPECT_TRUE(HasSamples(scheduler_->Take(), Range(0, 4)));
}

// The words by which the sides find each other are put right.
TEST_F(CorruptionTest, AControlBlockThatWasWrittenOverIsRepaired) {
  SKIP_WITHOUT_FORK();
  const std::vector<std::function<void(ControlBlock&)>> changes = {
      [](ControlBlock& control) { control.oldest.store(uint64_t{1} << 60); },
      [](ControlBlock& control) { control.next.store(0); },
      [](ControlBlock& control) { control.next.store(~uint64_t{0}); },
      [](ControlBlock& control) {
        for (std::atomic<uint32_t>& slot : control.ring) {
          slot.store(~0U);
        }
      },
      [](ControlBlock& control) { control.spin_ns.store(int64_t{1} << 60); },
      [](ControlBlock& control) { control.sleepers[0].store(0); },
      [](ControlBlock& control) { control.rescan.store(12345); },
      [](ControlBlock& control) { control.stop.store(1); },
      [](ControlBlock& control) { control.consumer_sleeps.store(77); },
      [](ControlBlock& control) { std::memset(&control.constants, 0xAB, sizeof(control.constants)); },
  };
  for (const auto& change : changes) {
    SchedulerOptions options = Hasty(40, 4);
    Crew crew(options, 2);
    crew.producer(0).AwaitSleep();
    crew.producer(1).AwaitSleep();
    change(crew.scheduler().arena()->control());
    crew.scheduler().StartEpoch(0);
    change(crew.scheduler().arena()->control());
    for (uint64_t number = 0; number < 10; ++number) {
      ASSERT_TRUE(HasSamples(crew.Expect(), Range(number * 4, 4)));
    }
  }
}

// Random bytes over what was made: each batch comes as it should be, or as corrupt.
TEST_F(CorruptionTest, RandomBytesNeverGiveAWrongBatch) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 400; ++round) {
    SchedulerOptions options = Hasty(12, 4);
    options.collation = round % 3 == 0 ? Collation::kSplit : Collation::kNone;
    Begin(options);
    BatchProducer producer = Producer(0);
    while (const std::optional<Claim> claim = producer.TryClaim()) {
      MakeSplit(producer, *claim);
    }
    const bool header = round % 2 == 0;
    const size_t begin = header ? 0 : kLayoutOffset;
    const size_t bytes =
        header ? offsetof(SlotHeader, problems) + sizeof(ChunkProblem) : sizeof(LayoutHeader) + sizeof(LeafRecord) + 8;
    std::byte* slot = scheduler_->arena()->slot_data(OldestSlot());
    for (uint64_t i = 0; i <= random() % 4; ++i) {
      slot[begin + random() % bytes] ^= static_cast<std::byte>(1 + random() % 255);
    }
    for (uint64_t number = 0; number < 3; ++number) {
      while (const std::optional<Claim> claim = producer.TryClaim()) {
        if (claim->rows == 4 && claim->begin < claim->end && claim->end <= 4) {
          MakeSplit(producer, *claim);
        } else {
          break;  // nobody could make it
        }
      }
      ASSERT_EQ(scheduler_->Wait(kPatience), WaitOutcome::kBatch);
      const ReadyBatch batch = scheduler_->Take();
      if (number != 0 || batch.problem != ProblemKind::kCorrupt) {
        ASSERT_TRUE(HasSamples(batch, Range(number * 4, 4))) << "round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace headrace::shared_memory
