// Where a tensor lives and an operator runs. There is one kind of place so far; kernels are looked up by it, so that
// another can join.
#pragma once

namespace headrace {

struct CPUPlace {
  bool operator==(const CPUPlace&) const { return true; }
};

using Place = CPUPlace;

}  // namespace headrace
