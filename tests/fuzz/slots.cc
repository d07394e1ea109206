// Fuzz target: stray writes into the arena of a running loader.
//
// The input is a script. Its first bytes say how a scheduler is set up; the others what its consumer, three producers
// and stray writes do, step by step and in one thread. Whatever the script is:
//  - each batch is delivered once, in order if it is to be, and is either right (rows, numbers, arrays, objects,
//    attachment) or fails for what its producers said or as corrupt, and that only after a stray write;
//  - what the consumer holds does not change;
//  - once the writes end, the epoch ends, and the next one is right from the first to the last batch.
//
// Nothing describes what is in arrays, objects, kept samples and messages, so nothing notices if that changes: after a
// write there, batches of that epoch and the next only have to stay within their slots. And a valid word of a chunk is
// not made another valid one of the same batch, for which four bits must change at once.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "reader/index_permutation.h"
#include "reader/shared_memory/batch_producer.h"
#include "reader/shared_memory/batch_scheduler.h"

namespace headrace::shared_memory {
namespace {

constexpr uint32_t kProducers = 3;
constexpr uint32_t kSlots = 16;
constexpr uint32_t kWords = 2;  // of 64 bits, per sample
constexpr uint64_t kSeed = 7;
constexpr uint64_t kSuppliedBatches = 5;
constexpr int kPatience = 100;  // rounds in which all have their turn and nothing is delivered

[[noreturn]] void Abort(const std::string& what) {
  std::cerr << "fuzz_slots: " << what << std::endl;
  std::abort();
}
void Require(bool holds, const char* what) {
  if (!holds) {
    Abort(what);
  }
}

class Script {
 public:
  Script(const uint8_t* data, size_t size) : bytes_(data, size) {}
  bool AtEnd() const { return bytes_.empty(); }
  uint32_t Byte() {
    if (bytes_.empty()) {
      return 0;
    }
    const uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }
  uint32_t Below(uint32_t n) { return Byte() % n; }
  uint64_t Number() { return Byte() | uint64_t{Byte()} << 8; }
  uint64_t Word() { return Number() | Number() << 16 | Number() << 32 | Number() << 48; }

 private:
  std::span<const uint8_t> bytes_;
};

enum class Kind { kSequential, kShuffled, kExplicit, kWhole, kSplit, kStream, kStreams, kCount };

bool IsBad(uint64_t index) { return index % 11 == 5; }
uint64_t SampleWord(uint64_t epoch, uint64_t index, uint32_t word) { return MixBits(epoch * 1009 + index) + word; }
std::string ObjectOf(uint64_t index) { return "object " + std::to_string(index); }

// Which batch: of a stream its number there.
struct Number {
  uint64_t epoch;
  uint32_t stream;
  uint64_t batch;
  auto operator<=>(const Number&) const = default;
};

// What there is to be made.
class Truth {
 public:
  Truth(Kind kind, uint64_t length, uint64_t batch_size) : kind_(kind), length_(length), batch_size_(batch_size) {}

  bool streams() const { return kind_ == Kind::kStream || kind_ == Kind::kStreams; }
  // Of explicit batches: how many rows, and their indices.
  uint64_t SuppliedRows(uint64_t epoch, uint64_t batch) const { return 1 + (epoch + batch * 5) % batch_size_; }
  // The indices of all planned rows.
  std::vector<uint64_t> Indices(const Number& number) const {
    std::vector<uint64_t> indices;
    if (kind_ == Kind::kExplicit) {
      for (uint64_t row = 0; row < SuppliedRows(number.epoch, number.batch); ++row) {
        indices.push_back((number.epoch * 31 + number.batch * 7 + row * 3) % 1000);
      }
      return indices;
    }
    const std::optional<IndexPermutation> permutation =
        kind_ == Kind::kShuffled ? std::optional<IndexPermutation>(std::in_place, length_, kSeed, number.epoch)
                                 : std::nullopt;
    for (uint64_t at = number.batch * batch_size_; at < std::min(length_, (number.batch + 1) * batch_size_); ++at) {
      indices.push_back((permutation ? (*permutation)(at) : at) + number.stream * 1000);
    }
    return indices;
  }
  // Rows that a producer is asked for: a stream's claim is as large as a batch can be.
  uint64_t PlannedRows(const Number& number) const { return streams() ? batch_size_ : Indices(number).size(); }
  uint64_t Batches() const {
    return kind_ == Kind::kExplicit ? kSuppliedBatches : (length_ + batch_size_ - 1) / batch_size_;
  }
  uint64_t length() const { return length_; }

