// The dimensions of a tensor in another order.
#pragma once

#include <cstddef>

#include "framework/ddim.h"
#include "framework/memory_pool.h"

namespace headrace::ops {

// Copies a tensor of dims `dims` and elements of `size` bytes (1, 2, 4 or 8) with its dimensions in another order:
// dimension permutation[d] becomes dimension d of `to`. By several threads.
void Permute(const DDim& dims, const PoolVector<size_t>& permutation, size_t size, const void* from, void* to);

}  // namespace headrace::ops
