// chunk_eval: precision, recall and F1 of the chunks that tagged sequences are cut into.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/shape_inference.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

constexpr int64_t kNoTag = -1;

// The tags of a scheme; a label is chunk type · count + tag.
struct Tags {
  explicit Tags(HashedName scheme) {
    if (scheme == "IOB") {
      count = 2;
      begin = 0;
      inside = 1;
    } else if (scheme == "IOE") {
      count = 2;
      inside = 0;
      end = 1;
    } else if (scheme == "IOBES") {
      count = 4;
      begin = 0;
      inside = 1;
      end = 2;
      single = 3;
    }
  }
  int64_t count = 1;  // "plain": the type alone
  int64_t begin = kNoTag;
  int64_t inside = kNoTag;
  int64_t end = kNoTag;
  int64_t single = kNoTag;
};

struct Token {
  int64_t tag;
  int64_t type;
};

// Whether a chunk ends before `token`, which follows `before`; both of chunks of the same type.
bool EndsBetween(const Tags& tags, const Token& before, const Token& token) {
  if (before.tag == tags.begin || before.tag == tags.inside) {
    return token.tag == tags.begin || token.tag == tags.single;
  }
  return before.tag == tags.end || before.tag == tags.single;
}

// Whether a chunk begins with `token`, which follows `before`; both of chunks of the same type.
bool BeginsWith(const Tags& tags, const Token& before, const Token& token) {
  if (token.tag == tags.begin || token.tag == tags.single) {
    return true;
  }
  return (token.tag == tags.inside || token.tag == tags.end) && (before.tag == tags.end || before.tag == tags.single);
}

struct LabelledChunk {
  int64_t begin;
  int64_t end;
  int64_t type;
  bool operator==(const LabelledChunk&) const = default;
};

// How sequences are cut.
struct Cutter {
  Tags tags;
  int64_t types;
  const std::vector<int32_t>& excluded;

  // Cuts sequence `s` of input `slot`. Chunks of excluded types are left out.
  void Cut(HashedName slot, const int64_t* label, const SequenceRanges& sequences, int64_t s,
           PoolVector<LabelledChunk>* chunks) const {
    chunks->clear();
    const int64_t begin = sequences.Begin(s);
    const int64_t end = sequences.End(s);
    Token before{kNoTag, types};
    LabelledChunk open{begin, begin, types};
    for (int64_t i = begin; i <= end; ++i) {
      Token token{kNoTag, types};
      if (i < end) {
        HR_ENFORCE(0 <= label[i] && label[i] <= types * tags.count, OutOfRange, "input ", slot, ": ",
                   sequences.Place(s, i), " has label ", label[i], ", expected one in [0, ", types * tags.count, "]");
        token = {label[i] % tags.count, label[i] / tags.count};
      }
      const bool inside = before.type != types;
      const bool same = before.type == token.type;
      // What is not in the terms of the scheme (an end tag of its own in IOE, say) keeps a chunk open.
      if (inside && open.type != types && (!same || EndsBetween(tags, before, token))) {
        if (std::find(excluded.begin(), excluded.end(), open.type) == excluded.end()) {
          chunks->push_back({open.begin, i, open.type});
        }
        open.type = types;
      }
      if (token.type != types && (!same || BeginsWith(tags, before, token))) {
        open = {i, i, token.type};
      }
      before = token;
    }
  }
};

void ChunkEvalKernel(const ExecutionContext& ctx) {
  const SequenceRanges sequences(ctx, "Inference", "SeqLength");
  HR_ENFORCE(sequences.padded() || ctx.Input("Label").lod() == ctx.Input("Inference").lod(), InvalidArgument,
             "input Label: expected the LoD of Inference, ", ToString(ctx.Input("Inference").lod()), ", got ",
             ToString(ctx.Input("Label").lod()));
  const Cutter cutter{Tags(ctx.Text("chunk_scheme")), ctx.Attr<int32_t>("num_chunk_types"),
                      ctx.Attr<std::vector<int32_t>>("excluded_chunk_types")};
  const int64_t* inferred = ctx.Input("Inference").data<int64_t>();
  const int64_t* label = ctx.Input("Label").data<int64_t>();
  int64_t inferred_count = 0;
  int64_t label_count = 0;
  int64_t correct = 0;
  PoolVector<LabelledChunk> inferred_chunks;
  PoolVector<LabelledChunk> label_chunks;
  for (int64_t s = 0; s < sequences.count(); ++s) {
    cutter.Cut("Inference", inferred, sequences, s, &inferred_chunks);
    cutter.Cut("Label", label, sequences, s, &label_chunks);
    inferred_count += static_cast<int64_t>(inferred_chunks.size());
    label_count += static_cast<int64_t>(label_chunks.size());
    auto expected = label_chunks.begin();
    for (const LabelledChunk& chunk : inferred_chunks) {
      expected =
          std::find_if(expected, label_chunks.end(), [&](const LabelledChunk& c) { return c.begin >= chunk.begin; });
      correct += expected != label_chunks.end() && *expected == chunk ? 1 : 0;
    }
  }
  const auto ratio = [](int64_t part, int64_t whole) {
    return whole == 0 ? 0.0F : static_cast<float>(part) / static_cast<float>(whole);
  };
  const float precision = ratio(correct, inferred_count);
  const float recall = ratio(correct, label_count);
  *ctx.Output("Precision")->mutable_data<float>() = precision;
  *ctx.Output("Recall")->mutable_data<float>() = recall;
  *ctx.Output("F1-Score")->mutable_data<float>() = correct == 0 ? 0.0F : 2 * precision * recall / (precision + recall);
  *ctx.Output("NumInferChunks")->mutable_data<int64_t>() = inferred_count;
  *ctx.Output("NumLabelChunks")->mutable_data<int64_t>() = label_count;
  *ctx.Output("NumCorrectChunks")->mutable_data<int64_t>() = correct;
}

