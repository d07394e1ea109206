// similarity_focus: a mask of the pairs that are most alike (H. He and J. Lin, Pairwise word interaction modeling with
// deep neural networks for semantic similarity measurement, 2016).
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// The dimensions of X beside the batch's: `channels` along the axis, and `rows` and `cols` in their order.
struct FocusShape {
  FocusShape(const DDim& x, int64_t axis) {
    const size_t chosen = static_cast<size_t>(axis);
    const size_t row = chosen == 1 ? 2 : 1;
    const size_t col = chosen == 3 ? 2 : 3;
    const auto stride = [&x](size_t d) { return Numel(x, d + 1, x.size()); };
    channels = x[chosen];
    rows = x[row];
    cols = x[col];
    channel_stride = stride(chosen);
    row_stride = stride(row);
    col_stride = stride(col);
  }
  int64_t channels;
  int64_t rows;
  int64_t cols;
  int64_t channel_stride;
  int64_t row_stride;
  int64_t col_stride;
};

// Marks the places of one map: the greatest element, then the greatest of those in other rows and columns, and so on.
// NaN counts as the least, and of equal ones the first as the greatest.
template <typename T>
void Focus(const FocusShape& s, const T* map, PoolVector<int64_t>* order, PoolVector<char>* marked) {
  const auto at = [&](int64_t place) { return map[place / s.cols * s.row_stride + place % s.cols * s.col_stride]; };
  std::iota(order->begin(), order->end(), 0);
  std::sort(order->begin(), order->end(), [&](int64_t a, int64_t b) {
    const T first = at(a);
    const T second = at(b);
    if (first == second || (IsNaN(first) && IsNaN(second))) {
      return a < b;
    }
    return first > second || IsNaN(second);
  });
  PoolVector<char> row_taken(static_cast<size_t>(s.rows), 0);
  PoolVector<char> col_taken(static_cast<size_t>(s.cols), 0);
  int64_t left = std::min(s.rows, s.cols);
  for (size_t i = 0; left > 0; ++i) {
    const int64_t place = (*order)[i];
    char& row = row_taken[static_cast<size_t>(place / s.cols)];
    char& col = col_taken[static_cast<size_t>(place % s.cols)];
    if (row == 0 && col == 0) {
      row = col = (*marked)[static_cast<size_t>(place)] = 1;
      --left;
    }
  }
}

template <typename T>
void SimilarityFocusKernel(const ExecutionContext& ctx) {
  const LoDTensor& x_tensor = ctx.Input("X");
  const DDim& dims = x_tensor.dims();
  T* out = ctx.Output("Out")->mutable_data<T>();
  ParallelFill(out, x_tensor.numel(), T(0));
  if (x_tensor.numel() == 0) {
    return;
  }
  const FocusShape s(dims, ctx.Attr<int32_t>("axis"));
  const auto& indexes = ctx.Attr<std::vector<int32_t>>("indexes");
  const T* x = x_tensor.data<T>();
  const auto places = static_cast<size_t>(s.rows * s.cols);
  const int64_t size = Numel(dims, 1, dims.size());
  const auto focus = [=, &indexes](int64_t n) {
    PoolVector<int64_t> order(places);
    PoolVector<char> marked(places, 0);
    for (const int32_t index : indexes) {
      Focus(s, x + n * size + index * s.channel_stride, &order, &marked);
    }
    for (size_t place = 0; place < places; ++place) {
      const auto p = static_cast<int64_t>(place);
      T* to = out + n * size + p / s.cols * s.row_stride + p % s.cols * s.col_stride;
      for (int64_t c = 0; marked[place] != 0 && c < s.channels; ++c) {
        to[c * s.channel_stride] = T(1);
      }
    }
  };
  ParallelForEach(dims[0], focus, size + 16 * s.rows * s.cols * static_cast<int64_t>(indexes.size()));
}

}  // namespace

HEADRACE_REGISTER_OP(similarity_focus)
    .Comment(
        "A mask for X. In each map that indexes choose along axis, the greatest element is chosen, then the greatest "
        "in another row and another column, until rows or columns are used up; the mask is 1 at the places of those "
        "that are chosen in any of the maps, in all maps of the sample, else 0.")
    .Input("X", "[N, A, B, C]")
    .Output("Out", "dims and LoD of X")
    .Attr<int32_t>("axis", "the dimension along which maps lie: 1, 2 or 3")
    .Attr<std::vector<int32_t>>("indexes", "which maps count")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "X", 4);
      const DDim x = ctx.InputDim("X");
      const int32_t axis = ctx.Attr<int32_t>("axis");
      HR_ENFORCE(1 <= axis && axis <= 3, InvalidArgument, "attribute axis: expected 1, 2 or 3, got ", axis);
      const auto& indexes = ctx.Attr<std::vector<int32_t>>("indexes");
      HR_ENFORCE(!indexes.empty(), InvalidArgument, "attribute indexes: expected one map or more, got none");
      const int64_t maps = x[static_cast<size_t>(axis)];
      for (const int32_t index : indexes) {
        HR_ENFORCE(0 <= index && (maps < 0 || index < maps), InvalidArgument,
                   "attribute indexes: expected maps in [0, ", maps, "), got ", index);
      }
      ctx.ShareAll("X", "Out");
    })
    .Kernel<float>(SimilarityFocusKernel<float>)
    .Kernel<double>(SimilarityFocusKernel<double>);

}  // namespace headrace::ops