 private:
  const Kind kind_;
  const uint64_t length_;
  const uint64_t batch_size_;
};

class Loader {
 public:
  explicit Loader(Script* script)
      : script_(*script),
        kind_(static_cast<Kind>(script->Below(static_cast<uint32_t>(Kind::kCount)))),
        truth_(kind_, 1 + script->Below(16), 1 + script->Below(5)) {
    options_.arena.slot_count = kSlots;
    options_.arena.slot_bytes = size_t{1} << 20;
    options_.arena.dataset_length = truth_.streams() ? 0 : truth_.length();
    options_.arena.seed = kSeed;
    options_.arena.recheck_ms = 0;
    options_.arena.order = truth_.streams()           ? IndexOrder::kStream
                           : kind_ == Kind::kShuffled ? IndexOrder::kShuffled
                           : kind_ == Kind::kExplicit ? IndexOrder::kExplicit
                                                      : IndexOrder::kSequential;
    options_.batch_size = truth_.PlannedRows({0, 0, 0});
    options_.streams = kind_ == Kind::kStreams ? 2 : 0;
    options_.collation = kind_ == Kind::kWhole   ? Collation::kWhole
                         : kind_ == Kind::kSplit ? Collation::kSplit
                                                 : Collation::kNone;
    const uint32_t flags = script->Byte();
    options_.prefetch = 1 + flags % 3;
    options_.in_order = (flags & 4) == 0 || kind_ == Kind::kStreams;
    options_.collators = (flags & 8) == 0 ? kMaxProducers : 1;
    options_.arena.trace_events = (flags & 16) == 0 ? 0 : 4;
    options_.cross_epochs = (flags & 32) == 0;
    options_.producers = kProducers;
    scheduler_ = BatchScheduler::Create(options_);
    StartEpoch(0);
  }

  ~Loader() { scheduler_->Shutdown(); }
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  void Run() {
    while (!script_.AtEnd()) {
      Step();
    }
    Settle();
    // Nothing is left of what was written. Not the next epoch: batches of that may be open already.
    StartEpoch(epoch_ + 2);
    disturbed_ = false;
    Settle();
    CheckHeld(0);
  }

 private:
  struct Actor {
    std::unique_ptr<BatchProducer> producer;
    std::optional<Claim> claim;
    std::optional<BatchLayout> layout;  // of the claim, once it is published
    bool written = false;
    int blocked = 0;  // for so many turns another producer seems to be writing the layout
  };
  struct Held {
    ReadyBatch batch;
    Number number;
  };

  void Step() {
    const uint32_t what = script_.Byte();
    Actor& actor = actors_[what % kProducers];
    switch (what / 16) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5:
        return Act(&actor);
      case 6:
        return Die(&actor);
      case 7:
      case 8:
      case 9:
        Consume();
        return;
      case 10:
        return CheckHeld(script_.Below(4));
      case 11:
        if (what % 4 == 0) {
          return StartEpoch(epoch_ + 1);
        }
        return Look();
      default:
        return StrayWrite();
    }
  }

  void StartEpoch(uint64_t epoch) {
    epoch_ = epoch;
    delivered_.clear();
    next_ = {0, 0};
    supplied_ = 0;
    scheduler_->StartEpoch(epoch);
  }

  // --- Producers.

