// A program as data: blocks of variables and operators. Built by Python or by C++, checked as it is built, serialised
// to Protocol Buffers (framework.proto), run by an Executor. Protocol Buffers do not appear here, so that their version
// does not matter.
//
// Thread-safety: none; a program is built by one thread. A finished program may be read by any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/block_desc.h"
#include "framework/export.h"
#include "framework/op_desc.h"
#include "framework/var_desc.h"

namespace headrace {

class HEADRACE_API ProgramDesc {
 public:
  ProgramDesc();  // with one empty root block
  ProgramDesc(const ProgramDesc& other);
  ProgramDesc& operator=(const ProgramDesc&) = delete;
  ~ProgramDesc();

  BlockDesc& block(size_t index);  // OutOfRange
  const BlockDesc& block(size_t index) const;
  size_t num_blocks() const { return blocks_.size(); }
  BlockDesc& AppendBlock(int32_t parent);

  // framework.proto's ProgramDesc. Deterministic: equal programs give equal bytes. Throws ResourceExhausted if they
  // would be 2 GiB or more.
  std::string Serialize() const;
  // The same message in the text format of Protocol Buffers.
  std::string ToTextFormat() const;

  // Throws DataLoss if `bytes` is not a program, or one that contradicts itself (a block's parent, an operator's block,
  // a bad enum value) or whose blocks lie too deep to be run; NotFound for an unregistered operator or a variable that
  // no block declares; Unimplemented for an operator of a newer version than is registered.
  static std::unique_ptr<ProgramDesc> Parse(std::string_view bytes);

  // Exchanges the contents of two programs; both count as changed.
  void Swap(ProgramDesc* other);

  // Grows with every change and whenever a declaration or an operator is handed out to be changed; while it stays what
  // it was, nothing has changed. References must not be kept to change the program later.
  uint64_t revision() const { return revision_; }
  void Touch() { ++revision_; }

  // A readable listing.
  std::string ToString() const;

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  std::vector<std::unique_ptr<BlockDesc>> blocks_;
  uint64_t revision_ = 0;
};

}  // namespace headrace
