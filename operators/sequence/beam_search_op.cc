// beam_search: one step of decoding that keeps the best few prefixes of each source.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"

namespace headrace::ops {
namespace {

// A way to continue a prefix.
template <typename T>
struct Candidate {
  int64_t prefix;  // row of pre_ids
  int64_t id;
  T score;
  int64_t place;  // among all candidates

  // For sorting: a NaN would have no place in an order.
  T Rank() const { return IsNaN(score) ? -std::numeric_limits<T>::infinity() : score; }
};

// Where the prefixes of each source begin, in rows: level `level` of the LoD of `scores`, or else of `ids`, which alone
// has it in programs that were written for Fluid 1.2.
LoDOffsets Sources(const ExecutionContext& ctx) {
  const LoDTensor& scores = ctx.Input("scores");
  const LoD& lod = scores.lod().empty() ? ctx.Input("ids").lod() : scores.lod();
  CheckLoD(lod, scores.dims()[0]);
  const auto level = static_cast<size_t>(ctx.Attr<int32_t>("level"));
  LoDOffsets offsets = lod[level];
  for (size_t below = level + 1; below < lod.size(); ++below) {
    for (size_t& offset : offsets) {
      offset = lod[below][offset];
    }
  }
  return offsets;
}

template <typename T>
struct Search {
  explicit Search(const ExecutionContext& ctx)
      : width(Numel(ctx.Input("scores").dims(), 1, ctx.Input("scores").dims().size())),
        beam_size(static_cast<size_t>(ctx.Attr<int32_t>("beam_size"))),
        end_id(ctx.Attr<int32_t>("end_id")),
        is_accumulated(ctx.Attr<bool>("is_accumulated")),
        pre_ids(ctx.Input("pre_ids").data<int64_t>()),
        pre_scores(ctx.Input("pre_scores").data<T>()),
        ids(ElementsOrNull<int64_t>(ctx, "ids")),
        scores(ctx.Input("scores").data<T>()) {}

  // The best candidates of the prefixes [begin, end), the best one first. Of equal ones that of the last prefix is the
  // best, then the first one.
  void Best(int64_t begin, int64_t end, PoolVector<Candidate<T>>* best) const {
    best->clear();
    for (int64_t prefix = begin; prefix < end; ++prefix) {
      if (pre_ids[prefix] == end_id) {  // has ended: it stays as it is
        best->push_back({prefix, end_id, pre_scores[prefix], prefix * width});
        continue;
      }
      for (int64_t k = prefix * width; k < (prefix + 1) * width; ++k) {
        const T score = is_accumulated ? scores[k] : pre_scores[prefix] + std::log(scores[k]);
        best->push_back({prefix, ids == nullptr ? k - prefix * width : ids[k], score, k});
      }
    }
    std::sort(best->begin(), best->end(), [](const Candidate<T>& a, const Candidate<T>& b) {
      return std::tuple(-a.Rank(), -a.prefix, a.place) < std::tuple(-b.Rank(), -b.prefix, b.place);
    });
    if (best->size() > beam_size) {
      best->erase(best->begin() + static_cast<std::ptrdiff_t>(beam_size), best->end());
    }
    // Once all have ended, and that has been written, the source is done.
    const bool done = std::all_of(best->begin(), best->end(), [this](const Candidate<T>& c) {
      return c.id == end_id && pre_ids[c.prefix] == end_id;
    });
    if (done) {
      best->clear();
    }
  }

