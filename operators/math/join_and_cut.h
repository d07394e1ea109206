// Tensors side by side along a dimension of another: what concat, split, stack and unstack are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "framework/data_type.h"
#include "framework/lod_tensor.h"
#include "framework/memory_pool.h"

namespace headrace::ops {

// Writes the pieces (nullptr: zeros) of extents `extents` along `axis` side by side into `out`, which has its dims.
void Join(const PoolVector<const LoDTensor*>& pieces, const PoolVector<int64_t>& extents, LoDTensor* out, DataType type,
          size_t axis);

// The inverse of Join, for pieces that have their dims. A piece that is nullptr is left out. Throws InvalidArgument if
// the extents do not add up to that of `x`.
void Cut(const LoDTensor& x, const PoolVector<LoDTensor*>& pieces, const PoolVector<int64_t>& extents, size_t axis);

}  // namespace headrace::ops
