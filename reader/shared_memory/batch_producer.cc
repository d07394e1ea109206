#include "reader/shared_memory/batch_producer.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "framework/errors.h"
#include "reader/shared_memory/futex.h"

namespace headrace::shared_memory {

namespace {

// Also of nothing, from nowhere.
void Copy(std::string_view bytes, std::byte* out) {
  if (!bytes.empty()) {
    std::memcpy(out, bytes.data(), bytes.size());
  }
}

constexpr size_t Aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

bool FirstDone(const SlotHeader& slot, uint32_t chunks) {
  for (uint32_t base = 0; base < chunks; base += 64) {
    const uint32_t count = std::min(chunks - base, 64U);
    const uint64_t full = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    if ((slot.done[base / 64].load(std::memory_order_seq_cst) & full) != full) {
      return false;
    }
  }
  return true;
}

bool IsSplit(const SlotHeader& slot) {
  return slot.kind.load(std::memory_order_relaxed) == static_cast<uint32_t>(ClaimKind::kItems);
}

}  // namespace

bool AllDone(const SlotHeader& slot) {
  const uint32_t chunks = slot.chunks.load(std::memory_order_relaxed);
  if (!IsSplit(slot)) {
    return FirstDone(slot, chunks);
  }
  return FirstDone(slot, chunks - 1) &&
         (slot.items_failed.load(std::memory_order_relaxed) != 0 || FirstDone(slot, chunks));
}

BatchProducer::BatchProducer(std::shared_ptr<Arena> arena, uint32_t id, int completion_fd)
    : arena_(std::move(arena)), control_(&arena_->control()), record_(nullptr), id_(id), completion_fd_(completion_fd) {
  HR_ENFORCE(id < kMaxProducers, OutOfRange, "producer ", id, " is beyond the limit of ", kMaxProducers);
  record_ = &control_->producers[id];
  trace_ = arena_->trace(id);
}

bool BatchProducer::stopped() const { return control_->stop.load(std::memory_order_relaxed) != 0; }

std::optional<Claim> BatchProducer::TryClaim() {
  const uint32_t rescan = control_->rescan.load(std::memory_order_acquire);
  const uint64_t oldest = control_->oldest.load(std::memory_order_acquire);
  if (rescan != rescan_seen_ || scan_from_ < oldest) {
    rescan_seen_ = rescan;
    scan_from_ = oldest;
  }
  const uint64_t next = control_->next.load(std::memory_order_acquire);
  for (; scan_from_ < next; ++scan_from_) {
    if (std::optional<Claim> claim = TryClaimBatch(scan_from_)) {
      return claim;
    }
  }
  return std::nullopt;
}

std::optional<Claim> BatchProducer::TryClaimBatch(uint64_t sequence) {
  const uint32_t index = control_->ring[sequence % kMaxSlots].load(std::memory_order_relaxed);
  SlotHeader& slot = arena_->slot(index);
  if (slot.sequence.load(std::memory_order_acquire) != sequence) {
    return std::nullopt;  // taken by the consumer already
  }
  // Of this batch or of a later one in the same slot: then all of its chunks are claimed, and no exchange succeeds.
  const uint32_t maker = slot.maker.load(std::memory_order_relaxed);
  if (maker != kAnybody && maker != id_) {
    return std::nullopt;
  }
  const uint32_t chunks = std::min(slot.chunks.load(std::memory_order_relaxed), kMaxChunks);
  const bool collatable = !IsSplit(slot) || MayCollate(slot, chunks);
  const uint64_t unclaimed = ClaimWord(sequence, kUnclaimed);
  const uint32_t cursor = std::min(slot.cursor.load(std::memory_order_relaxed), chunks);
  // The cursor is a hint: chunks of a producer that died are before it.
  for (uint32_t step = 0; step < chunks; ++step) {
    const uint32_t chunk = cursor + step < chunks ? cursor + step : cursor + step - chunks;
    std::atomic<uint64_t>& word = slot.claims[chunk];
    uint64_t expected = unclaimed;
    if (word.load(std::memory_order_relaxed) != unclaimed || (!collatable && chunk + 1 == chunks) ||
        !word.compare_exchange_strong(expected, ClaimWord(sequence, id_ + 1), std::memory_order_acq_rel,
                                      std::memory_order_relaxed)) {
      continue;
    }
    // The batch cannot be closed before this chunk is done: from here on the header is stable.
    slot.cursor.store(chunk + 1, std::memory_order_relaxed);
    record_->row.store(kNoRow, std::memory_order_relaxed);
    record_->sequence.store(sequence, std::memory_order_release);
    Claim claim{};
    claim.slot = index;
    claim.chunk = chunk;
    claim.kind = static_cast<ClaimKind>(slot.kind.load(std::memory_order_relaxed));
    claim.begin = chunk * slot.chunk_rows;
    claim.end = std::min(claim.begin + slot.chunk_rows, slot.rows);
    if (claim.kind == ClaimKind::kItems && chunk + 1 == slot.chunks.load(std::memory_order_relaxed)) {
      claim.kind = ClaimKind::kCollate;
      claim.begin = 0;
      claim.end = slot.rows;
      slot.kept_bytes = slot.side_bytes.load(std::memory_order_relaxed);
    }
    record_->busy.store(1, std::memory_order_release);
    record_->claims.fetch_add(1, std::memory_order_relaxed);
    if (claim.kind == ClaimKind::kWhole) {
      claim.excluded = slot.excluded_count;
      claim.end -= claim.excluded;
    }
    claim.rows = slot.rows - claim.excluded;
    claim.stream = slot.stream;
    claim.deaths = slot.deaths[chunk].load(std::memory_order_relaxed);
    claim.sequence = sequence;
    claim.epoch = slot.epoch;
    claim.batch = slot.batch;
    claim.first_position = slot.first_position;
    claim.start_ns = MonotonicNanoseconds();
    if (MakesBatch(claim.kind)) {
      // A claimant that died may have said something of the batch.
      slot.made_rows = claim.rows;
      slot.stream_end = static_cast<uint32_t>(StreamEnd::kGoesOn);
      slot.attachment = {0, 0};
    }
    return claim;
  }
  return std::nullopt;
}

bool BatchProducer::MayCollate(const SlotHeader& slot, uint32_t chunks) const {
  return id_ < control_->collators && FirstDone(slot, chunks - 1) &&
         slot.items_failed.load(std::memory_order_relaxed) == 0;
}

std::optional<Claim> BatchProducer::WaitForClaim(int64_t timeout_ns) {
  const uint64_t begin = MonotonicNanoseconds();
  const int64_t awake_ns = spin_.Start(control_->spin_ns.load(std::memory_order_relaxed));
  for (;;) {
    // The signal first: whatever is said before it grows once more, a stop included, is seen below.
    const uint32_t signal = control_->work_signal.load(std::memory_order_acquire);
    if (stopped() || Retired()) {
      return std::nullopt;
    }
    if (std::optional<Claim> claim = TryClaim()) {
      spin_.Finish(static_cast<int64_t>(claim->start_ns - begin));
      record_->wait_ns.fetch_add(claim->start_ns - begin, std::memory_order_relaxed);
      return claim;
    }
    const auto waited = static_cast<int64_t>(MonotonicNanoseconds() - begin);
    if (timeout_ns >= 0 && waited >= timeout_ns) {
      return std::nullopt;
    }
    if (waited < awake_ns) {
      SpinPause();
      continue;
    }
    const int64_t left = timeout_ns < 0 ? -1 : timeout_ns - waited;
    // Sequentially consistent with the scheduler's "signal, then look for sleepers": one of the two sees the other.
    control_->work_sleepers.fetch_add(1);
    if (control_->work_signal.load() == signal) {
      FutexWait(control_->work_signal, signal, left, SleeperBit(id_));
    }
    control_->work_sleepers.fetch_sub(1);
  }
}

bool BatchProducer::Retired() {
  if (record_->retirement.load(std::memory_order_relaxed) != kToRetire) {
    return false;
  }
  // First the others look at what only this one was going to look at: whoever is killed between the two is repaired as
  // any other, whereas one that has said kRetired is not looked at any more.
  SignalRescan(kAllSleepers);
  record_->retirement.store(kRetired, std::memory_order_release);
  return true;
}

uint64_t BatchProducer::IndexAt(const Claim& claim, uint32_t row) {
  row = PlannedRow(claim, row);
  const uint64_t position = claim.first_position + row * control_->stride;
  switch (static_cast<IndexOrder>(control_->order)) {
    case IndexOrder::kExplicit:
      return reinterpret_cast<const uint64_t*>(Data(claim) + kDataOffset)[row];
    case IndexOrder::kShuffled:
      if (!permutation_ || permutation_epoch_ != claim.epoch) {
        permutation_.emplace(control_->dataset_length, control_->seed, claim.epoch);
        permutation_epoch_ = claim.epoch;
      }
      return (*permutation_)(position);
    case IndexOrder::kSequential:
    case IndexOrder::kStream:
      break;
  }
  return position;
}

std::string_view BatchProducer::PickledIndices(const Claim& claim) const {
  const SlotHeader& slot = arena_->slot(claim.slot);
  if (slot.pickled_indices == 0) {
    return {};
  }
  return {reinterpret_cast<const char*>(Data(claim) + kDataOffset), slot.indices_bytes};
}

size_t BatchProducer::DataOffset(const Claim& claim) const {
  return kDataOffset + arena_->slot(claim.slot).indices_bytes;
}

bool BatchProducer::PublishLayout(const Claim& claim, std::string_view layout) {
  SlotHeader& slot = arena_->slot(claim.slot);
  std::byte* place = Data(claim) + kLayoutOffset;
  for (;;) {
    uint32_t state = slot.layout_state.load(std::memory_order_acquire);
    if (state == kLayoutReady) {
      return slot.layout_bytes == layout.size() && std::memcmp(place, layout.data(), layout.size()) == 0;
    }
    if (state == kLayoutEmpty &&
        slot.layout_state.compare_exchange_strong(state, kLayoutWriting + id_, std::memory_order_acq_rel)) {
      std::memcpy(place, layout.data(), layout.size());
      slot.layout_bytes = static_cast<uint32_t>(layout.size());
      slot.layout_state.store(kLayoutReady, std::memory_order_release);
      return true;
    }
    HR_ENFORCE(!stopped(), FailedPrecondition, "the loader was shut down");
    // Another producer writes a few hundred bytes; if it was killed doing so, the scheduler resets the state.
    const timespec pause{0, 20'000};
    nanosleep(&pause, nullptr);
  }
}

SideRecord BatchProducer::AllocateSide(const Claim& claim, size_t bytes, size_t leaves_end) {
  SlotHeader& slot = arena_->slot(claim.slot);
  const uint64_t taken = Aligned(bytes);
  const uint64_t used = slot.side_bytes.fetch_add(taken, std::memory_order_relaxed) + taken;
  HR_ENFORCE(used + leaves_end <= arena_->slot_bytes(), ResourceExhausted, "a batch with ", used,
             " bytes beside its arrays does not fit into a slot of ", arena_->slot_bytes(), " bytes");
  return {arena_->slot_bytes() - used, bytes};
}

SideRecord* BatchProducer::KeptTable(const Claim& claim) const {
  return reinterpret_cast<SideRecord*>(Data(claim) + arena_->slot_bytes() - KeptTableBytes(claim.rows));
}

// A kept sample: the number of bytes of the message, the number of buffers, the number of bytes of each; the message;
// the buffers.
void BatchProducer::Keep(const Claim& claim, uint32_t row, std::string_view message,
                         const std::vector<std::string_view>& buffers) {
  const size_t head = (2 + buffers.size()) * sizeof(uint64_t);
  size_t bytes = Aligned(head + message.size());
  for (const std::string_view buffer : buffers) {
    bytes += Aligned(buffer.size());
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
  out += Aligned(head + message.size());
  for (const std::string_view buffer : buffers) {
    Copy(buffer, out);
    out += Aligned(buffer.size());
  }
  KeptTable(claim)[row] = place;
}

KeptSample BatchProducer::Kept(const Claim& claim, uint32_t row) const {
  std::byte* in = Data(claim) + KeptTable(claim)[row].offset;
  const auto* sizes = reinterpret_cast<const uint64_t*>(in);
  const size_t head = (2 + sizes[1]) * sizeof(uint64_t);
  KeptSample sample{{in + head, sizes[0]}, {}};
  in += Aligned(head + sizes[0]);
  for (uint64_t i = 0; i < sizes[1]; ++i) {
    sample.buffers.emplace_back(in, sizes[2 + i]);
    in += Aligned(sizes[2 + i]);
  }
  return sample;
}

size_t BatchProducer::LeavesLimit(const Claim& claim) const {
  return arena_->slot_bytes() - arena_->slot(claim.slot).side_bytes.load(std::memory_order_relaxed);
}

size_t BatchProducer::MessageRoom(const Claim& claim) const {
  const size_t limit = LeavesLimit(claim);
  const size_t end = LeavesEnd(claim) + Aligned(1);
  return limit > end ? limit - end : 0;
}

void BatchProducer::DropLayout(const Claim& claim) {
  arena_->slot(claim.slot).layout_state.store(kLayoutEmpty, std::memory_order_relaxed);
}

void BatchProducer::SetRows(const Claim& claim, uint32_t rows) { arena_->slot(claim.slot).made_rows = rows; }

void BatchProducer::SetStreamEnd(const Claim& claim, StreamEnd end) {
  arena_->slot(claim.slot).stream_end = static_cast<uint32_t>(end);
}

void BatchProducer::Attach(const Claim& claim, std::string_view bytes) {
  const SideRecord place = AllocateSide(claim, bytes.size(), LeavesEnd(claim));
  Copy(bytes, Data(claim) + place.offset);
  arena_->slot(claim.slot).attachment = place;
}

size_t BatchProducer::LeavesEnd(const Claim& claim) const {
  const bool has_layout = arena_->slot(claim.slot).layout_state.load(std::memory_order_acquire) == kLayoutReady;
  return has_layout ? LayoutView(Data(claim)).end() : DataOffset(claim);
}

void BatchProducer::AddTime(uint64_t dataset_ns, uint64_t collate_ns, uint64_t copy_ns) {
  record_->dataset_ns.fetch_add(dataset_ns, std::memory_order_relaxed);
  record_->collate_ns.fetch_add(collate_ns, std::memory_order_relaxed);
  record_->copy_ns.fetch_add(copy_ns, std::memory_order_relaxed);
}

void BatchProducer::Complete(const Claim& claim) {
  SlotHeader& slot = arena_->slot(claim.slot);
  slot.problems[claim.chunk].kind = kNoProblem;
  uint32_t samples = claim.end - claim.begin;
  if (claim.kind == ClaimKind::kCollate) {
    samples = 0;  // counted by those who made them
  } else if (claim.kind == ClaimKind::kStream) {
    samples = slot.stream_end == static_cast<uint32_t>(StreamEnd::kBefore) ? 0 : slot.made_rows;
  }
  record_->samples.fetch_add(samples, std::memory_order_relaxed);
  MarkDone(claim);
}

void BatchProducer::Fail(const Claim& claim, uint32_t row, uint32_t kind, std::string_view message) {
  ChunkProblem& problem = arena_->slot(claim.slot).problems[claim.chunk];
  SideRecord place{0, 0};
  try {
    // Other rows may be written while the message is there.
    place = AllocateSide(claim, message.size(), LeavesEnd(claim));
    Copy(message, Data(claim) + place.offset);
  } catch (const ResourceExhausted&) {
    place = {0, 0};  // the consumer reports a problem without details
  }
  problem = {place.offset, place.bytes, PlannedRow(claim, row), kind};
  if (claim.kind == ClaimKind::kItems) {
    arena_->slot(claim.slot).items_failed.store(1, std::memory_order_relaxed);
  }
  MarkDone(claim);
}

void BatchProducer::MarkDone(const Claim& claim) {
  SlotHeader& slot = arena_->slot(claim.slot);
  const uint64_t now = MonotonicNanoseconds();
  record_->work_ns.fetch_add(now - claim.start_ns, std::memory_order_relaxed);
  if (trace_) {
    trace_.Write({static_cast<TraceKind>(claim.kind), id_, claim.start_ns, now, claim.epoch, claim.batch, claim.stream,
                  claim.slot, claim.begin, claim.end});
    slot.done_ns.store(now, std::memory_order_relaxed);
  }
  record_->busy.store(0, std::memory_order_relaxed);
  slot.done[claim.chunk / 64].fetch_or(uint64_t{1} << (claim.chunk % 64), std::memory_order_seq_cst);
  // From here on the slot may be reused: what is read of it may be another batch's, and a wake too many is harmless.
  if (claim.kind == ClaimKind::kItems && FirstDone(slot, slot.chunks.load(std::memory_order_relaxed) - 1)) {
    // The collation can be claimed. This producer may have passed it over, and so may all the others.
    if (id_ < control_->collators) {
      scan_from_ = std::min(scan_from_, claim.sequence);
    } else {
      SignalRescan(control_->collators < 32 ? SleeperBit(control_->collators) - 1 : kAllSleepers);
    }
  }
  // Who completes a batch that the consumer waits for wakes it. If, in order, another was the oldest just now, the
  // consumer looks at this one after it has taken that one, before it sleeps. A wake that a kill prevents is made up
  // for by the consumer's watch on the process.
  if (AllDone(slot) && (control_->in_order == 0 || claim.sequence <= control_->oldest.load()) &&
      control_->consumer_sleeps.exchange(0) != 0) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(completion_fd_, &one, sizeof(one));
  }
}

void BatchProducer::SignalRescan(uint32_t sleepers) {
  control_->rescan.fetch_add(1, std::memory_order_release);
  control_->work_signal.fetch_add(1);
  if (control_->work_sleepers.load() != 0) {
    FutexWake(control_->work_signal, INT_MAX, sleepers);
  }
}

}  // namespace headrace::shared_memory
