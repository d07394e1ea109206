// beam_search_decode: from the steps of a beam search to whole sequences.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"

namespace headrace::ops {
namespace {

// One sequence, its last id first, and where its next one is to be found.
template <typename T>
struct Hypothesis {
  PoolVector<int64_t> ids;
  PoolVector<T> scores;
  size_t at;     // prefix of the step that was read last: a row of the step before
  size_t place;  // among those of its source
};

// The step of a beam search.
template <typename T>
struct Step {
  // Throws InvalidArgument unless both have [n, 1] elements and the same LoD of two levels over `sources` sources.
  Step(const LoDTensor& id_tensor, const LoDTensor& score_tensor, size_t sources, size_t step) : lod(id_tensor.lod()) {
    HR_ENFORCE(id_tensor.initialized() && score_tensor.initialized(), InvalidArgument, "inputs Ids and Scores: step ",
               step, " has not been written");
    HR_ENFORCE(lod.size() == 2 && score_tensor.lod() == lod && id_tensor.numel() == score_tensor.numel(),
               InvalidArgument,
               "inputs Ids and Scores: expected the selected_ids and selected_scores of a beam_search ",
               "with the same LoD of two levels for step ", step, ", got ", ToString(lod), " and ",
               ToString(score_tensor.lod()));
    CheckLoD(lod, id_tensor.numel());
    HR_ENFORCE(lod[0].size() == sources + 1, InvalidArgument, "input Ids: expected ", sources,
               " sources, as the first step has, for step ", step, ", got ", lod[0].size() - 1);
    ids = id_tensor.data<int64_t>();
    scores = score_tensor.data<T>();
  }
  const LoD& lod;
  const int64_t* ids;
  const T* scores;
};

// Goes back from the last step that has selected ids of source `s`.
template <typename T>
PoolVector<Hypothesis<T>> Backtrack(const PoolVector<Step<T>>& steps, size_t s, int64_t end_id, size_t beam_size) {
  PoolVector<Hypothesis<T>> found;
  for (size_t t = steps.size(); t-- > 0;) {
    const Step<T>& step = steps[t];
    const size_t first_prefix = step.lod[0][s];
    const size_t end_prefix = step.lod[0][s + 1];
    if (found.empty()) {
      for (size_t prefix = first_prefix; prefix < end_prefix; ++prefix) {
        for (size_t row = step.lod[1][prefix]; row < step.lod[1][prefix + 1]; ++row) {
          found.push_back({{step.ids[row]}, {step.scores[row]}, prefix, found.size()});
        }
      }
      HR_ENFORCE(found.size() <= beam_size, InvalidArgument, "input Ids: expected at most ", beam_size,
                 " selected ids (attribute beam_size) for source ", s, ", step ", t, " has ", found.size());
      continue;
    }
    for (Hypothesis<T>& hypothesis : found) {
      const size_t row = hypothesis.at;
      const auto& prefixes = step.lod[1];
      HR_ENFORCE(prefixes[first_prefix] <= row && row < prefixes[end_prefix], InvalidArgument, "input Ids: step ",
                 t + 1, " continues row ", row, " of the previous step, expected one of source ", s, ", in [",
                 prefixes[first_prefix], ", ", prefixes[end_prefix], ")");
      if (step.ids[row] != end_id || hypothesis.ids.empty()) {  // the end once
        hypothesis.ids.push_back(step.ids[row]);
        hypothesis.scores.push_back(step.scores[row]);
      }
      const auto begin = prefixes.begin();
      const auto behind = std::upper_bound(begin + static_cast<std::ptrdiff_t>(first_prefix),
                                           begin + static_cast<std::ptrdiff_t>(end_prefix), row);
      hypothesis.at = static_cast<size_t>(behind - begin) - 1;
    }
  }
  // A NaN would have no place in an order.
  const auto rank = [](const Hypothesis<T>& h) {
    return IsNaN(h.scores.front()) ? std::numeric_limits<T>::infinity() : -h.scores.front();
  };
  std::sort(found.begin(), found.end(), [rank](const Hypothesis<T>& a, const Hypothesis<T>& b) {
    return std::pair(rank(a), a.place) < std::pair(rank(b), b.place);
  });
  return found;
}

template <typename T>
void Decode(const LoDTensorArray& ids, const LoDTensorArray& scores, int64_t end_id, size_t beam_size,
            LoDTensor* sentence_ids, LoDTensor* sentence_scores) {
  const size_t sources = ids[0].lod().empty() ? 0 : ids[0].lod()[0].size() - 1;
  PoolVector<Step<T>> steps;
  for (size_t t = 0; t < ids.size(); ++t) {
    steps.emplace_back(ids[t], scores[t], sources, t);
  }
  LoD lod = {{0}, {0}};
  PoolVector<int64_t> all_ids;
  PoolVector<T> all_scores;
  for (size_t s = 0; s < sources; ++s) {
    for (const Hypothesis<T>& hypothesis : Backtrack(steps, s, end_id, beam_size)) {
      all_ids.insert(all_ids.end(), hypothesis.ids.rbegin(), hypothesis.ids.rend());
      all_scores.insert(all_scores.end(), hypothesis.scores.rbegin(), hypothesis.scores.rend());
      lod[1].push_back(all_ids.size());
    }
    lod[0].push_back(lod[1].size() - 1);
  }
  const auto count = static_cast<int64_t>(all_ids.size());
  sentence_ids->Resize({count});
  std::copy(all_ids.begin(), all_ids.end(), sentence_ids->mutable_data<int64_t>());
  sentence_ids->set_lod(lod);
  sentence_scores->Resize({count});
  std::copy(all_scores.begin(), all_scores.end(), sentence_scores->mutable_data<T>());
  sentence_scores->set_lod(std::move(lod));
}

class BeamSearchDecodeOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const auto& ids = ctx.InputAs<LoDTensorArray>("Ids");
    const auto& scores = ctx.InputAs<LoDTensorArray>("Scores");
    HR_ENFORCE(!ids.empty() && ids.size() == scores.size(), InvalidArgument,
               "inputs Ids and Scores: expected arrays of as many steps, at least one, got ", ids.size(), " and ",
               scores.size());
    LoDTensor* sentence_ids = ctx.Output("SentenceIds");
    LoDTensor* sentence_scores = ctx.Output("SentenceScores");
    const int64_t end_id = Attr<int32_t>("end_id");
    const auto beam_size = static_cast<size_t>(Attr<int32_t>("beam_size"));
    scores[0].dtype() == DataType::kFloat64
        ? Decode<double>(ids, scores, end_id, beam_size, sentence_ids, sentence_scores)
        : Decode<float>(ids, scores, end_id, beam_size, sentence_ids, sentence_scores);
  }
};