  int64_t width;
  size_t beam_size;
  int64_t end_id;
  bool is_accumulated;
  const int64_t* pre_ids;
  const T* pre_scores;
  const int64_t* ids;  // nullptr: columns are ids
  const T* scores;
};

template <typename T>
void BeamSearchKernel(const ExecutionContext& ctx) {
  LoDOffsets sources = Sources(ctx);
  const Search<T> search(ctx);
  PoolVector<Candidate<T>> selected;
  PoolVector<Candidate<T>> best;
  LoDOffsets prefixes = {0};
  for (size_t s = 0; s + 1 < sources.size(); ++s) {
    const auto begin = static_cast<int64_t>(sources[s]);
    const auto end = static_cast<int64_t>(sources[s + 1]);
    search.Best(begin, end, &best);
    std::sort(best.begin(), best.end(), [](const Candidate<T>& a, const Candidate<T>& b) {
      return std::tuple(a.prefix, -a.Rank(), a.place) < std::tuple(b.prefix, -b.Rank(), b.place);
    });
    auto next = best.begin();
    for (int64_t prefix = begin; prefix < end; ++prefix) {
      for (; next != best.end() && next->prefix == prefix; ++next) {
        selected.push_back(*next);
      }
      prefixes.push_back(selected.size());
    }
  }
  const auto count = static_cast<int64_t>(selected.size());
  LoDTensor* selected_ids = ctx.Output("selected_ids");
  LoDTensor* selected_scores = ctx.Output("selected_scores");
  int64_t* id = selected_ids->Resize({count, 1}).template mutable_data<int64_t>();
  T* score = selected_scores->Resize({count, 1}).template mutable_data<T>();
  LoDTensor* parents = ctx.OutputOrNull("parent_idx");
  int32_t* parent = parents == nullptr ? nullptr : parents->Resize({count}).template mutable_data<int32_t>();
  for (const Candidate<T>& candidate : selected) {
    *id++ = candidate.id;
    *score++ = candidate.score;
    if (parent != nullptr) {
      *parent++ = static_cast<int32_t>(candidate.prefix);
    }
  }
  const LoD lod = {std::move(sources), std::move(prefixes)};
  selected_ids->set_lod(lod);
  selected_scores->set_lod(lod);
}

void InferBeamSearch(InferShapeContext& ctx) {
  EnforceRank(ctx, "scores", 2);
  int32_t levels = ctx.InputLoDLevel("scores");
  if (levels == 0 && ctx.HasInput("ids")) {
    levels = ctx.InputLoDLevel("ids");
  }
  const int32_t level = ctx.Attr<int32_t>("level");
  // A program need not declare the LoD of what it is fed.
  HR_ENFORCE(level < levels || (levels == 0 && !ctx.IsRuntime()), InvalidArgument,
             "input scores: expected a LoD of more than ", level, " levels (attribute level), got ", levels);
  const DDim scores = ctx.InputDim("scores");
  EnforceElements(ctx, "pre_ids", scores[0]);
  EnforceType(ctx, "pre_ids", DataType::kInt64);
  EnforceElements(ctx, "pre_scores", scores[0]);
  EnforceSameType(ctx, "pre_scores", "scores");
  if (ctx.HasInput("ids")) {
    EnforceDims(ctx, "ids", scores);
    EnforceType(ctx, "ids", DataType::kInt64);
  }
  if (ctx.IsRuntime()) {
    return;  // the kernel knows how many are selected
  }
  SetOutput(ctx, "selected_ids", {-1, 1}, DataType::kInt64);
  SetOutput(ctx, "selected_scores", {-1, 1}, ctx.InputType("scores"));
  SetOutput(ctx, "parent_idx", {-1}, DataType::kInt32);
  ctx.SetOutputLoDLevel("selected_ids", 2);
  ctx.SetOutputLoDLevel("selected_scores", 2);
}

std::function<void(const int32_t&)> AtLeast(const char* name, int32_t min) {
  return [name, min](const int32_t& value) {
    HR_ENFORCE(value >= min, InvalidArgument, "attribute ", name, ": expected ", min, " or more, got ", value);
  };
}

}  // namespace

HEADRACE_REGISTER_OP(beam_search)
    .Comment(
        "The beam_size best continuations of the prefixes of each source. A prefix that has ended stays as it is; a "
        "source of which all selected ones have ended, a step ago, has none any more.")
    .Input("pre_ids", "int64 [prefixes, 1], or a row: the last id of each prefix")
    .Input("pre_scores", "[prefixes, 1], or a row, dtype of scores: the score of each prefix")
    .Input("ids", "int64, dims of scores: the ids of the candidates; their columns if absent", kDispensable)
    .Input("scores",
           "[prefixes, candidates] with LoD, unless ids have it: scores of the whole sequences, or probabilities of "
           "the next id")
    .Output("selected_ids",
            "int64 [selected, 1], with a LoD of two levels: the prefixes of each source, and the "
            "selected ones of each prefix")
    .Output("selected_scores", "[selected, 1], LoD of selected_ids: scores of the whole sequences")
    .Output("parent_idx", "int32 [selected]: the prefixes that they continue", kDispensable)
    .Attr<int32_t>("level", "the level of the LoD of scores whose sequences are the prefixes of a source", 0,
                   AtLeast("level", 0))
    .Attr<int32_t>("beam_size", "how many are selected for a source", 1, AtLeast("beam_size", 1))
    .Attr<int32_t>("end_id", "the id that ends a sequence", 0)
    .Attr<bool>("is_accumulated", "whether scores are those of whole sequences; otherwise probabilities", true)
    .KernelTypeFrom("scores")
    .InferShape(InferBeamSearch)
    .Kernel<float>(BeamSearchKernel<float>)
    .Kernel<double>(BeamSearchKernel<double>);

}  // namespace headrace::ops
