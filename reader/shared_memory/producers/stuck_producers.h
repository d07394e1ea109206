// Finds producers that live, but will never claim anything again: a stray write has made one go through four billion
// rows, say, or has taken its claim away, so that nothing in the arena shows that it is at work.
//
// The argument. While there is work that a producer may claim, and every check has all producers look for it
// (HaveAllLookAgain), one that has claimed before is either at a claim, which the words of its batch show, or on its
// way from one claim to the next, which takes milliseconds. One that is seen at no claim in many checks in a row does
// neither. Two reservations: one that has not claimed since its process began may still be starting, however long that
// takes; and threads of one process wait for each other (the interpreter's lock), so a process counts as stuck only if
// none of its producers is at a claim. A process that was stopped (SIGSTOP) for that long counts as stuck, too; its
// successor makes the same batches.
//
// Thread-safety: none; BatchScheduler guards it with its mutex.
#pragma once

#include <cstdint>
#include <vector>

#include "reader/shared_memory/arena/control_block.h"

namespace headrace::shared_memory {

// In how many checks in a row something must be as it never stays, before the only explanation left is a stray write.
inline constexpr uint32_t kStuckChecks = 10;

// What one check has seen.
struct WorkSeen {
  WorkSeen() : at_claim(kMaxProducers), may_claim(kMaxProducers) {}

  std::vector<bool> at_claim;   // by producer: a chunk's word says that it has claimed it
  std::vector<bool> may_claim;  // by producer: there is a chunk that only it may claim
  bool anybody_may_claim = false;
  uint32_t collators_may_claim = 0;  // producers below this may claim a collation
};

class StuckProducers {
 public:
  StuckProducers() : claims_before_(kMaxProducers), checks_(kMaxProducers) {}

  // The producer's process has ended, and whichever has its number next begins at this count. The first one of each
  // number begins at zero.
  void Begin(uint32_t id, const ProducerRecord& record) {
    claims_before_[id] = record.claims.load(std::memory_order_relaxed);
    checks_[id] = 0;
  }

  // Notes what a check has seen of the producers of one process; returns whether they are stuck.
  bool Note(const std::vector<uint32_t>& process, const ProducerRecord* records, const WorkSeen& seen) {
    bool stuck = !process.empty();
    for (const uint32_t id : process) {
      const bool has_claimed = records[id].claims.load(std::memory_order_relaxed) != claims_before_[id];
      const bool has_work = seen.anybody_may_claim || id < seen.collators_may_claim || seen.may_claim[id];
      checks_[id] = has_claimed && has_work && !seen.at_claim[id] ? checks_[id] + 1 : 0;
      stuck = stuck && checks_[id] > kStuckChecks;
    }
    return stuck;
  }

 private:
  // By producer.
  std::vector<uint64_t> claims_before_;
  std::vector<uint32_t> checks_;  // in a row in which it was seen at nothing, and had work
};

}  // namespace headrace::shared_memory
