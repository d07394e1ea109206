// A batch that was opened and has not been taken, as the scheduler knows it: its own facts, and what it has seen of the
// slot, each thing once.
//
// Thread-safety: none; BatchScheduler guards its batches with its mutex.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reader/shared_memory/slot.h"

namespace headrace::shared_memory {

// Why a batch has no rows.
struct BatchProblem {
  ProblemKind kind = ProblemKind::kNone;
  uint32_t row = 0;  // among all that were planned
  std::string message;
};

struct OpenBatch {
  enum class State {
    kMaking,   // chunks are missing
    kDone,     // all that it needs is done
    kInvalid,  // a chunk's word is none that anybody could have written: `invalid_chunk`
  };

  BatchFacts facts{};
  std::vector<uint32_t> excluded = {};  // rows, in ascending order
  uint32_t slot = 0;
  bool has_slot = true;    // else it has failed, and its slot is not its own any more
  bool remake = false;     // it is closed, and to be made anew once nobody is at work on it any more
  bool settled = false;    // kStream: it is done, and what it says of its stream was noted
  bool concluded = false;  // it is done, and what its producers say of it was read: problem, end
  BatchProblem problem = {};
  BatchEnd end{};  // if it was made by one producer alone

  uint32_t done_chunks = 0;  // so many, from the first on, are done
  bool any_failed = false;   // of those
  bool collated = false;     // split: its collation is done, too
  uint32_t invalid_chunk = 0;
  uint32_t stuck_checks = 0;  // so often, in a row, nobody seemed to be at what it waits for

  // Once it is done: whether one producer has made the batch as it is, the claimant of its last chunk.
  bool made_alone() const { return MakesBatch(facts.kind) || collated; }

  // Looks at the chunks that it has not seen done yet. Sequentially consistent with their way to done.
  State Look(const SlotHeader& header) {
    for (; done_chunks < facts.RowChunks(); ++done_chunks) {
      const uint64_t word = header.claims[done_chunks].load();
      if (!IsDone(word, facts.sequence) || !IsValid(word, facts.sequence)) {
        return Missing(word, done_chunks);
      }
      any_failed = any_failed || (word & kFailedFlag) != 0;
    }
    if (facts.split() && !any_failed && !collated) {
      const uint64_t word = header.claims[facts.LastChunk()].load();
      if (!IsDone(word, facts.sequence) || !IsValid(word, facts.sequence)) {
        return Missing(word, facts.LastChunk());
      }
      collated = true;
      any_failed = (word & kFailedFlag) != 0;
    }
    return State::kDone;
  }

  // Whether nobody is at work on it: for a batch of which nothing can be claimed any more.
  bool IsLetGo(const SlotHeader& header) const {
    for (uint32_t chunk = 0; chunk < facts.chunks; ++chunk) {
      if (IsClaimed(header.claims[chunk].load(), facts.sequence)) {
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

}  // namespace headrace::shared_memory
