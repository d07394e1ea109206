#include "framework/memory_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "framework/block_runner.h"
#include "framework/lod_tensor.h"
#include "framework/op_registry.h"
#include "framework/operator.h"
#include "framework/selected_rows.h"

namespace headrace {
namespace {

// Smaller ones keep memory of their own: programs have many of them, and little is gained.
constexpr size_t kMinPlanned = 1024;

// What holds the memory: a tensor, or the value of SelectedRows. nullptr: an operator has put something else there.
LoDTensor* TensorIn(Variable* variable) {
  if (variable->IsType<LoDTensor>()) {
    return variable->GetMutable<LoDTensor>();
  }
  return variable->IsType<SelectedRows>() ? variable->GetMutable<SelectedRows>()->mutable_value() : nullptr;
}

bool ReadsShapeOnly(const OpDesc& op, const std::string& slot) {
  const OpInfo* info = OpRegistry::Find(op.type);
  const SlotInfo* input = info == nullptr ? nullptr : info->FindInput(slot);
  return input != nullptr && input->shape_only;
}

bool AreTensorsAlike(const VarDesc& a, const VarDesc& b) {
  return a.kind == VarKind::kLoDTensor && b.kind == VarKind::kLoDTensor && a.tensor.dtype == b.tensor.dtype;
}

}  // namespace

bool IsOnlyIn(const OpDesc& op, const std::string& slot, const std::string& name) {
  const auto has_it = [&name](const auto& entry) {
    return std::find(entry.second.begin(), entry.second.end(), name) != entry.second.end();
  };
  return std::none_of(op.outputs.begin(), op.outputs.end(), has_it) &&
         std::all_of(op.inputs.begin(), op.inputs.end(),
                     [&](const auto& entry) { return entry.first == slot || !has_it(entry); });
}

MemoryPlan::MemoryPlan(const BlockDesc& block, const std::vector<const OpDesc*>& order,
                       const std::vector<std::string>& kept)
    : steps_(order.size()) {
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
    for (const auto& [slot, names] : order[i]->inputs) {
      const bool shape_only = ReadsShapeOnly(*order[i], slot);
      for (const std::string& name : names) {
        if (const auto it = found.find(name); it == found.end()) {
          excluded.insert(name);  // it keeps what an earlier run has left, or is fed
        } else if (shape_only) {
          it->second.has_later_shape_uses = true;
        } else {
          it->second.last = i;
        }
      }
    }
    for (const std::string& name : order[i]->OutputNames()) {
      const VarDesc* desc = block.HasLocalVar(name) ? block.FindVar(name) : nullptr;
      const bool has_memory =
          desc != nullptr && (desc->kind == VarKind::kLoDTensor || desc->kind == VarKind::kSelectedRows);
      if (has_memory && !OutlivesRuns(*desc) && !excluded.contains(name)) {
        found.try_emplace(name, Temporary{.name = name, .first = i, .last = i}).first->second.last = i;
      }
    }
  }
  temporaries_.reserve(found.size());
  for (auto& [name, temporary] : found) {
    steps_[temporary.last].ends.push_back(&temporaries_.emplace_back(std::move(temporary)));
  }
  ChooseHeirs(block, order);
}