  bool Revive(Actor* actor) {
    if (actor->producer == nullptr) {
      try {
        actor->producer = std::make_unique<BatchProducer>(
            scheduler_->arena(), static_cast<uint32_t>(actor - actors_.data()), scheduler_->completion_fd());
      } catch (const DataLoss&) {
        Require(written_, "a producer is refused");  // until the scheduler has put the constants right
      }
    }
    return actor->producer != nullptr;
  }

  // What its process would leave behind; another one takes its place.
  void Die(Actor* actor) {
    const bool busy = actor->claim.has_value();
    const bool may_err = busy ? MayErr(*actor->claim) : disturbed_;
    actor->producer.reset();
    actor->claim.reset();
    actor->layout.reset();
    const ProducerDeath death = scheduler_->Reclaim(static_cast<uint32_t>(actor - actors_.data()));
    Require(may_err || death.busy == busy, "a death is reported wrong");
    const uint32_t then = script_.Below(8);
    // Of the next epoch a batch may have to be opened once more.
    if (!death.busy || then > 1 || death.epoch != epoch_) {
      return;
    }
    if (then == 0 && scheduler_->Abandon(death.sequence, death.row)) {
      abandoned_.insert({death.epoch, death.batch});  // of whichever stream
    } else if (then == 1 && scheduler_->Skip(death.sequence, death.row)) {
      skipped_[{death.epoch, 0, death.batch}].insert(death.row);
    }
  }

  // Whether a producer that goes by the claim would stay within its slot. Another one crashes, or is killed.
  bool IsSane(const Claim& claim) const {
    const Number number{claim.epoch, claim.stream, claim.batch};
    if (claim.slot >= kSlots || claim.chunk >= kMaxChunks || claim.stream >= 2 || claim.batch > 1000 ||
        claim.epoch > epoch_ + 2) {
      return false;
    }
    const uint64_t rows = truth_.PlannedRows(number);
    return claim.rows <= rows && claim.begin <= claim.end && claim.end <= claim.rows &&
           scheduler_->arena()->slot(claim.slot).facts.indices_bytes == IndexBytes(number);
  }
  size_t IndexBytes(const Number& number) const {
    return kind_ == Kind::kExplicit ? truth_.PlannedRows(number) * sizeof(uint64_t) : 0;
  }

  void Act(Actor* actor) {
    if (!Revive(actor)) {
      return;
    }
    if (!actor->claim) {
      actor->claim = actor->producer->WaitForClaim(0);
      actor->written = false;
      actor->blocked = 0;
      if (actor->claim) {
        if (!IsSane(*actor->claim)) {
          Require(disturbed_, "a claim makes no sense");
          Die(actor);
        }
      }
      return;
    }
    try {
      actor->claim->kind == ClaimKind::kItems ? MakeItems(actor) : MakeRows(actor);
    } catch (const DataLoss&) {
      End(actor, "lost");
    } catch (const ResourceExhausted&) {
      End(actor, "full");
    }
  }

  void End(Actor* actor, const char* error) {
    Require(MayErr(*actor->claim), error);
    Finish(actor, [&] { actor->producer->Fail(*actor->claim, actor->claim->begin, ProblemKind::kFailed, error); });
  }

  // Whether the batch may show a stray write. Claims may be older than the epoch.
  bool MayErr(const Claim& claim) const { return disturbed_ || (written_ && claim.epoch != epoch_); }

  template <typename Ending>
  void Finish(Actor* actor, Ending ending) {
    ending();
    actor->claim.reset();
    actor->layout.reset();
  }

  // True, and the claim is ended, if a sample cannot be made.
  bool Fails(Actor* actor) {
    BatchProducer& producer = *actor->producer;
    const Claim& claim = *actor->claim;
    if (claim.kind == ClaimKind::kCollate) {
      return false;
    }
    for (uint32_t row = claim.begin; row < End(claim); ++row) {
      producer.BeginRow(claim, row);
      const uint64_t index = IndexAt(producer, claim, row);
      if (IsBad(index)) {
        Finish(actor, [&] {
          if (claim.kind == ClaimKind::kStream) {
            Describe(producer, claim);
          }
          producer.Fail(claim, row, ProblemKind::kFailed, "bad " + std::to_string(index));
        });
        return true;
      }
    }
    return false;
  }

