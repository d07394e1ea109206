#include "reader/shared_memory/arena/trace.h"

namespace headrace::shared_memory {
namespace {

constexpr uint64_t Pair(uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; }
constexpr uint32_t Low(uint64_t pair) { return static_cast<uint32_t>(pair); }
constexpr uint32_t High(uint64_t pair) { return static_cast<uint32_t>(pair >> 32); }

}  // namespace

TraceRing::TraceRing(std::byte* memory, uint32_t capacity)
    : words_(capacity == 0 ? nullptr : reinterpret_cast<Word*>(memory)), capacity_(capacity) {}

void TraceRing::Write(const TraceEvent& event) {
  if (words_ == nullptr) {
    return;
  }
  const uint64_t count = words_[0].load(std::memory_order_relaxed);
  const uint64_t words[kWords] = {event.begin_ns,
                                  event.end_ns,
                                  event.epoch,
                                  event.batch,
                                  Pair(static_cast<uint32_t>(event.kind), event.stream),
                                  Pair(event.slot, 0),
                                  Pair(event.begin_row, event.end_row),
                                  0};
  Word* place = EventAt(count);
  for (size_t i = 0; i < kWords; ++i) {
    // A reader of such a word then sees a count that includes at least this event.
    place[i].store(words[i], std::memory_order_release);
  }
  words_[0].store(count + 1, std::memory_order_release);
}

void TraceRing::Read(uint32_t producer, std::vector<TraceEvent>* out) const {
  if (words_ == nullptr) {
    return;
  }
  const uint64_t end = words_[0].load(std::memory_order_acquire);
  for (uint64_t index = end > capacity_ ? end - capacity_ : 0; index < end; ++index) {
    uint64_t words[kWords];
    const Word* place = EventAt(index);
    for (size_t i = 0; i < kWords; ++i) {
      words[i] = place[i].load(std::memory_order_acquire);
    }
    if (words_[0].load(std::memory_order_relaxed) >= index + capacity_) {
      continue;  // it is being overwritten, or was
    }
    out->push_back({static_cast<TraceKind>(Low(words[4])), producer, words[0], words[1], words[2], words[3],
                    High(words[4]), Low(words[5]), Low(words[6]), High(words[6])});
  }
}

}  // namespace headrace::shared_memory
