// A tensor with a level of detail: nested sequences of variable length packed along the first dimension.
//
// LoD is Paddle's offset form: lod[l] has one entry more than level l has sequences, starts with 0, never decreases; an
// entry of level l counts sequences of level l+1, and the last entry of the deepest level is dims()[0].
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "framework/export.h"
#include "framework/memory_pool.h"
#include "framework/tensor.h"

namespace headrace {

using LoDOffsets = PoolVector<size_t>;
using LoD = PoolVector<LoDOffsets>;

// Throws InvalidArgument, saying which level is wrong and how, unless `lod` is well formed over `rows` rows. An empty
// LoD is well formed.
HEADRACE_API void CheckLoD(const LoD& lod, int64_t rows);

// [[2, 1], [3, 2, 4]] ⇄ [[0, 2, 3], [0, 3, 5, 9]].
HEADRACE_API LoD LengthsToOffsets(const LoD& lengths);
HEADRACE_API LoD OffsetsToLengths(const LoD& offsets);

// For messages: "[[0, 2, 3], [0, 4, 5, 9]]", the middle of long levels left out.
HEADRACE_API std::string ToString(const LoD& lod);

class HEADRACE_API LoDTensor : public Tensor {
 public:
  LoDTensor() = default;
  explicit LoDTensor(Tensor tensor, LoD lod = {}) : Tensor(std::move(tensor)), lod_(std::move(lod)) {}

  const LoD& lod() const { return lod_; }
  // Does not check; call CheckLoD where the LoD comes from outside.
  void set_lod(LoD lod) { lod_ = std::move(lod); }
  size_t lod_level() const { return lod_.size(); }

 private:
  friend struct AbiLayout;  // see op_library_abi.h
  LoD lod_;
};

using LoDTensorArray = PoolVector<LoDTensor>;

}  // namespace headrace
