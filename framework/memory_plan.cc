#include "framework/memory_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "framework/block_runner.h"
#include "framework/lod_tensor.h"
#include "framework/operator.h"

namespace headrace {
namespace {

// Smaller ones keep memory of their own: programs have many of them, and little is gained.
constexpr size_t kMinPlanned = 1024;

}  // namespace

MemoryPlan::MemoryPlan(const BlockDesc& block, const std::vector<const OpDesc*>& order,
                       const std::vector<std::string>& kept)
    : ends_(order.size()), scratch_(order.size()) {
  std::set<std::string> excluded(kept.begin(), kept.end());
  const ProgramDesc& program = block.program();
  for (size_t b = 0; b < program.num_blocks(); ++b) {
    for (size_t i = 0; static_cast<int32_t>(b) != block.index() && i < program.block(b).ops().size(); ++i) {
      const OpDesc& op = *program.block(b).ops()[i];
      for (const auto& names : {op.InputNames(), op.OutputNames()}) {
        excluded.insert(names.begin(), names.end());
      }
    }
  }
  std::map<std::string, Temporary> found;
  for (size_t i = 0; i < order.size(); ++i) {
    for (const std::string& name : order[i]->InputNames()) {
      if (const auto it = found.find(name); it == found.end()) {
        excluded.insert(name);  // it keeps what an earlier run has left, or is fed
      } else {
        it->second.last = i;
      }
    }
    for (const std::string& name : order[i]->OutputNames()) {
      const VarDesc* desc = block.HasLocalVar(name) ? block.FindVar(name) : nullptr;
      if (desc != nullptr && desc->kind == VarKind::kLoDTensor && !OutlivesRuns(*desc) && !excluded.contains(name)) {
        found.try_emplace(name, Temporary{.name = name, .first = i, .last = i}).first->second.last = i;
      }
    }
  }
  temporaries_.reserve(found.size());
  for (auto& [name, temporary] : found) {
    ends_[temporary.last].push_back(&temporaries_.emplace_back(std::move(temporary)));
  }
}

void MemoryPlan::Bind(const Scope& scope) {
  for (Temporary& temporary : temporaries_) {
    temporary.variable = &scope.GetVar(temporary.name);
  }
}

void MemoryPlan::Unbind() {
  for (Temporary& temporary : temporaries_) {
    temporary.variable = nullptr;
    temporary.place = nullptr;
  }
  for (Scratch& scratch : scratch_) {
    scratch.lent = 0;
  }
  memory_.reset();
  stale_ = true;
}

void MemoryPlan::Begin(MemoryPool* pool) {
  if (stale_ || !complete_) {  // after an error, what has been shared is not known
    LayOut(pool);
  }
  complete_ = false;
}

// Whether it has nothing to settle, as in all runs but the first.
bool MemoryPlan::IsInPlace(const Temporary& temporary) {
  if (!temporary.variable->IsType<LoDTensor>()) {
    return true;  // an operator has put something else there
  }
  const std::shared_ptr<Allocation>& memory = temporary.variable->Get<LoDTensor>().allocation();
  if (memory == nullptr || (temporary.place == nullptr && !temporary.planned)) {
    return true;
  }
  if (memory.use_count() != 1 || !memory->on_heap()) {
    return false;
  }
  return temporary.place == nullptr ? memory->size() < kMinPlanned : memory->data() == temporary.place;
}

void MemoryPlan::Settle(Temporary* temporary) {
  auto* tensor = temporary->variable->GetMutable<LoDTensor>();
  const Allocation& memory = *tensor->allocation();
  const bool is_at_place = memory.data() == temporary->place;
  if (!memory.on_heap() || tensor->allocation().use_count() != 1 ||
      (temporary->place != nullptr && memory.size() <= temporary->bytes)) {
    temporary->planned = false;  // others have a part in its memory
    stale_ = stale_ || temporary->place != nullptr;
    if (is_at_place) {
      LeaveOut(temporary);
      tensor->SetMemory(nullptr);
    }
    return;
  }
  // A little more than it needs, lest each new size be a new plan.
  temporary->bytes = memory.size() + (temporary->bytes == 0 ? 0 : memory.size() / 16);
  stale_ = true;
  tensor->SetMemory(nullptr);
}

void MemoryPlan::NoteScratch(size_t op) {
  const size_t most = MemoryPool::MostScratch();
  scratch_[op].bytes = most + (scratch_[op].bytes == 0 ? 0 : most / 16);
  stale_ = stale_ || most >= kMinPlanned;
}

// Somebody else has its memory from now on. Those that were to use it later in this run get memory of their own, and no
// scratch memory is lent any more.
void MemoryPlan::LeaveOut(Temporary* temporary) {
  for (Temporary& other : temporaries_) {
    if (other.place != nullptr && other.first > temporary->last && other.place < temporary->place + temporary->bytes &&
        temporary->place < other.place + other.bytes) {
      Vacate(&other);
    }
  }
  for (Scratch& scratch : scratch_) {
    scratch.lent = 0;
  }
}

void MemoryPlan::Vacate(Temporary* temporary) {
  if (temporary->place != nullptr && temporary->variable->IsType<LoDTensor>()) {
    auto* tensor = temporary->variable->GetMutable<LoDTensor>();
    if (tensor->initialized() && tensor->allocation()->data() == temporary->place) {
      tensor->SetMemory(nullptr);
    }
  }
}

void MemoryPlan::LayOut(MemoryPool* pool) {
  std::vector<Piece> pieces;
  for (Temporary& temporary : temporaries_) {
    Vacate(&temporary);
    temporary.place = nullptr;
    if (temporary.planned && temporary.bytes != 0) {
      pieces.push_back({temporary.first, temporary.last, temporary.bytes, &temporary, nullptr});
    }
  }
  for (size_t op = 0; op < scratch_.size(); ++op) {
    scratch_[op].lent = 0;
    if (scratch_[op].bytes >= kMinPlanned) {
      pieces.push_back({op, op, scratch_[op].bytes, nullptr, &scratch_[op]});
    }
  }
  memory_.reset();
  pool->Trim();
  stale_ = false;
  const size_t end = Place(&pieces);
  if (end == 0) {
    return;
  }
  memory_ = Allocation::OnHeap(end);
  for (const Piece& piece : pieces) {
    std::byte* place = static_cast<std::byte*>(memory_->data()) + piece.offset;
    if (piece.scratch != nullptr) {
      piece.scratch->place = place;
      piece.scratch->lent = piece.bytes;
    } else {
      piece.temporary->place = place;
      if (piece.temporary->variable->IsType<LoDTensor>()) {
        auto* tensor = piece.temporary->variable->GetMutable<LoDTensor>();
        tensor->SetMemory(Allocation::Part(memory_, piece.offset, piece.bytes));
      }
    }
  }
}

// Gives each piece its offset; returns how much memory that takes.
size_t MemoryPlan::Place(std::vector<Piece>* pieces) {
  std::sort(pieces->begin(), pieces->end(),
            [](const Piece& a, const Piece& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.first < b.first; });
  std::vector<const Piece*> placed;  // by offset
  size_t end = 0;
  for (Piece& piece : *pieces) {
    for (const Piece* other : placed) {
      if (other->first > piece.last || other->last < piece.first) {
        continue;
      }
      if (other->offset >= piece.offset + piece.bytes) {
        break;
      }
      piece.offset = std::max(piece.offset, MemoryPool::RoundedUp(other->offset + other->bytes));
    }
    const auto next = std::find_if(placed.begin(), placed.end(),
                                   [&piece](const Piece* other) { return other->offset > piece.offset; });
    placed.insert(next, &piece);
    end = std::max(end, piece.offset + piece.bytes);
  }
  return end;
}

}  // namespace headrace
