// What the operators share that make a tensor whose batch size is that of another one.
#pragma once

#include "framework/op_registry.h"

namespace headrace::ops {

// Declares Input, shape, input_dim_idx and output_dim_idx.
OpRegistrar&& BatchSizeLikeSlots(OpRegistrar&& op);

// Gives Out the dims of attribute `shape`, with dimension output_dim_idx from dimension input_dim_idx of Input, and the
// dtype of attribute `dtype`. Of an Input with a LoD, dimension 0 counts its sequences, which only the kernel knows.
void InferBatchSizeLike(InferShapeContext& ctx);

// For the kernel: gives `out` its final dims.
void ResizeLikeBatch(const ExecutionContext& ctx, LoDTensor* out);

}  // namespace headrace::ops
