// crf_decoding: the most probable labels of sequences.
#include <cstdint>
#include <utility>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/scratch.h"
#include "operators/sequence/linear_chain_crf.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// The labels of the greatest weight (A. Viterbi, 1967).
// `best` and `from`: to work with, two rows and as many as `emission` has.
template <typename T>
void Decode(const CrfWeights<T>& w, int64_t rows, const T* emission, T* best, int64_t* from, int64_t* path) {
  const int64_t labels = w.labels;
  T* before = best;
  T* now = before + labels;
  for (int64_t k = 0; k < labels; ++k) {
    before[k] = w.start[k] + emission[k];
  }
  for (int64_t r = 1; r < rows; ++r) {
    for (int64_t k = 0; k < labels; ++k) {
      int64_t found = 0;
      for (int64_t j = 1; j < labels; ++j) {
        found = before[j] + w.Next(j, k) > before[found] + w.Next(found, k) ? j : found;
      }
      now[k] = before[found] + w.Next(found, k) + emission[r * labels + k];
      from[r * labels + k] = found;
    }
    std::swap(before, now);
  }
  int64_t found = 0;
  for (int64_t k = 1; k < labels; ++k) {
    found = before[k] + w.end[k] > before[found] + w.end[found] ? k : found;
  }
  for (int64_t r = rows; r-- > 0;) {
    path[r] = found;
    found = r == 0 ? 0 : from[r * labels + found];
  }
}

template <typename T>
void DecodingKernel(const ExecutionContext& ctx) {
  const SequenceRanges sequences(ctx, "Emission", "Length");
  const LoDTensor& emission_tensor = ctx.Input("Emission");
  const int64_t labels = emission_tensor.dims().back();
  const CrfWeights<T> w(ctx.Input("Transition").data<T>(), labels);
  int64_t* path = ZerosOrNull<int64_t>(ctx, "ViterbiPath");
  const T* emission = emission_tensor.data<T>();
  Tensor best_memory;
  Tensor from_memory;
  T* best = Scratch<T>(&best_memory, 2 * sequences.count() * labels);
  int64_t* from = Scratch<int64_t>(&from_memory, emission_tensor.numel());
  ForEachFilledSequence(sequences, WorkOfRow(labels, 2), [=](int64_t s, int64_t first, int64_t rows) {
    Decode(w, rows, emission + first * labels, best + 2 * s * labels, from + first * labels, path + first);
  });
  if (const LoDTensor* label = ctx.InputOrNull("Label")) {
    EnforceSequencesOfLabels(ctx);
    const int64_t* y = label->data<int64_t>();
    ForEachFilledSequence(sequences, /*work=*/1, [=](int64_t, int64_t first, int64_t rows) {
      for (int64_t r = first; r < first + rows; ++r) {
        path[r] = static_cast<int64_t>(path[r] == y[r]);
      }
    });
  }
}

}  // namespace

HEADRACE_REGISTER_OP(crf_decoding)
    .Comment("The most probable labels of each sequence under linear_chain_crf; of equal ones, the first.")
    .Input("Emission", "as for linear_chain_crf")
    .Input("Transition", "as for linear_chain_crf")
    .Input("Label", "as for linear_chain_crf: the true labels", kDispensable)
    .With(CrfLength)
    .Output(
        "ViterbiPath",
        "int64 [rows, 1] with the LoD of Emission, or [N, rows] with Length, 0 in padding: the labels, or with Label "
        "whether they are right")
    .KernelTypeFrom("Emission")
    .InferShape([](InferShapeContext& ctx) {
      SetOutput(ctx, "ViterbiPath", CheckCrf(ctx), DataType::kInt64);
      if (!ctx.HasInput("Length")) {
        ctx.ShareLoD("Emission", "ViterbiPath");
      }
    })
    .Kernel<float>(DecodingKernel<float>)
    .Kernel<double>(DecodingKernel<double>);

}  // namespace headrace::ops