  uint32_t End(const Claim& claim) const {
    if (claim.kind != ClaimKind::kStream) {
      return claim.end;
    }
    return static_cast<uint32_t>(truth_.Indices({claim.epoch, claim.stream, claim.batch}).size());
  }
  uint64_t IndexAt(BatchProducer& producer, const Claim& claim, uint32_t row) const {
    return claim.kind == ClaimKind::kStream ? claim.batch * options_.batch_size + row + claim.stream * 1000
                                            : producer.IndexAt(claim, row);
  }

  void MakeItems(Actor* actor) {
    BatchProducer& producer = *actor->producer;
    const Claim& claim = *actor->claim;
    if (!actor->written) {
      if (Fails(actor)) {
        return;
      }
      for (uint32_t row = claim.begin; row < claim.end; ++row) {
        const uint64_t index = producer.IndexAt(claim, row);
        const uint64_t words[kWords] = {SampleWord(claim.epoch, index, 0), SampleWord(claim.epoch, index, 1)};
        producer.Keep(claim, row, ObjectOf(index), {{reinterpret_cast<const char*>(words), sizeof(words)}});
      }
      actor->written = true;
      return;
    }
    Finish(actor, [&] { producer.Complete(claim); });
  }

  // What the producer of a stream's batch says of it.
  void Describe(BatchProducer& producer, const Claim& claim) {
    const uint64_t made = claim.batch * options_.batch_size + End(claim);
    producer.SetRows(claim, End(claim));
    producer.SetStreamEnd(claim, End(claim) == 0           ? StreamEnd::kBefore
                                 : made >= truth_.length() ? StreamEnd::kAfter
                                                           : StreamEnd::kGoesOn);
    producer.Attach(claim, "state " + std::to_string(claim.batch));
  }

  void MakeRows(Actor* actor) {
    BatchProducer& producer = *actor->producer;
    const Claim& claim = *actor->claim;
    const Number number{claim.epoch, claim.stream, claim.batch};
    if (!actor->layout) {
      if (claim.kind == ClaimKind::kRows && claim.batch % 4 == 3 && claim.begin == 0) {
        Finish(actor, [&] { producer.Fail(claim, 0, ProblemKind::kMismatch, {}); });
        return;
      }
      if (Fails(actor)) {
        return;
      }
      const uint32_t state = scheduler_->arena()->slot(claim.slot).layout_state.load();
      if (state != kLayoutEmpty && !IsLayoutReady(state)) {
        // It would wait for the other one to end.
        Require(MayErr(claim), "there is a layout in the making");
        if (++actor->blocked > kPatience / 2) {
          Die(actor);
        }
        return;
      }
      const auto rows = static_cast<int64_t>(claim.kind == ClaimKind::kStream ? End(claim) : claim.rows);
      const BatchLayout layout(
          {{LeafKind::kArray, -1, sizeof(uint64_t), {rows, kWords}}, {LeafKind::kObject, -1, 0, {rows}}}, "tree",
          kDataOffset + IndexBytes(number), producer.LeavesLimit(claim));
      if (MakesBatch(claim.kind)) {
        producer.DropLayout(claim);
      }
      if (!producer.PublishLayout(claim, layout.bytes())) {
        Require(MayErr(claim), "layouts differ");
        Finish(actor, [&] { producer.Fail(claim, claim.begin, ProblemKind::kMismatch, {}); });
        return;
      }
      actor->layout = layout;
      return;
    }
    if (!actor->written) {
      claim.kind == ClaimKind::kCollate ? Collate(*actor) : WriteRows(*actor);
      if (claim.kind == ClaimKind::kStream) {
        Describe(producer, claim);
      }
      actor->written = true;
      return;
    }
    Finish(actor, [&] { producer.Complete(claim); });
  }

