// The producers of a scheduler, by number: which are watched, which were asked to end, which have died without the
// caller knowing yet. Knows nothing of batches.
//
// The life of a number: Watch, when a process with it has started; Retire, if it is to end; its process ends, and
// TakeEnded reports that. Then Clear makes the number free for a successor, unless the producer had retired, in which
// case a successor may have it already.
//
// Thread-safety: any thread may call fd(); BatchScheduler's mutex guards everything else.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/export.h"
#include "reader/shared_memory/arena/control_block.h"
#include "reader/shared_memory/producers/producer_death.h"
#include "reader/shared_memory/producers/producer_watch.h"
#include "reader/shared_memory/producers/stuck_producers.h"

namespace headrace::shared_memory {

class HEADRACE_API ProducerTable {
 public:
  explicit ProducerTable(ControlBlock& control);

  // Throws OutOfRange for a number that no producer can have.
  static void CheckId(uint32_t id);

  // Above the numbers of all producers so far; at least 1.
  uint32_t end() const { return end_; }
  // There may be producers with lower numbers than this.
  void GrowTo(uint32_t end);

  // Readable while a watched process has ended that TakeEnded has not returned.
  int fd() const { return watch_.fd(); }
  // See BatchScheduler::WatchProducer.
  void Watch(uint32_t id, int pidfd, uint32_t threads);
  // Asks a producer to end, and forgets its death if that has not been reported yet. Wake it afterwards.
  void Retire(uint32_t id);
  bool IsRetired(uint32_t id) const { return retired_[id]; }
  // Whether a producer that was asked to end has said that it holds nothing and does nothing any more.
  bool HasRetired(uint32_t id) const;
  // Kills the process of a producer for what it has written; does nothing if it is not watched.
  void KillCorrupt(uint32_t id);
  // Kills the processes whose producers are stuck (StuckProducers), by what one check has seen.
  void KillStuck(const WorkSeen& seen);

  // The watched producers whose processes have ended since the last call.
  std::vector<uint32_t> TakeEnded() { return watch_.TakeEnded(); }
  // Makes the number of a producer that is known to be dead free for a successor, which may start at once. Returns
  // whether it was killed for what it had written. The caller has freed its claims.
  bool Clear(uint32_t id);

  // Keeps a death for TakeDeaths.
  void Report(const ProducerDeath& death);
  bool has_deaths() const { return !deaths_.empty(); }
  // Returns whether there are deaths of which nobody was told; from now on somebody was.
  bool TellOfDeaths();
  std::vector<ProducerDeath> TakeDeaths();

 private:
  ControlBlock& control_;
  ProducerWatch watch_;
  StuckProducers stuck_;
  uint32_t end_ = 1;
  std::vector<bool> retired_;  // by producer
  std::vector<bool> corrupt_;  // by producer: killed for what it wrote
  std::vector<ProducerDeath> deaths_;
  bool untold_ = false;
};

}  // namespace headrace::shared_memory
