// How a worker claims the rows of a batch: TryClaim, the compare-and-swap of the protocol in slot.h.
#include "reader/shared_memory/batch_producer.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "framework/errors.h"
#include "framework/spin_pause.h"
#include "reader/shared_memory/waiting/futex.h"

namespace headrace::shared_memory {

namespace {

// How often to look whether another producer has written a layout before sleeping: a microsecond or two.
constexpr uint32_t kLayoutSpins = 32;
// How long it then sleeps between two looks: twice as long each time.
constexpr int64_t kLayoutPauseNs = 20'000;
constexpr int64_t kLongestLayoutPauseNs = 10'000'000;

// Also accepts an empty view with a null pointer.
void Copy(std::string_view bytes, std::byte* out) {
  if (!bytes.empty()) {
    std::memcpy(out, bytes.data(), bytes.size());
  }
}

}  // namespace

BatchProducer::BatchProducer(std::shared_ptr<Arena> arena, uint32_t id, int completion_fd)
    : arena_(std::move(arena)),
      control_(&arena_->control()),
      constants_(CopyShared(control_->constants)),
      record_(nullptr),
      id_(id),
      completion_fd_(completion_fd) {
  HR_ENFORCE(id < kMaxProducers, OutOfRange, "producer ", id, " is beyond the limit of ", kMaxProducers);
  HR_ENFORCE(constants_.checksum == ChecksumOf(constants_, 0), DataLoss, "the arena's constants were written over");
  record_ = &control_->producers[id];
  trace_ = arena_->trace(id);
}

bool BatchProducer::stopped() const { return control_->stop.load(std::memory_order_relaxed) != 0; }

bool BatchProducer::HasTrialBefore(const Claim& claim) const {
  const uint64_t oldest = control_->oldest.load(std::memory_order_acquire);
  for (uint64_t sequence = claim.sequence; sequence > oldest && claim.sequence - sequence < kMaxSlots;) {
    const uint32_t index = control_->ring[--sequence % kMaxSlots].load(std::memory_order_relaxed);
    if (index >= arena_->slot_count()) {
      continue;
    }
    const SlotHeader& slot = arena_->slot(index);
    // In this order: a later batch in the slot has no deaths when its number appears.
    if (slot.sequence.load(std::memory_order_acquire) != sequence ||
        slot.deaths[0].load(std::memory_order_relaxed) == 0) {
      continue;
    }
    const uint64_t word = slot.chunk_words[0].load(std::memory_order_acquire);
    const bool is_made = IsDone(word, sequence) && Claimant(word) != 0;
    if (word >> kSequenceShift == sequence && !is_made) {
      return true;
    }
  }
  return false;
}

bool BatchProducer::IsOpen(const Claim& claim) const {
  return control_->oldest.load(std::memory_order_acquire) <= claim.sequence;
}

std::optional<Claim> BatchProducer::TryClaim() {
  const uint32_t rescan = control_->rescan.load(std::memory_order_acquire);
  const uint64_t oldest = control_->oldest.load(std::memory_order_acquire);
  if (rescan != rescan_seen_ || scan_from_ < oldest) {
    rescan_seen_ = rescan;
    scan_from_ = oldest;
  }
  // No more batches than this can be open, whatever the word says.
  const uint64_t next = std::min(control_->next.load(std::memory_order_acquire), scan_from_ + kMaxSlots);
  for (; scan_from_ < next; ++scan_from_) {
    if (std::optional<Claim> claim = TryClaimChunk(scan_from_)) {
      return claim;
    }
  }
  return std::nullopt;
}

std::optional<Claim> BatchProducer::TryClaimChunk(uint64_t sequence) {
  const uint32_t index = control_->ring[sequence % kMaxSlots].load(std::memory_order_relaxed);
  if (index >= arena_->slot_count()) {
    return std::nullopt;
  }
  SlotHeader& slot = arena_->slot(index);
  if (slot.sequence.load(std::memory_order_acquire) != sequence) {
    return std::nullopt;  // the consumer has taken it already
  }
  // Belongs to this batch or to a later one in the same slot; in that case all chunks of this one are claimed, and no
  // exchange succeeds.
  const uint64_t claimable = slot.claimable.load(std::memory_order_relaxed);
  if (ClaimableProducer(claimable) != kAnybody && ClaimableProducer(claimable) != id_) {
    return std::nullopt;
  }
  const uint32_t chunks = std::min(ClaimableChunks(claimable), kMaxChunks);
  const bool collatable = ClaimableKind(claimable) != ClaimKind::kItems || MayCollate(slot, sequence, chunks);
  const uint64_t unclaimed = ChunkWord(sequence, kChunkUnclaimed);
  const uint32_t cursor = std::min(slot.cursor.load(std::memory_order_relaxed), chunks);
  // The cursor is only a hint: chunks that a dead producer has lost come before it.
  for (uint32_t step = 0; step < chunks; ++step) {
    const uint32_t chunk = cursor + step < chunks ? cursor + step : cursor + step - chunks;
    std::atomic<uint64_t>& word = slot.chunk_words[chunk];
    uint64_t expected = unclaimed;
    if (word.load(std::memory_order_relaxed) != unclaimed || (!collatable && chunk + 1 == chunks) ||
        !word.compare_exchange_strong(expected, ChunkWord(sequence, kChunkClaimed, id_), std::memory_order_acq_rel,
                                      std::memory_order_relaxed)) {
      continue;
    }
    // The batch cannot be closed before this chunk is done: from here on the header is stable.
    slot.cursor.store(chunk + 1, std::memory_order_relaxed);
    return Begin(index, chunk);
  }
  return std::nullopt;
}

Claim BatchProducer::Begin(uint32_t index, uint32_t chunk) {
  SlotHeader& slot = arena_->slot(index);
  const BatchFacts& facts = slot.facts;
  Claim claim{};
  claim.slot = index;
  claim.chunk = chunk;
  claim.chunks = facts.chunks;
  claim.kind = facts.kind;
  claim.begin = chunk * facts.chunk_rows;
  claim.end = std::min(claim.begin + facts.chunk_rows, facts.rows);
  claim.stream = facts.stream;
  claim.sequence = facts.sequence;
  claim.epoch = facts.epoch;
  claim.batch = facts.batch;
  claim.first_position = facts.first_position;
  claim.revision = facts.revision;
  uint64_t kept_bytes = 0;
  if (claim.kind == ClaimKind::kItems && chunk + 1 == facts.chunks) {
    claim.kind = ClaimKind::kCollate;
    claim.begin = 0;
    claim.end = facts.rows;
    kept_bytes = slot.side_bytes.load(std::memory_order_relaxed);
  } else if (claim.kind == ClaimKind::kWhole) {
    claim.excluded = std::min(facts.excluded, kMaxExcluded);
    claim.end -= claim.excluded;
  }
  claim.rows = facts.rows - claim.excluded;
  claim.deaths = slot.deaths[chunk].load(std::memory_order_relaxed);
  record_->row.store(kNoRow, std::memory_order_relaxed);
  record_->sequence.store(claim.sequence, std::memory_order_release);
  record_->busy.store(1, std::memory_order_release);
  AddTo(record_->claims, 1);
  if (MakesBatch(claim.kind)) {
    end_ = {claim.rows, StreamEnd::kGoesOn, {0, 0}, kept_bytes, 0};
  }
  claim.start_ns = MonotonicNanoseconds();
  return claim;
}

bool BatchProducer::MayCollate(const SlotHeader& slot, uint64_t sequence, uint32_t chunks) const {
  if (id_ >= constants_.collators || chunks == 0) {
    return false;
  }
  const ChunksState items = LookAtChunks(slot, sequence, chunks - 1);
  return items.done && !items.failed;
}

std::optional<Claim> BatchProducer::WaitForClaim(int64_t timeout_ns) {
  const int64_t awake_ns = spin_.Start(control_->spin_ns.load(std::memory_order_relaxed));
  uint64_t begin = 0;  // of the wait; 0: there was none
  for (;;) {
    // Read the signal first: whatever is published before the next increment, even a stop, is then seen below.
    const uint32_t signal = control_->work_signal.load(std::memory_order_acquire);
    if (stopped() || Retired()) {
      return std::nullopt;
    }
    if (std::optional<Claim> claim = TryClaim()) {
      const uint64_t waited = begin == 0 ? 0 : claim->start_ns - begin;
      spin_.Finish(static_cast<int64_t>(waited));
      AddTo(record_->wait_ns, waited);
      return claim;
    }
    const uint64_t now = MonotonicNanoseconds();
    begin = begin == 0 ? now : begin;
    const auto waited = static_cast<int64_t>(now - begin);
    if (timeout_ns >= 0 && waited >= timeout_ns) {
      return std::nullopt;
    }
    if (waited < awake_ns) {
      SpinPause();
      continue;
    }
    const int64_t left = timeout_ns < 0 ? -1 : timeout_ns - waited;
    Sleep(signal, left);
  }
}

void BatchProducer::Sleep(uint32_t signal, int64_t timeout_ns) {
  const int64_t longest_ns = int64_t{constants_.recheck_ms} * 1'000'000;
  if (timeout_ns < 0 || timeout_ns > longest_ns) {
    timeout_ns = longest_ns;
  }
  std::atomic<uint64_t>& sleepers = control_->sleepers[id_ / 64];
  const uint64_t bit = uint64_t{1} << id_ % 64;
  // Sequentially consistent with the scheduler's "signal, then look for sleepers": one of the two sees the other.
  sleepers.fetch_or(bit);
  if (control_->work_signal.load() == signal) {
    FutexWait(control_->work_signal, signal, timeout_ns, SleeperBit(id_));
  }
  sleepers.fetch_and(~bit);
}

bool BatchProducer::Retired() {
  if (record_->retirement.load(std::memory_order_relaxed) != Retirement::kToRetire) {
    return false;
  }
  // Wake the others first, for work that only this producer would have looked at: if it is killed between the two
  // steps, it is repaired like any other, whereas nobody repairs one that has stored kRetired.
  SignalRescan(kAllSleepers);
  record_->retirement.store(Retirement::kRetired, std::memory_order_release);
  return true;
}

uint64_t BatchProducer::IndexAt(const Claim& claim, uint32_t row) {
  const uint64_t position = PositionOf(claim, row);
  return constants_.order == IndexOrder::kShuffled ? PermutationOf(claim)(position) : position;
}

std::vector<uint64_t> BatchProducer::Indices(const Claim& claim) {
  std::vector<uint64_t> indices;
  indices.reserve(claim.end - claim.begin);
  for (uint32_t row = claim.begin; row < claim.end; ++row) {
    indices.push_back(PositionOf(claim, row));
  }
  if (constants_.order == IndexOrder::kShuffled && !indices.empty()) {
    PermutationOf(claim).Map(indices);
  }
  return indices;
}

uint64_t BatchProducer::PositionOf(const Claim& claim, uint32_t row) const {
  row = PlannedRow(claim, row);
  if (constants_.order == IndexOrder::kExplicit) {
    return reinterpret_cast<const uint64_t*>(Data(claim) + kDataOffset)[row];
  }
  const uint64_t position = claim.first_position + row * constants_.stride;
  HR_ENFORCE(position < constants_.dataset_length || constants_.order == IndexOrder::kStream, DataLoss,
             "the position of a batch in its epoch was written over");
  return position;
}

const IndexPermutation& BatchProducer::PermutationOf(const Claim& claim) {
  if (!permutation_ || permutation_epoch_ != claim.epoch) {
    permutation_.emplace(constants_.dataset_length, constants_.seed, claim.epoch);
    permutation_epoch_ = claim.epoch;
  }
  return *permutation_;
}

std::string_view BatchProducer::PickledIndices(const Claim& claim) const {
  const BatchFacts& facts = arena_->slot(claim.slot).facts;
  if (facts.pickled_indices == 0) {
    return {};
  }
  return {reinterpret_cast<const char*>(Data(claim) + kDataOffset), facts.indices_bytes};
}

size_t BatchProducer::DataOffset(const Claim& claim) const {
  return kDataOffset + arena_->slot(claim.slot).facts.indices_bytes;
}

std::optional<bool> BatchProducer::TryPublishLayout(const Claim& claim, std::string_view layout) {
  SlotHeader& slot = arena_->slot(claim.slot);
  std::byte* place = Data(claim) + kLayoutOffset;
  for (uint32_t tries = 0; tries <= kLayoutSpins; ++tries) {
    uint32_t state = slot.layout_state.load(std::memory_order_acquire);
    if (IsLayoutReady(state)) {
      // If the lengths differ, so do the first bytes, which hold them.
      return std::memcmp(place, layout.data(), layout.size()) == 0;
    }
    if (state == kLayoutEmpty) {
      if (!slot.layout_state.compare_exchange_strong(state, LayoutWriting(id_), std::memory_order_acq_rel)) {
        continue;
      }
      std::memcpy(place, layout.data(), layout.size());
      slot.layout_state.store(LayoutReady(id_), std::memory_order_release);
      return true;
    }
    HR_ENFORCE(!stopped(), FailedPrecondition, "the loader was shut down");
    HR_ENFORCE(IsLayoutWriting(state), DataLoss, "the state of a batch's layout was written over");
    SpinPause();
  }
  return std::nullopt;
}

bool BatchProducer::PublishLayout(const Claim& claim, std::string_view layout) {
  // Another producer is writing a few hundred bytes. If it is killed meanwhile, the scheduler resets the state once the
  // consumer comes back, which may take minutes.
  for (int64_t pause_ns = kLayoutPauseNs;; pause_ns = std::min(2 * pause_ns, kLongestLayoutPauseNs)) {
    if (const std::optional<bool> published = TryPublishLayout(claim, layout)) {
      return *published;
    }
    const timespec pause{0, pause_ns};
    nanosleep(&pause, nullptr);
  }
}

SideRecord BatchProducer::AllocateSide(const Claim& claim, size_t bytes, size_t leaves_end) {
  SlotHeader& slot = arena_->slot(claim.slot);
  const size_t slot_bytes = arena_->slot_bytes();
  uint64_t used = slot.side_bytes.load(std::memory_order_relaxed);
  uint64_t grown = 0;
  do {
    // After a stray write, any number may be there.
    const uint64_t before = AlignedSide(std::min<uint64_t>(slot_bytes, used));
    const size_t free = slot_bytes - before;
    const size_t room = free - std::min(free, leaves_end);
    HR_ENFORCE(bytes <= room && AlignedSide(bytes) <= room, ResourceExhausted, "a batch with ", used, " and ", bytes,
               " bytes beside its arrays does not fit into a slot of ", slot_bytes, " bytes", LimitHint(slot_bytes));
    grown = before + AlignedSide(bytes);
  } while (!slot.side_bytes.compare_exchange_weak(used, grown, std::memory_order_relaxed));
  return {slot_bytes - grown, bytes};
}

SideRecord* BatchProducer::KeptTable(const Claim& claim) const {
  return reinterpret_cast<SideRecord*>(Data(claim) + arena_->slot_bytes() - KeptTableBytes(claim.rows));
}

// A kept sample: the number of bytes of the message, the number of buffers, the number of bytes of each; the message;
// the buffers.
void BatchProducer::Keep(const Claim& claim, uint32_t row, std::string_view message,
                         const std::vector<std::string_view>& buffers) {
  const size_t head = (2 + buffers.size()) * sizeof(uint64_t);
  size_t bytes = AlignedSide(head + message.size());
  for (const std::string_view buffer : buffers) {
    bytes += AlignedSide(buffer.size());
  }
  const SideRecord place = AllocateSide(claim, bytes, DataOffset(claim));
  std::byte* out = Data(claim) + place.offset;
  auto* sizes = reinterpret_cast<uint64_t*>(out);
  *sizes++ = message.size();
  *sizes++ = buffers.size();
  for (const std::string_view buffer : buffers) {
    *sizes++ = buffer.size();
  }
  Copy(message, out + head);
  out += AlignedSide(head + message.size());
  for (const std::string_view buffer : buffers) {
    Copy(buffer, out);
    out += AlignedSide(buffer.size());
  }
  KeptTable(claim)[row] = place;
}

std::vector<KeptSample> BatchProducer::Kept(const Claim& claim) const {
  std::vector<KeptSample> samples(claim.rows);
  uint64_t bytes = KeptTableBytes(claim.rows);
  for (uint32_t row = 0; row < claim.rows; ++row) {
    const SideRecord place = CopyShared(KeptTable(claim)[row]);
    const uint64_t begin = arena_->slot_bytes() - std::min<uint64_t>(end_.kept_bytes, arena_->slot_bytes());
    bytes += place.bytes;
    HR_ENFORCE(place.offset >= begin && place.offset <= arena_->slot_bytes() &&
                   place.bytes <= arena_->slot_bytes() - place.offset && bytes <= end_.kept_bytes,
               DataLoss, "the place where sample ", row, " of a batch was kept was written over");
    samples[row] = KeptAt(claim, place);
  }
  return samples;
}

KeptSample BatchProducer::KeptAt(const Claim& claim, const SideRecord& place) const {
  std::byte* const begin = Data(claim) + place.offset;
  const auto* sizes = reinterpret_cast<const uint64_t*>(begin);
  // `bytes` more are within what was kept.
  uint64_t left = place.bytes;
  const auto take = [&left](uint64_t bytes) {
    HR_ENFORCE(bytes <= left && AlignedSide(bytes) <= left, DataLoss, "a sample that was kept was written over");
    left -= AlignedSide(bytes);
  };
  take(2 * sizeof(uint64_t));
  const uint64_t message = sizes[0];
  const uint64_t buffers = sizes[1];
  HR_ENFORCE(buffers <= place.bytes / sizeof(uint64_t) && message <= place.bytes, DataLoss,
             "a sample that was kept was written over");
  const size_t head = (2 + buffers) * sizeof(uint64_t);
  left = place.bytes;
  take(head + message);
  KeptSample sample{{begin + head, message}, {}};
  std::byte* in = begin + AlignedSide(head + message);
  for (uint64_t i = 0; i < buffers; ++i) {
    const uint64_t bytes = sizes[2 + i];
    take(bytes);
    sample.buffers.emplace_back(in, bytes);
    in += AlignedSide(bytes);
  }
  return sample;
}

size_t BatchProducer::LeavesLimit(const Claim& claim) const {
  const size_t slot_bytes = arena_->slot_bytes();
  return slot_bytes -
         std::min<uint64_t>(slot_bytes, arena_->slot(claim.slot).side_bytes.load(std::memory_order_relaxed));
}

size_t BatchProducer::MessageRoom(const Claim& claim) const {
  const size_t limit = LeavesLimit(claim);
  const size_t end = LeavesEnd(claim) + kSideAlignment;
  return limit > end ? limit - end : 0;
}

void BatchProducer::DropLayout(const Claim& claim) {
  arena_->slot(claim.slot).layout_state.store(kLayoutEmpty, std::memory_order_relaxed);
}

void BatchProducer::SetRows(const Claim&, uint32_t rows) { end_.rows = rows; }

void BatchProducer::SetStreamEnd(const Claim&, StreamEnd end) { end_.stream_end = end; }

void BatchProducer::Attach(const Claim& claim, std::string_view bytes) {
  const SideRecord place = AllocateSide(claim, bytes.size(), LeavesEnd(claim));
  Copy(bytes, Data(claim) + place.offset);
  end_.attachment = place;
}

size_t BatchProducer::LeavesEnd(const Claim& claim) const {
  const bool has_layout = IsLayoutReady(arena_->slot(claim.slot).layout_state.load(std::memory_order_acquire));
  return has_layout ? LayoutView(Data(claim)).end() : DataOffset(claim);
}

void BatchProducer::AddTime(uint64_t dataset_ns, uint64_t collate_ns, uint64_t copy_ns) {
  AddTo(record_->dataset_ns, dataset_ns);
  AddTo(record_->collate_ns, collate_ns);
  AddTo(record_->copy_ns, copy_ns);
}

void BatchProducer::Complete(const Claim& claim) {
  uint32_t samples = claim.end - claim.begin;
  if (claim.kind == ClaimKind::kCollate) {
    samples = 0;  // counted by the producers that made them
  } else if (claim.kind == ClaimKind::kStream) {
    samples = end_.stream_end == StreamEnd::kBefore ? 0 : end_.rows;
  }
  AddTo(record_->samples, samples);
  MarkDone(claim, false);
}

void BatchProducer::Fail(const Claim& claim, uint32_t row, ProblemKind kind, std::string_view message) {
  SideRecord place{0, 0};
  try {
    // Others may still write rows while the message is there.
    place = AllocateSide(claim, message.size(), LeavesEnd(claim));
    Copy(message, Data(claim) + place.offset);
  } catch (const ResourceExhausted&) {
    place = {0, 0};  // the consumer reports a problem without details
  }
  ChunkProblem problem{place.offset, place.bytes, PlannedRow(claim, row), kind, 0};
  problem.checksum = ChecksumOf(problem, claim.sequence + claim.chunk);
  arena_->slot(claim.slot).problems[claim.chunk] = problem;
  MarkDone(claim, true);
}

void BatchProducer::MarkDone(const Claim& claim, bool failed) {
  SlotHeader& slot = arena_->slot(claim.slot);
  const uint64_t now = MonotonicNanoseconds();
  AddTo(record_->work_ns, now - claim.start_ns);
  if (trace_) {
    trace_.Write({static_cast<TraceKind>(claim.kind), id_, claim.start_ns, now, claim.epoch, claim.batch, claim.stream,
                  claim.slot, claim.begin, claim.end});
    slot.done_ns.store(now, std::memory_order_relaxed);
  }
  if (MakesBatch(claim.kind)) {
    end_.checksum = ChecksumOf(end_, claim.sequence);
    slot.end = end_;
  }
  record_->busy.store(0, std::memory_order_relaxed);
  uint64_t word = ChunkWord(claim.sequence, kChunkClaimed, id_);
  if (claim.chunk >= kMaxChunks || !slot.chunk_words[claim.chunk].compare_exchange_strong(
                                       word, ChunkWord(claim.sequence, failed ? kChunkFailed : kChunkDone, id_))) {
    return;  // the scheduler has taken it from this producer
  }
  // From here on the slot may be reused; its words then belong to another batch and do not count as done for this one.
  const uint32_t chunks = std::min(claim.chunks, kMaxChunks);
  ChunksState parts{true, false};  // of a collation
  if (claim.kind != ClaimKind::kCollate) {
    parts = LookAtChunks(slot, claim.sequence, claim.kind == ClaimKind::kItems ? chunks - 1 : chunks, claim.chunk + 1);
  }
  if (!parts.done) {
    return;
  }
  if (claim.kind == ClaimKind::kItems && !parts.failed) {
    // The collation can be claimed now. This producer may have passed it over, and so may all the others.
    if (id_ < constants_.collators) {
      scan_from_ = std::min(scan_from_, claim.sequence);
    } else {
      SignalRescan(constants_.collators < 32 ? SleeperBit(constants_.collators) - 1 : kAllSleepers);
    }
    return;
  }
  // The producer that completes the batch that the consumer waits for wakes it. If, with in_order, another batch is the
  // oldest at this moment, the consumer looks at this one after taking that one, before it sleeps. If a kill prevents
  // the wake-up, the consumer's watch on the process makes up for it.
  if ((constants_.in_order == 0 || claim.sequence <= control_->oldest.load()) &&
      control_->consumer_sleeps.exchange(0) != 0) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(completion_fd_, &one, sizeof(one));
  }
}

void BatchProducer::SignalRescan(uint32_t sleepers) {
  control_->rescan.fetch_add(1, std::memory_order_release);
  control_->work_signal.fetch_add(1);
  if (AnySleeper(*control_)) {
    FutexWake(control_->work_signal, INT_MAX, sleepers);
  }
}

}  // namespace headrace::shared_memory
