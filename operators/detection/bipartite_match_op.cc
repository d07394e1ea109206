// bipartite_match: which row each column belongs to.
#include <algorithm>
#include <cstdint>
#include <string>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// What is less counts as 0.
constexpr double kLeastMatch = 1e-6;

// The matches of the columns with `rows` rows.
template <typename T>
struct ColumnMatches {
  int64_t cols;
  int32_t* row;  // of each column; -1: none
  T* dist;

  // Each row with one column: the best pair first, of equal ones that of the first column, then that of the first row.
  void MatchRows(const T* matrix, int64_t rows) {
    PoolVector<int64_t> pairs;
    for (int64_t i = 0; i < rows * cols; ++i) {
      if (matrix[i] >= static_cast<T>(kLeastMatch)) {
        pairs.push_back(i);
      }
    }
    std::sort(pairs.begin(), pairs.end(), [&](int64_t a, int64_t b) {
      if (matrix[a] != matrix[b]) {
        return matrix[a] > matrix[b];
      }
      return a % cols != b % cols ? a % cols < b % cols : a < b;
    });
    PoolVector<bool> taken(static_cast<size_t>(rows), false);
    for (const int64_t i : pairs) {
      const int64_t r = i / cols;
      const int64_t c = i % cols;
      if (row[c] < 0 && !taken[static_cast<size_t>(r)]) {
        Match(matrix, r, c);
        taken[static_cast<size_t>(r)] = true;
      }
    }
  }

  // The other columns, each with the best of all rows, if that is good enough.
  void MatchColumns(const T* matrix, int64_t rows, T threshold) {
    threshold = std::max(threshold, static_cast<T>(kLeastMatch));
    for (int64_t c = 0; c < cols; ++c) {
      if (row[c] >= 0) {
        continue;
      }
      int64_t best = -1;
      for (int64_t r = 0; r < rows; ++r) {
        const T value = matrix[r * cols + c];
        if (value >= threshold && (best < 0 || value > matrix[best * cols + c])) {
          best = r;
        }
      }
      if (best >= 0) {
        Match(matrix, best, c);
      }
    }
  }

 private:
  void Match(const T* matrix, int64_t r, int64_t c) {
    row[c] = static_cast<int32_t>(r);
    dist[c] = matrix[r * cols + c];
  }
};

template <typename T>
void BipartiteMatchKernel(const ExecutionContext& ctx) {
  const LoDTensor& matrix_tensor = ctx.Input("DistMat");
  const int64_t cols = matrix_tensor.dims()[1];
  const LoDOffsets all = {0, static_cast<size_t>(matrix_tensor.dims()[0])};
  const LoDOffsets& sequences = matrix_tensor.lod().empty() ? all : SequencesOf(ctx, "DistMat");
  const int64_t n = SequenceCount(sequences);
  int32_t* indices = ctx.Output("ColToRowMatchIndices")->Resize({n, cols}).template mutable_data<int32_t>();
  T* dist = ctx.Output("ColToRowMatchDist")->Resize({n, cols}).template mutable_data<T>();
  std::fill_n(indices, n * cols, -1);
  std::fill_n(dist, n * cols, T(0));
  const bool all_columns = ctx.Text("match_type") == "per_prediction";
  const T threshold = static_cast<T>(ctx.Attr<double>("dist_threshold"));
  const T* matrix = matrix_tensor.data<T>();
  ForEachSequenceInParallel(sequences, 16 * cols, [=](int64_t s, int64_t begin, int64_t end) {
    ColumnMatches<T> matches{cols, indices + s * cols, dist + s * cols};
    matches.MatchRows(matrix + begin * cols, end - begin);
    if (all_columns) {
      matches.MatchColumns(matrix + begin * cols, end - begin, threshold);
    }
  });
}

}  // namespace

HEADRACE_REGISTER_OP(bipartite_match)
    .Comment(
        "Matches the columns of each sequence of rows with its rows, the greatest element first, so that each row has "
        "one column at most; those below 1e-6 match nothing. per_prediction: then each column that is left with the "
        "row that has its greatest element, if that is dist_threshold or more.")
    .Input("DistMat", "[rows, M] with a LoD of one level, or without: then all rows are one sequence")
    .Output("ColToRowMatchIndices", "int32 [sequences, M]: the row within its sequence; -1 if there is none")
    .Output("ColToRowMatchDist", "[sequences, M], dtype of DistMat: the element of the match; 0 if there is none")
    .Attr<std::string>("match_type", "'bipartite' or 'per_prediction'", "bipartite",
                       [](const std::string& type) {
                         HR_ENFORCE(type == "bipartite" || type == "per_prediction", InvalidArgument,
                                    "attribute match_type: expected 'bipartite' or 'per_prediction', got '", type, "'");
                       })
    .Attr<double>("dist_threshold", "per_prediction: the least element that makes a match", 0.5)
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "DistMat", 2);
      EnforceLevelsAtMost(ctx, "DistMat", 1);
      const DDim dims = ctx.InputDim("DistMat");
      HR_ENFORCE(dims[0] <= INT32_MAX, InvalidArgument, "input DistMat: expected at most 2^31 - 1 rows, got dims ",
                 ToString(dims));
      if (!ctx.IsRuntime()) {  // the kernel knows how many sequences there are
        SetOutput(ctx, "ColToRowMatchIndices", {-1, dims[1]}, DataType::kInt32);
        SetOutput(ctx, "ColToRowMatchDist", {-1, dims[1]}, ctx.InputType("DistMat"));
      }
    })
    .Kernel<float>(BipartiteMatchKernel<float>)
    .Kernel<double>(BipartiteMatchKernel<double>);

}  // namespace headrace::ops