  void WriteRow(const Actor& actor, uint32_t row, const void* words, std::string_view object) {
    std::byte* slot = actor.producer->Data(*actor.claim);
    std::memcpy(slot + actor.layout->leaf(0).offset + row * kWords * sizeof(uint64_t), words,
                kWords * sizeof(uint64_t));
    const SideRecord record = actor.producer->AllocateSide(*actor.claim, object.size(), actor.layout->end());
    std::memcpy(slot + record.offset, object.data(), object.size());
    std::memcpy(slot + actor.layout->leaf(1).offset + row * sizeof(record), &record, sizeof(record));
  }

  void WriteRows(const Actor& actor) {
    const Claim& claim = *actor.claim;
    for (uint32_t row = claim.begin; row < End(claim); ++row) {
      actor.producer->BeginRow(claim, row);
      const uint64_t index = IndexAt(*actor.producer, claim, row);
      const uint64_t words[kWords] = {SampleWord(claim.epoch, index, 0), SampleWord(claim.epoch, index, 1)};
      WriteRow(actor, row, words, ObjectOf(index));
    }
  }

  void Collate(const Actor& actor) {
    const std::vector<KeptSample> samples = actor.producer->Kept(*actor.claim);
    for (uint32_t row = 0; row < samples.size(); ++row) {
      const KeptSample& sample = samples[row];
      if (sample.buffers.size() != 1 || sample.buffers[0].size() != kWords * sizeof(uint64_t)) {
        throw DataLoss("not what was kept");
      }
      const std::string object(reinterpret_cast<const char*>(sample.message.data()), sample.message.size());
      WriteRow(actor, row, sample.buffers[0].data(), object);
    }
  }

  // --- The consumer.

  // Whether something has happened.
  bool Consume() {
    switch (scheduler_->Wait(0)) {
      case WaitOutcome::kBatch:
        Take();
        return true;
      case WaitOutcome::kNeedsIndices:
        Supply();
        return true;
      case WaitOutcome::kEndOfEpoch:
        CheckComplete();
        ended_ = true;
        return true;
      case WaitOutcome::kTimedOut:
        return false;
      default:
        Abort("the consumer was told what cannot be");
    }
  }

  void Supply() {
    while (scheduler_->WantedSupply() > 0) {
      if (supplied_ == kSuppliedBatches) {
        scheduler_->EndSupply();
        return;
      }
      const std::vector<uint64_t> indices = truth_.Indices({epoch_, 0, supplied_++});
      scheduler_->Supply(indices.size(),
                         {reinterpret_cast<const char*>(indices.data()), indices.size() * sizeof(uint64_t)}, false);
    }
  }

  std::vector<uint64_t> ExpectedIndices(const Number& number) const {
    std::vector<uint64_t> indices = truth_.Indices(number);
    if (const auto found = skipped_.find(number); found != skipped_.end()) {
      for (auto row = found->second.rbegin(); row != found->second.rend(); ++row) {
        indices.erase(indices.begin() + *row);
      }
    }
    return indices;
  }

  void Take() {
    const ReadyBatch batch = scheduler_->Take();
    const Number number{batch.epoch, batch.stream, batch.stream_batch};
    Require(batch.epoch == epoch_, "a batch of another epoch");
    Require(delivered_.insert(number).second, "a batch comes twice");
    Require(batch.stream < 2, "no such stream");
    if (options_.in_order) {
      for (; number.batch > next_[number.stream]; ++next_[number.stream]) {
        Require(ExpectedIndices({epoch_, number.stream, next_[number.stream]}).empty(), "a batch was passed over");
      }
      Require(number.batch == next_[number.stream]++, "a batch comes too late");
    }
    Check(batch, number);
    if (batch.problem == ProblemKind::kKilled) {
      killed_.insert(number);
    }
    if (batch.memory != nullptr && !batch.last_slots && batch.problem == ProblemKind::kNone) {
      held_.push_back({batch, number});
    }
  }

