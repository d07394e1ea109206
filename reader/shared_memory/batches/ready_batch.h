// A batch in the consumer's hands.
//
// Thread-safety: a value; copies share the slot, which is freed with the last copy of `memory`, on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/allocation.h"
#include "reader/shared_memory/arena/batch_layout.h"
#include "reader/shared_memory/arena/slot.h"

namespace headrace::shared_memory {

struct ReadyBatch {
  uint64_t epoch = 0;
  uint64_t batch = 0;
  uint64_t rows = 0;
  uint32_t stream = 0;                       // kStream
  uint64_t stream_batch = 0;                 // kStream: number of the batch in its stream
  std::string attachment;                    // bytes that the batch's producer attached
  std::shared_ptr<Allocation> memory = {};   // the whole slot; null if the batch was abandoned or is corrupt
  const std::byte* slot = nullptr;           // its start, from which the layout's offsets count
  ProblemKind problem = ProblemKind::kNone;  // kFailed, kKilled or kCorrupt: there are no rows
  uint32_t problem_row = 0;                  // among all that were planned; kCorrupt: 0
  std::string problem_message;               // kFailed: the producer's; kCorrupt: what is wrong
  std::optional<uint32_t> author = {};       // the producer that described it, or reported the problem, if known
  bool last_slots = false;  // the consumer holds nearly all slots: copy what you need and drop this one

  // Unless there is a problem: checked copies, which no producer can change any more. The content of the arrays is not
  // copied; it stays in the slot.
  std::shared_ptr<const BatchLayout> layout_copy = {};
  std::vector<SideRecord> objects = {};  // the elements of all object leaves, leaf after leaf

  const BatchLayout& layout() const { return *layout_copy; }
};

}  // namespace headrace::shared_memory
