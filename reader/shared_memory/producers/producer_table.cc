#include "reader/shared_memory/producers/producer_table.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "framework/errors.h"

namespace headrace::shared_memory {

ProducerTable::ProducerTable(ControlBlock& control)
    : control_(control), retired_(kMaxProducers), corrupt_(kMaxProducers) {}

void ProducerTable::CheckId(uint32_t id) {
  HR_ENFORCE(id < kMaxProducers, OutOfRange, "producer ", id, " is beyond the limit of ", kMaxProducers);
}

void ProducerTable::GrowTo(uint32_t end) { end_ = std::max(end_, end); }

void ProducerTable::Watch(uint32_t id, int pidfd, uint32_t threads) {
  for (uint32_t each = id; each < id + threads; ++each) {
    if (!watch_.Watches(each)) {
      continue;
    }
    HR_ENFORCE(retired_[each], AlreadyExists, "producer ", each, " is watched already");
    // Its successor may have claims by now, so it is too late to look for those of the old one.
    HR_ENFORCE(watch_.HasEnded(each) && HasRetired(each), FailedPrecondition, "producer ", each,
               " was retired and has not ended, or was killed then: its id is free after Reclaim");
    watch_.Remove(each);
  }
  watch_.Add(id, threads, pidfd);
  for (uint32_t each = id; each < id + threads; ++each) {
    if (retired_[each]) {
      stuck_.Begin(each, control_.producers[each]);
    }
    retired_[each] = false;
    corrupt_[each] = false;
    control_.producers[each].retirement.store(Retirement::kServes, std::memory_order_relaxed);
  }
  GrowTo(id + threads);
}

void ProducerTable::Retire(uint32_t id) {
  retired_[id] = true;
  std::erase_if(deaths_, [id](const ProducerDeath& death) { return death.producer == id; });
  untold_ = untold_ && !deaths_.empty();
  control_.producers[id].retirement.store(Retirement::kToRetire);
}

bool ProducerTable::HasRetired(uint32_t id) const {
  return control_.producers[id].retirement.load(std::memory_order_acquire) == Retirement::kRetired;
}

void ProducerTable::KillCorrupt(uint32_t id) {
  if (id < kMaxProducers && watch_.Watches(id)) {
    corrupt_[id] = true;
    watch_.Kill(id);
  }
}

void ProducerTable::KillStuck(const WorkSeen& seen) {
  for (const std::vector<uint32_t>& process : watch_.Processes()) {
    if (stuck_.Note(process, control_.producers, seen) && !retired_[process.front()]) {
      KillCorrupt(process.front());
    }
  }
}

bool ProducerTable::Clear(uint32_t id) {
  watch_.Remove(id);
  retired_[id] = false;
  ProducerRecord& record = control_.producers[id];
  // Here, since no successor has started yet: one may claim before it is watched.
  stuck_.Begin(id, record);
  record.busy.store(0, std::memory_order_relaxed);
  record.retirement.store(Retirement::kServes, std::memory_order_relaxed);
  control_.sleepers[id / 64].fetch_and(~(uint64_t{1} << id % 64));
  const bool corrupt = corrupt_[id];
  corrupt_[id] = false;
  return corrupt;
}

void ProducerTable::Report(const ProducerDeath& death) {
  deaths_.push_back(death);
  untold_ = true;
}

bool ProducerTable::TellOfDeaths() { return std::exchange(untold_, false); }

std::vector<ProducerDeath> ProducerTable::TakeDeaths() {
  untold_ = false;
  return std::exchange(deaths_, {});
}

}  // namespace headrace::shared_memory
