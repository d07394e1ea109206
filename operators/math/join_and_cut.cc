#include "operators/math/join_and_cut.h"

#include <cstring>

#include "framework/thread_pool.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// A tensor seen as `outer` rows; `inner` elements follow each index of the axis.
struct AxisView {
  AxisView(const DDim& dims, size_t axis, DataType type)
      : outer(Numel(dims, 0, axis)),
        inner_bytes(static_cast<size_t>(Numel(dims, axis + 1, dims.size())) * SizeOf(type)) {}
  int64_t outer;
  size_t inner_bytes;
};

// Visits what a tensor and the pieces that lie side by side in it along the axis have in common, run by run, on several
// threads, with places in bytes: copy(place in the whole, number of the piece, place in the piece, bytes).
template <typename Copy>
void ForEachPiece(const AxisView& view, const PoolVector<int64_t>& extents, const Copy& copy) {
  size_t whole = 0;
  for (const int64_t extent : extents) {
    whole += static_cast<size_t>(extent) * view.inner_bytes;
  }
  ParallelFor(view.outer, RowsPerBlock(static_cast<int64_t>(whole / sizeof(float))), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      size_t at = static_cast<size_t>(o) * whole;
      for (size_t k = 0; k < extents.size(); ++k) {
        const size_t bytes = static_cast<size_t>(extents[k]) * view.inner_bytes;
        copy(at, k, static_cast<size_t>(o) * bytes, bytes);
        at += bytes;
      }
    }
  });
}

}  // namespace

void Join(const PoolVector<const LoDTensor*>& pieces, const PoolVector<int64_t>& extents, LoDTensor* out, DataType type,
          size_t axis) {
  auto* to = static_cast<std::byte*>(out->mutable_data(type));
  if (out->numel() == 0) {
    return;
  }
  ForEachPiece(AxisView(out->dims(), axis, type), extents, [&](size_t at, size_t k, size_t piece_at, size_t bytes) {
    if (bytes == 0) {
      return;
    }
    if (pieces[k] == nullptr) {
      std::memset(to + at, 0, bytes);
    } else {
      std::memcpy(to + at, static_cast<const std::byte*>(pieces[k]->raw_data()) + piece_at, bytes);
    }
  });
}

void Cut(const LoDTensor& x, const PoolVector<LoDTensor*>& pieces, const PoolVector<int64_t>& extents, size_t axis) {
  int64_t sum = 0;
  for (const int64_t extent : extents) {
    sum = AddExtents(sum, extent);
  }
  HR_ENFORCE(sum == x.dims()[axis], InvalidArgument, "the pieces have ", sum, " in dimension ", axis,
             " together, the tensor that they are cut from has dims ", ToString(x.dims()));
  PoolVector<std::byte*> to;
  for (LoDTensor* piece : pieces) {
    to.push_back(piece == nullptr ? nullptr : static_cast<std::byte*>(piece->mutable_data(x.dtype())));
  }
  if (x.numel() == 0) {
    return;
  }
  const auto* from = static_cast<const std::byte*>(x.raw_data());
  ForEachPiece(AxisView(x.dims(), axis, x.dtype()), extents, [&](size_t at, size_t k, size_t piece_at, size_t bytes) {
    if (to[k] != nullptr && bytes != 0) {
      std::memcpy(to[k] + piece_at, from + at, bytes);
    }
  });
}

}  // namespace headrace::ops
