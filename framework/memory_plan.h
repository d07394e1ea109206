// Where the temporaries of a block lie: those that are not needed at the same time share memory.
//
// A run finds out how large they are: each gives up its memory after the last operator that uses it, so that even the
// first run needs little more than the live ones. Before the next run the plan gives each of them, and the scratch
// memory of each operator, a place in one piece of memory, the largest first, each in the lowest gap that nothing of
// the same time has. The places stay as they are until a temporary has outgrown its own; a run allocates nothing for
// them.
//
// An output that an operator may write in place of an input (OpInfo::in_place) takes over the memory of a temporary of
// which that is the last use. Where only the shape of a temporary is read later, its elements are gone by then.
//
// Memory that an operator shares with another owner (an array, for example) stays with that owner: before another
// temporary takes over the memory of one, and after the last use of each, the plan checks that its memory has no other
// owner, and otherwise leaves it out from then on.
//
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "framework/allocation.h"
#include "framework/export.h"
#include "framework/memory_pool.h"
#include "framework/program_desc.h"
#include "framework/scope.h"

namespace headrace {

// Whether no slot of the operator but input `slot` has the variable, as OpInfo::in_place assumes.
HEADRACE_API bool IsOnlyIn(const OpDesc& op, const std::string& slot, const std::string& name);

class MemoryPlan {
 public:
  // Plans for tensors of `block` that an operator of `order` writes before any reads them, and that neither outlive a
  // run, nor are in `kept`, nor occur in other blocks.
  MemoryPlan(const BlockDesc& block, const std::vector<const OpDesc*>& order, const std::vector<std::string>& kept);

  // Finds the variables, which must stay where they are until the next Bind or Unbind.
  void Bind(const Scope& scope);
  // Lets go of all memory.
  void Unbind();

  // Around each run, which uses `pool`.
  void Begin(MemoryPool* pool);
  void End() { complete_ = true; }

  // Around each operator, by its place in `order`.
  void Before(size_t op) const {
    const Step& step = steps_[op];
    MemoryPool::LendScratch(step.scratch.place, step.scratch.lent);
    for (const Temporary* heir : step.heirs) {
      if (HasOtherHolders(*heir->heir_of)) {
        Vacate(heir);
      }
    }
  }
  void After(size_t op) {
    Step& step = steps_[op];
    if (MemoryPool::MostScratch() > step.scratch.bytes) {
      NoteScratch(&step.scratch);
    }
    for (Temporary* temporary : step.ends) {
      if (!IsSettled(*temporary)) {
        Settle(temporary);
      }
    }
  }

 private:
  struct Temporary {
    std::string name;
    size_t first;  // operators that use its elements
    size_t last;
    bool has_later_shape_uses = false;
    // The temporary whose memory it may take over, as the result of the operator that is the last to use that one.
    const Temporary* heir_of = nullptr;
    bool planned = true;
    size_t bytes = 0;  // the most that it has needed
    Variable* variable = nullptr;
    const std::byte* place = nullptr;  // nullptr: it has none
    std::weak_ptr<Allocation> lent{};  // the memory there, as its tensor got it
  };

  // The scratch memory of an operator, which lies with the temporaries.
  struct Scratch {
    size_t bytes = 0;  // the most that it has needed
    size_t lent = 0;
    std::byte* place = nullptr;
  };
  // The work around an operator.
  struct Step {
    Scratch scratch;
    std::vector<const Temporary*> heirs;  // results that take over memory
    std::vector<Temporary*> ends;         // those that it is the last to use
  };
  // An item to lay out: a temporary or scratch memory.
  struct Piece {
    size_t first;
    size_t last;
    size_t bytes;
    const Temporary* temporary;
    Scratch* scratch;
    size_t offset = 0;
  };

  void ChooseHeirs(const BlockDesc& block, const std::vector<const OpDesc*>& order);
  void NoteScratch(Scratch* scratch);
  static bool IsAtPlace(const Temporary& temporary);
  static bool HasOtherHolders(const Temporary& temporary);
  static bool IsSettled(const Temporary& temporary);
  void Settle(Temporary* temporary);
  static void GiveUpMemory(const Temporary& temporary);
  static void Vacate(const Temporary* temporary);
  void LeaveOut(Temporary* temporary);
  void LayOut(MemoryPool* pool);
  static const Temporary& FirstOwner(const Temporary& temporary);
  static size_t Place(std::vector<Piece>* pieces);

  std::vector<Temporary> temporaries_;
  std::vector<Step> steps_;  // by operator
  std::shared_ptr<Allocation> memory_;
  bool stale_ = true;  // the places do not fit the known sizes
  bool complete_ = true;
};

}  // namespace headrace
