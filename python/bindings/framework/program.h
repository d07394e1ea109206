// Python's handles to the parts of a program. A handle looks up its target on each use, so it cannot dangle when the
// target is removed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "framework/program_desc.h"

namespace headrace::python {

struct BlockHandle {
  std::shared_ptr<ProgramDesc> program;
  size_t index;

  BlockDesc& get() const { return program->block(index); }
};

// The variable `name` of block `index`.
struct VarHandle {
  std::shared_ptr<ProgramDesc> program;
  size_t index;
  std::string name;

  // Throws NotFound if it has been removed.
  const VarDesc& get() const { return std::as_const(*program).block(index).GetVar(name); }
  // To be changed; counts as a change of the program.
  VarDesc& edit() const { return program->block(index).MutableVar(name); }
};

}  // namespace headrace::python