  // That it is right, or fails as it may.
  void Check(const ReadyBatch& batch, const Number& number) const {
    const std::vector<uint64_t> indices = ExpectedIndices(number);
    const auto bad = std::find_if(indices.begin(), indices.end(), IsBad);
    switch (batch.problem) {
      case ProblemKind::kNone:
        Require(bad == indices.end(), "a sample that fails was delivered");
        Require(!indices.empty(), "a batch beyond the end was delivered");
        CheckRows(batch, number);
        return;
      case ProblemKind::kFailed:
        if (bad != indices.end() && batch.problem_message == "bad " + std::to_string(*bad)) {
          const std::vector<uint64_t> planned = truth_.Indices(number);
          Require(batch.problem_row < planned.size() && planned[batch.problem_row] == *bad, "the wrong row failed");
        } else {
          Require(disturbed_ &&
                      (MayBeGarbled(number) || batch.problem_message == "lost" || batch.problem_message == "full" ||
                       batch.problem_message.empty() || batch.problem_message.starts_with("bad ")),
                  "a batch failed for no reason");
        }
        return;
      case ProblemKind::kKilled:
        Require(abandoned_.contains({number.epoch, number.batch}), "a batch was abandoned by nobody");
        return;
      case ProblemKind::kCorrupt:
        Require(disturbed_, "a batch is corrupt that nobody has written to");
        return;
      default:
        Abort("no such problem");
    }
  }

  void CheckRows(const ReadyBatch& batch, const Number& number) const {
    const std::vector<uint64_t> indices = ExpectedIndices(number);
    Require(batch.rows == indices.size(), "the number of rows is wrong");
    Require(batch.layout().leaf_count() == 2 && batch.layout().tree() == "tree", "the layout is wrong");
    Require(batch.objects.size() == indices.size(), "the number of objects is wrong");
    if (MayBeGarbled(number)) {
      CheckPlaces(batch);
      return;
    }
    Require(batch.attachment == (truth_.streams() ? "state " + std::to_string(number.batch) : ""),
            "the attachment is wrong");
    for (uint32_t row = 0; row < indices.size(); ++row) {
      uint64_t words[kWords];
      std::memcpy(words, batch.slot + batch.layout().leaf(0).offset + row * sizeof(words), sizeof(words));
      for (uint32_t word = 0; word < kWords; ++word) {
        Require(words[word] == SampleWord(number.epoch, indices[row], word), "an array is wrong");
      }
      const SideRecord& object = batch.objects[row];
      Require(std::string_view(reinterpret_cast<const char*>(batch.slot + object.offset), object.bytes) ==
                  ObjectOf(indices[row]),
              "an object is wrong");
    }
  }

  // Whether a stray write may have changed what is in the batch. Those of the next epoch may be open already.
  bool MayBeGarbled(const Number& number) const { return garbled_ && number.epoch <= *garbled_ + 1; }

  // That all that it has is in its slot, as far as a sanitizer cannot tell.
  void CheckPlaces(const ReadyBatch& batch) const {
    const size_t end = scheduler_->arena()->slot_bytes();
    Require(batch.layout().end() <= end, "an array is outside the slot");
    for (const SideRecord& object : batch.objects) {
      Require(object.bytes == 0 || (object.offset >= kDataOffset && object.offset + object.bytes <= end),
              "an object is outside the slot");
    }
  }

  // The batches that are held but the last `keep`; they go back.
  void CheckHeld(size_t keep) {
    while (held_.size() > keep) {
      CheckRows(held_.front().batch, held_.front().number);
      held_.pop_front();
    }
  }