void InferDecode(InferShapeContext& ctx) {
  for (const HashedName slot : HashedNames{"Ids", "Scores"}) {
    const VarDesc* desc = ctx.InputDesc(slot);
    HR_ENFORCE(desc == nullptr || desc->kind == VarKind::kLoDTensorArray, TypeMismatch, "input ", slot,
               ": expected a LoDTensorArray, '", desc->name, "' is a ", VarKindName(desc->kind));
  }
  EnforceType(ctx, "Ids", DataType::kInt64);
  const DataType type = ctx.InputType("Scores");
  HR_ENFORCE(type == DataType::kFloat32 || type == DataType::kFloat64, TypeMismatch,
             "input Scores: expected dtype float32 or float64, got ", DataTypeName(type));
  SetOutput(ctx, "SentenceIds", {-1}, DataType::kInt64);
  SetOutput(ctx, "SentenceScores", {-1}, type);
  ctx.SetOutputLoDLevel("SentenceIds", 2);
  ctx.SetOutputLoDLevel("SentenceScores", 2);
}

}  // namespace

HEADRACE_REGISTER_OP(beam_search_decode)
    .Comment("The sequences that a beam search has found, those of each source with the best first.")
    .Input("Ids", "a LoDTensorArray: the selected_ids of each step")
    .Input("Scores", "a LoDTensorArray: the selected_scores of each step")
    .Output("SentenceIds", "int64 [ids], with a LoD of two levels: the sequences of each source, and their ids")
    .Output("SentenceScores", "[ids], LoD of SentenceIds: the score of each sequence up to each id")
    .Attr<int32_t>("beam_size", "the most sequences of a source")
    .Attr<int32_t>("end_id", "the id that ends a sequence")
    .InferShape(InferDecode)
    .Operator<BeamSearchDecodeOp>();

}  // namespace headrace::ops
