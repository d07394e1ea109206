// A batch that is open and not yet taken, as the scheduler knows it: its own facts, and what it has read from the slot,
// each item once.
//
// Thread-safety: none; BatchScheduler guards its batches with its mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reader/shared_memory/arena/slot.h"
#include "reader/shared_memory/arena/trace.h"

namespace headrace::shared_memory {

// Why a batch has no rows.
struct BatchProblem {
  ProblemKind kind = ProblemKind::kNone;
  uint32_t row = 0;  // among all that were planned
  std::string message;
  std::optional<uint32_t> author = {};  // kFailed: the producer that reported it
};

struct OpenBatch {
  enum class State {
    kMaking,   // chunks are missing
    kDone,     // everything that it needs is done
    kInvalid,  // a chunk has a word that no producer writes: `invalid_chunk`
  };

  BatchFacts facts{};
  std::vector<uint32_t> excluded = {};  // rows, in ascending order
  std::string indices = {};             // kExplicit: of its rows, as they were supplied
  uint32_t slot = 0;
  bool has_slot = true;    // false: it has failed, and its slot is no longer its own
  bool remake = false;     // it is closed, and will be made again once no producer is at work on it
  bool settled = false;    // kStream: it is done, and what it reports about its stream is noted
  bool concluded = false;  // it is done, and its producers' report has been read: problem, end
  BatchProblem problem = {};
  BatchEnd end{};  // if one producer made it alone

  uint32_t done_chunks = 0;  // this many, counted from the first, are done
  bool any_failed = false;   // one of those has failed
  bool collated = false;     // split: its collation is done, too
  uint32_t invalid_chunk = 0;
  uint32_t stuck_checks = 0;  // consecutive checks in which nobody seemed to work on what it waits for

  // Once it is done: whether one producer, the claimant of its last chunk, made the batch as it is.
  bool made_alone() const { return MakesBatch(facts.kind) || collated; }

  // Looks at the chunks not yet seen done. Sequentially consistent with the stores that mark them done.
  State Look(const SlotHeader& header) {
    for (; done_chunks < facts.RowChunks(); ++done_chunks) {
      const uint64_t word = header.chunk_words[done_chunks].load();
      if (!IsDone(word, facts.sequence) || !IsValid(word, facts.sequence)) {
        return Missing(word, done_chunks);
      }
      any_failed = any_failed || IsFailed(word);
    }
    if (facts.split() && !any_failed && !collated) {
      const uint64_t word = header.chunk_words[facts.LastChunk()].load();
      if (!IsDone(word, facts.sequence) || !IsValid(word, facts.sequence)) {
        return Missing(word, facts.LastChunk());
      }
      collated = true;
      any_failed = IsFailed(word);
    }
    return State::kDone;
  }

  // Whether Look would return kDone.
  bool IsDoneNow(const SlotHeader& header) const {
    bool failed = any_failed;
    for (uint32_t chunk = done_chunks; chunk < facts.RowChunks(); ++chunk) {
      const uint64_t word = header.chunk_words[chunk].load(std::memory_order_relaxed);
      if (!IsDone(word, facts.sequence) || !IsValid(word, facts.sequence)) {
        return false;
      }
      failed = failed || IsFailed(word);
    }
    const uint64_t last = header.chunk_words[facts.LastChunk()].load(std::memory_order_relaxed);
    return !facts.split() || failed || collated || (IsDone(last, facts.sequence) && IsValid(last, facts.sequence));
  }

  // For a batch whose claims are closed: whether no producer is at work on it.
  bool IsLetGo(const SlotHeader& header) const {
    for (uint32_t chunk = 0; chunk < facts.chunks; ++chunk) {
      if (IsClaimed(header.chunk_words[chunk].load(), facts.sequence)) {
        return false;
      }
    }
    return true;
  }

 private:
  State Missing(uint64_t word, uint32_t chunk) {
    invalid_chunk = chunk;
    return IsValid(word, facts.sequence) ? State::kMaking : State::kInvalid;
  }
};

// What the timeline of a loader shows of a batch.
inline TraceEvent BatchEvent(TraceKind kind, uint32_t slot, const BatchFacts& facts, uint64_t ns) {
  return {kind, TraceEvent::kScheduler, ns, ns, facts.epoch, facts.batch, facts.stream, slot, 0, facts.rows};
}

}  // namespace headrace::shared_memory