  void CheckComplete() const {
    for (uint32_t stream = 0; stream < std::max(options_.streams, 1U); ++stream) {
      bool over = false;  // for a stream
      for (uint64_t batch = 0; batch < truth_.Batches(); ++batch) {
        const Number number{epoch_, stream, batch};
        const bool delivered = delivered_.contains(number);
        Require(!over || !delivered || !options_.in_order, "a stream goes on after its end");
        Require(over || delivered || ExpectedIndices(number).empty(), "a batch was lost");
        over = over || (truth_.streams() && killed_.contains(number));
      }
    }
  }

  // What only looks.
  void Look() {
    scheduler_->stats();
    scheduler_->Claims();
    scheduler_->Trace();
  }

  // --- Stray writes.

  struct Region {
    std::byte* begin;
    size_t bytes;
  };

  Region AnyRegion() {
    Arena& arena = *scheduler_->arena();
    std::byte* control = reinterpret_cast<std::byte*>(&arena.control());
    std::byte* slot = arena.slot_data(script_.Below(options_.prefetch + 3));
    const uint32_t what = script_.Byte();
    if (what >= 240) {
      // The arrays and the records of the objects; or what grows from the end: the table of kept samples, these,
      // objects, messages and attachments.
      garbled_ = epoch_;
      return what % 2 == 0 ? Region{slot + kDataOffset, 512} : Region{slot + arena.slot_bytes() - 2048, 2048};
    }
    switch (what % 10) {
      case 0:
      case 1:
        return {slot, offsetof(SlotHeader, chunk_words)};
      case 2:
        return {slot + offsetof(SlotHeader, chunk_words), 8 * sizeof(uint64_t)};
      case 3:
        return {slot + offsetof(SlotHeader, deaths), 8};
      case 4:
        return {slot + offsetof(SlotHeader, problems), 8 * sizeof(ChunkProblem)};
      case 5:
        return {slot + kLayoutOffset, sizeof(LayoutHeader) + 2 * sizeof(LeafRecord) + 8};
      case 6:
        return {control, offsetof(ControlBlock, ring)};
      case 7:
        return {control + offsetof(ControlBlock, ring), 64 * sizeof(uint32_t)};
      case 8:
        return {control + offsetof(ControlBlock, producers), (kProducers + 1) * sizeof(ProducerRecord)};
      default:
        // The rings of the trace; without one, the indices.
        return options_.arena.trace_events != 0
                   ? Region{control + (sizeof(ControlBlock) + 4095) / 4096 * 4096, 2 * TraceRing::Bytes(4)}
                   : Region{slot + kDataOffset, kind_ == Kind::kExplicit ? sizeof(uint64_t) : 0};
    }
  }

  void StrayWrite() {
    const Region region = AnyRegion();
    if (region.bytes < sizeof(uint64_t)) {
      return;
    }
    written_ = disturbed_ = true;
    const std::vector<uint64_t> before = ChunkWords();
    const uint64_t at = script_.Number();
    switch (script_.Below(4)) {
      case 0:
        region.begin[at % region.bytes] ^= static_cast<std::byte>(script_.Byte());
        break;
      case 1: {
        const uint64_t word = script_.Word();
        std::memcpy(region.begin + at % (region.bytes / 8) * 8, &word, sizeof(word));
        break;
      }
      case 2:
        std::memmove(region.begin + at % (region.bytes / 8) * 8,
                     region.begin + script_.Number() % (region.bytes / 8) * 8, sizeof(uint64_t));
        break;
      default: {
        const size_t begin = at % region.bytes;
        const uint32_t value = script_.Byte();
        std::memset(region.begin + begin, static_cast<int>(value),
                    std::min<size_t>(region.bytes - begin, 1 + script_.Byte()));
      }
    }
    RestoreChunkWords(before);
  }

  std::vector<uint64_t> ChunkWords() const {
    std::vector<uint64_t> words;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      for (uint32_t chunk = 0; chunk < 8; ++chunk) {
        words.push_back(scheduler_->arena()->slot(slot).chunk_words[chunk].load());
      }
    }
    return words;
  }

