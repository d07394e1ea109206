// The parts of a tensor that a level of its LoD makes: sequences of that level, or rows beyond the deepest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "framework/lod_tensor.h"
#include "framework/memory_pool.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {

// Rows [begin, end) of a tensor.
struct RowRange {
  size_t begin;
  size_t end;
  size_t size() const { return end - begin; }
};

// How many units level `level` has. Throws InvalidArgument unless `x` has rows and a well-formed LoD.
inline size_t NumUnits(const LoDTensor& x, size_t level) {
  HR_ENFORCE(!x.dims().empty(), InvalidArgument, "expected a tensor with rows, got a scalar");
  CheckLoD(x.lod(), x.dims()[0]);
  return level < x.lod().size() ? x.lod()[level].size() - 1 : static_cast<size_t>(x.dims()[0]);
}

// The rows of unit `unit`, which exists. If `lod` is given, the unit's own LoD is appended to it, level by level: it
// has as many levels as `x` has from `level` on, each starting with 0.
inline RowRange Unit(const LoDTensor& x, size_t level, size_t unit, LoD* lod = nullptr) {
  RowRange range{unit, unit + 1};
  for (size_t l = level; l < x.lod().size(); ++l) {
    const LoDOffsets& offsets = x.lod()[l];
    for (size_t i = range.begin; lod != nullptr && i < range.end; ++i) {
      LoDOffsets& to = (*lod)[l - level];
      to.push_back(to.back() + offsets[i + 1] - offsets[i]);
    }
    range = {offsets[range.begin], offsets[range.end]};
  }
  return range;
}

// The LoD of no units of level `level` of `x`, to be given to Unit.
inline LoD NoUnits(const LoDTensor& x, size_t level) {
  return LoD(level < x.lod().size() ? x.lod().size() - level : 0, LoDOffsets{0});
}

// Writes rows to a tensor.
class RowWriter {
 public:
  // `out` gets `rows` rows of the form of those of `like`.
  RowWriter(const Tensor& like, size_t rows, Tensor* out) : out_(out) {
    DDim dims = like.dims();
    dims[0] = static_cast<int64_t>(rows);
    out->Resize(std::move(dims));
    data_ = static_cast<char*>(out->mutable_data(like.dtype()));
    row_bytes_ = rows == 0 ? 0 : out->nbytes() / rows;
  }

  // From row `to` of the result on. Several threads may write different rows. Throws InvalidArgument if the rows of
  // `from` differ from those of the result, or if it has fewer.
  void WriteAt(size_t to, const Tensor& from, RowRange range) const {
    if (range.size() == 0) {
      return;
    }
    HR_ENFORCE(
        !from.dims().empty() && from.dtype() == out_->dtype() && range.end <= static_cast<size_t>(from.dims()[0]) &&
            from.nbytes() == row_bytes_ * static_cast<size_t>(from.dims()[0]),
        InvalidArgument, "expected ", DataTypeName(out_->dtype()), " rows like those of dims ", ToString(out_->dims()),
        ", at least ", range.end, ", got ", DataTypeName(from.dtype()), " of dims ", ToString(from.dims()));
    std::memcpy(data_ + to * row_bytes_, static_cast<const char*>(from.raw_data()) + range.begin * row_bytes_,
                range.size() * row_bytes_);
  }

  // Behind what has been written by this and the next function. Throws as WriteAt.
  void Write(const Tensor& from, RowRange range) {
    WriteAt(next_, from, range);
    next_ += range.size();
  }
  void WriteZeros(size_t rows) {
    if (rows != 0) {
      std::memset(data_ + next_ * row_bytes_, 0, rows * row_bytes_);
      next_ += rows;
    }
  }

 private:
  Tensor* out_;
  char* data_;
  size_t row_bytes_;
  size_t next_ = 0;
};

// A unit of a result: rows of one of several tensors.
struct Piece {
  const LoDTensor* from;
  RowRange rows;
};

// One behind the other, by several threads.
inline void WritePieces(const PoolVector<Piece>& pieces, const Tensor& like, LoDTensor* out) {
  PoolVector<size_t> begins = {0};
  for (const Piece& piece : pieces) {
    begins.push_back(begins.back() + piece.rows.size());
  }
  const RowWriter writer(like, begins.back(), out);
  const auto count = static_cast<int64_t>(pieces.size());
  const auto write = [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    writer.WriteAt(begins[at], *pieces[at].from, pieces[at].rows);
  };
  ParallelForEach(count, write, out->numel() / std::max<int64_t>(1, count));
}

}  // namespace headrace::ops