void MemoryPlan::ChooseHeirs(const BlockDesc& block, const std::vector<const OpDesc*>& order) {
  std::map<std::string_view, Temporary*> by_name;
  for (Temporary& temporary : temporaries_) {
    by_name.emplace(temporary.name, &temporary);
  }
  std::set<const Temporary*> inherited;
  const auto may_inherit = [&](size_t i, const InPlacePair& pair, const std::string& output, const std::string& input) {
    const auto heir = by_name.find(output);
    const auto before = by_name.find(input);
    return heir != by_name.end() && before != by_name.end() && heir->second->heir_of == nullptr &&
           heir->second->first == i && before->second->last == i && before->second->first < i &&
           IsOnlyIn(*order[i], pair.input, input) && !inherited.contains(before->second) &&
           AreTensorsAlike(*block.FindVar(output), *block.FindVar(input));
  };
  for (size_t i = 0; i < order.size(); ++i) {
    const OpInfo* info = OpRegistry::Find(order[i]->type);
    if (info == nullptr || info->kernels.empty()) {
      continue;
    }
    for (const InPlacePair& pair : info->in_place) {
      for (const std::string& output : order[i]->Output(pair.output)) {
        for (const std::string& input : order[i]->Input(pair.input)) {
          if (may_inherit(i, pair, output, input)) {
            Temporary* heir = by_name.at(output);
            heir->heir_of = by_name.at(input);
            inherited.insert(heir->heir_of);
          }
        }
      }
    }
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
    temporary.lent.reset();
  }
  for (Step& step : steps_) {
    step.scratch.lent = 0;
    step.heirs.clear();
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

bool MemoryPlan::IsAtPlace(const Temporary& temporary) {
  const LoDTensor* tensor = TensorIn(temporary.variable);
  return tensor != nullptr && tensor->initialized() && tensor->allocation()->data() == temporary.place;
}

// Whether somebody besides its tensor holds the memory of its place.
bool MemoryPlan::HasOtherHolders(const Temporary& temporary) {
  return temporary.lent.use_count() > (IsAtPlace(temporary) ? 1 : 0);
}

// Whether it has nothing to settle, as in all runs but the first.
bool MemoryPlan::IsSettled(const Temporary& temporary) {
  if (temporary.place != nullptr) {
    return IsAtPlace(temporary) && temporary.lent.use_count() == 1;
  }
  const LoDTensor* tensor = TensorIn(temporary.variable);
  if (!temporary.planned || tensor == nullptr || !tensor->initialized()) {
    return true;
  }
  const std::shared_ptr<Allocation>& memory = tensor->allocation();
  return memory.use_count() == 1 && memory->on_heap() && memory->size() < kMinPlanned;
}

void MemoryPlan::Settle(Temporary* temporary) {
  const bool is_at_place = IsAtPlace(*temporary);
  if (HasOtherHolders(*temporary)) {
    temporary->planned = false;
    stale_ = true;
    LeaveOut(temporary);
    if (is_at_place) {
      GiveUpMemory(*temporary);
    }
    return;
  }
  const LoDTensor* tensor = TensorIn(temporary->variable);
  if (tensor == nullptr || !tensor->initialized()) {
    return;
  }
  const std::shared_ptr<Allocation>& memory = tensor->allocation();
  if (!memory->on_heap() || memory.use_count() != 1 ||
      (temporary->place != nullptr && memory->size() <= temporary->bytes)) {
    temporary->planned = false;  // others have a part in its memory
    stale_ = stale_ || temporary->place != nullptr;
    return;
  }
  // A little more than it needs, lest each new size be a new plan.
  temporary->bytes = memory->size() + (temporary->bytes == 0 ? 0 : memory->size() / 16);
  stale_ = true;
  GiveUpMemory(*temporary);
}

// Its shape stays, and with some memory, if none at all, it counts as written.
void MemoryPlan::GiveUpMemory(const Temporary& temporary) {
  TensorIn(temporary.variable)->SetMemory(temporary.has_later_shape_uses ? Allocation::OnHeap(0) : nullptr);
}

void MemoryPlan::NoteScratch(Scratch* scratch) {
  const size_t most = MemoryPool::MostScratch();
  scratch->bytes = most + (scratch->bytes == 0 ? 0 : most / 16);
  stale_ = stale_ || most >= kMinPlanned;
}

// Somebody else has its memory from now on. Those that were to use it later in this run get memory of their own, and no
// scratch memory is lent any more.
void MemoryPlan::LeaveOut(Temporary* temporary) {
  for (const Temporary& other : temporaries_) {
    if (other.place != nullptr && other.first > temporary->last && other.place < temporary->place + temporary->bytes &&
        temporary->place < other.place + other.bytes) {
      Vacate(&other);
    }
  }
  for (Step& step : steps_) {
    step.scratch.lent = 0;
  }
}

void MemoryPlan::Vacate(const Temporary* temporary) {
  if (temporary->place != nullptr && IsAtPlace(*temporary)) {
    TensorIn(temporary->variable)->SetMemory(nullptr);
  }
}

void MemoryPlan::LayOut(MemoryPool* pool) {
  std::vector<Piece> pieces;
  std::map<const Temporary*, size_t> ends;  // of the first owners of memory: its last use by any
  for (Temporary& temporary : temporaries_) {
    Vacate(&temporary);
    temporary.place = nullptr;
    temporary.lent.reset();
    if (temporary.planned && temporary.bytes != 0) {
      size_t& end = ends[&FirstOwner(temporary)];
      end = std::max(end, temporary.last);
    }
  }
  for (const auto& [owner, end] : ends) {
    pieces.push_back({owner->first, end, owner->bytes, owner, nullptr});
  }
  for (size_t op = 0; op < steps_.size(); ++op) {
    steps_[op].heirs.clear();
    Scratch& scratch = steps_[op].scratch;
    scratch.lent = 0;
    if (scratch.bytes >= kMinPlanned) {
      pieces.push_back({op, op, scratch.bytes, nullptr, &scratch});
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
  std::map<const Temporary*, size_t> offsets;
  for (const Piece& piece : pieces) {
    if (piece.scratch != nullptr) {
      piece.scratch->place = static_cast<std::byte*>(memory_->data()) + piece.offset;
      piece.scratch->lent = piece.bytes;
    } else {
      offsets.emplace(piece.temporary, piece.offset);
    }
  }
  for (Temporary& temporary : temporaries_) {
    if (temporary.planned && temporary.bytes != 0) {
      const Temporary& owner = FirstOwner(temporary);
      const size_t offset = offsets.at(&owner);
      if (&owner != &temporary) {
        steps_[temporary.first].heirs.push_back(&temporary);
      }
      temporary.place = static_cast<std::byte*>(memory_->data()) + offset;
      if (LoDTensor* tensor = TensorIn(temporary.variable); tensor != nullptr) {
        auto part = Allocation::Part(memory_, offset, temporary.bytes);
        temporary.lent = part;
        tensor->SetMemory(std::move(part));
      }
    }
  }
}

// Of the memory that `temporary`, which is planned, has in the end, after all that take it over from one another.
const MemoryPlan::Temporary& MemoryPlan::FirstOwner(const Temporary& temporary) {
  const Temporary* owner = &temporary;
  while (owner->heir_of != nullptr && owner->heir_of->planned && owner->heir_of->bytes >= owner->bytes) {
    owner = owner->heir_of;
  }
  return *owner;
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