void InferChunkEval(InferShapeContext& ctx) {
  const int32_t types = ctx.Attr<int32_t>("num_chunk_types");
  HR_ENFORCE(types > 0, InvalidArgument, "attribute num_chunk_types: expected 1 or more, got ", types);
  for (const int32_t type : ctx.Attr<std::vector<int32_t>>("excluded_chunk_types")) {
    HR_ENFORCE(0 <= type && type < types, InvalidArgument, "attribute excluded_chunk_types: expected types in [0, ",
               types, "), got ", type);
  }
  const DDim dims = ctx.InputDim("Inference");
  const bool padded = ctx.HasInput("SeqLength");
  if (padded) {
    EnforceRankAtLeast(ctx, "Inference", 2);
    EnforceLengths(ctx, "SeqLength", dims[0]);
  }
  for (const HashedName slot : HashedNames{"Inference", "Label"}) {
    if (padded) {
      EnforceDims(ctx, slot, dims.size() == 2 ? dims : DDim{dims[0], dims[1], 1});
    } else {
      EnforceSequences(ctx, slot, 1);
      EnforceDims(ctx, slot, dims.size() == 1 ? dims : DDim{dims[0], 1});
    }
    EnforceType(ctx, slot, DataType::kInt64);
  }
  for (const HashedName slot : HashedNames{"Precision", "Recall", "F1-Score"}) {
    SetOutput(ctx, slot, {1}, DataType::kFloat32);
  }
  for (const HashedName slot : HashedNames{"NumInferChunks", "NumLabelChunks", "NumCorrectChunks"}) {
    SetOutput(ctx, slot, {1}, DataType::kInt64);
  }
}

}  // namespace

HEADRACE_REGISTER_OP(chunk_eval)
    .Comment("How well the chunks (names, phrases) of predicted tags agree with those of true ones.")
    .Input(
        "Inference",
        "int64 [rows, 1] or [rows], with LoD, or [N, rows] or [N, rows, 1] with SeqLength: type * tags of the scheme "
        "+ tag; num_chunk_types * tags: no chunk")
    .Input("Label", "dims and LoD of Inference: the true ones")
    .Input("SeqLength", "int64 [N] or [N, 1]: how many rows each sequence has; the others are padding", kDispensable)
    .Output("Precision", "float32 [1]; 0 without chunks")
    .Output("Recall", "float32 [1]; 0 without chunks")
    .Output("F1-Score", "float32 [1]; 0 without chunks")
    .Output("NumInferChunks", "int64 [1]: chunks of Inference")
    .Output("NumLabelChunks", "int64 [1]: chunks of Label")
    .Output("NumCorrectChunks", "int64 [1]: chunks of both")
    .Attr<int32_t>("num_chunk_types", "number of chunk types")
    .Attr<std::string>("chunk_scheme",
                       "the tags, in the order of their numbers: 'IOB' (begin, inside), 'IOE' (inside, end), 'IOBES' "
                       "(begin, inside, end, single) or 'plain' (none: equal types in a row are one chunk)",
                       "IOB",
                       [](const std::string& scheme) {
                         HR_ENFORCE(scheme == "IOB" || scheme == "IOE" || scheme == "IOBES" || scheme == "plain",
                                    InvalidArgument,
                                    "attribute chunk_scheme: expected 'IOB', 'IOE', 'IOBES' or 'plain', got '", scheme,
                                    "'");
                       })
    .Attr<std::vector<int32_t>>("excluded_chunk_types", "types whose chunks do not count", {})
    .InferShape(InferChunkEval)
    .Kernel<int64_t>(ChunkEvalKernel);

}  // namespace headrace::ops