  // Where a stray write has made of a chunk's word another one that could be right.
  void RestoreChunkWords(const std::vector<uint64_t>& before) {
    for (size_t i = 0; i < before.size(); ++i) {
      std::atomic<uint64_t>& word = scheduler_->arena()->slot(static_cast<uint32_t>(i / 8)).chunk_words[i % 8];
      const uint64_t sequence = before[i] >> kSequenceShift;
      const uint64_t now = word.load();
      if (now != before[i] && (IsValid(now, sequence) || now == ChunkWord(sequence, kChunkWithdrawn))) {
        word.store(before[i]);
      }
    }
  }

  // --- The end.

  void Dump() {
    const ControlBlock& c = scheduler_->arena()->control();
    std::cerr << "kind " << static_cast<int>(kind_) << " epoch " << epoch_ << " bs " << options_.batch_size << " len "
              << truth_.length() << " prefetch " << options_.prefetch << " order " << options_.in_order << " collators "
              << options_.collators << " oldest " << c.oldest << " next " << c.next << " held " << held_.size() << "\n";
    for (uint64_t seq = c.oldest; seq < c.next; ++seq) {
      uint32_t i = c.ring[seq % kMaxSlots];
      const SlotHeader& h = scheduler_->arena()->slot(i);
      std::cerr << "seq " << seq << " slot " << i << " hseq " << h.sequence << " facts e" << h.facts.epoch << " b"
                << h.facts.batch << " kind " << static_cast<int>(h.facts.kind) << " chunks " << h.facts.chunks
                << " rows " << h.facts.rows << " stream " << h.facts.stream << " claimable " << std::hex << h.claimable
                << " layout " << h.layout_state;
      for (uint32_t k = 0; k < std::min(8U, h.facts.chunks); ++k) std::cerr << " " << h.chunk_words[k];
      std::cerr << std::dec << "\n";
    }
    for (auto& a : actors_) {
      const auto& r = c.producers[&a - actors_.data()];
      std::cerr << "actor " << (&a - actors_.data()) << " claim "
                << (a.claim ? static_cast<int64_t>(a.claim->sequence) : -1) << " chunk "
                << (a.claim ? a.claim->chunk : 0) << " blocked " << a.blocked << " busy " << r.busy << " rseq "
                << r.sequence << "\n";
    }
  }

  // All go on, undisturbed, until the epoch has ended.
  void Settle() {
    ended_ = false;
    for (int idle = 0; !ended_; ++idle) {
      if (idle >= kPatience) {
        Dump();
      }
      Require(idle < kPatience, "nothing happens any more");
      for (Actor& actor : actors_) {
        for (int turn = 0; turn < 8; ++turn) {
          Act(&actor);
        }
      }
      CheckHeld(2);
      if (Consume()) {
        idle = 0;
      }
    }
  }

  Script& script_;
  const Kind kind_;
  const Truth truth_;
  SchedulerOptions options_;
  std::shared_ptr<BatchScheduler> scheduler_;
  std::vector<Actor> actors_{kProducers};
  uint64_t epoch_ = 0;
  uint64_t supplied_ = 0;
  bool written_ = false;             // there was a stray write
  bool disturbed_ = false;           // one that this epoch may show
  std::optional<uint64_t> garbled_;  // the epoch of the latest to what is in batches
  bool ended_ = false;
  std::set<Number> delivered_;        // in this epoch
  std::vector<uint64_t> next_{0, 0};  // in order: by stream
  std::set<Number> killed_;
  std::set<std::pair<uint64_t, uint64_t>> abandoned_;  // epoch and batch
  std::map<Number, std::set<uint32_t>> skipped_;
  std::deque<Held> held_;
};

}  // namespace
}  // namespace headrace::shared_memory

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  headrace::shared_memory::Script script(data, size);
  headrace::shared_memory::Loader(&script).Run();
  return 0;
}
