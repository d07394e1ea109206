// filter_by_instag: the sequences that have one of some tags.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "framework/memory_pool.h"
#include "framework/op_registry.h"
#include "operators/common/kernel_data.h"
#include "operators/common/shape_inference.h"
#include "operators/math/element_loop.h"
#include "operators/math/tensor_size.h"
#include "operators/sequence/sequences.h"

namespace headrace::ops {
namespace {

// A sequence that stays: where its rows go to, where they come from, and how many they are.
struct KeptSequence {
  int64_t to;
  int64_t from;
  int64_t rows;
};

// Where the sequences of Ins begin; each row is one unless is_lod.
LoDOffsets InstanceOffsets(const ExecutionContext& ctx) {
  if (ctx.Attr<bool>("is_lod")) {
    return SequencesOf(ctx, "Ins");
  }
  LoDOffsets offsets(static_cast<size_t>(ctx.Input("Ins").dims()[0]) + 1);
  for (size_t i = 0; i < offsets.size(); ++i) {
    offsets[i] = i;
  }
  return offsets;
}

PoolVector<KeptSequence> TaggedSequences(const ExecutionContext& ctx) {
  const LoDTensor& wanted = ctx.Input("Filter_tag");
  PoolVector<int64_t> tags(wanted.data<int64_t>(), wanted.data<int64_t>() + wanted.numel());
  std::sort(tags.begin(), tags.end());
  const LoDOffsets instances = InstanceOffsets(ctx);
  const LoDOffsets& tag_offsets = SequencesOf(ctx, "Ins_tag");
  HR_ENFORCE(instances.size() == tag_offsets.size(), InvalidArgument, "input Ins_tag: expected tags of ",
             SequenceCount(instances), " sequences, as many as Ins has, got those of ", SequenceCount(tag_offsets));
  const int64_t* tag = ctx.Input("Ins_tag").data<int64_t>();
  PoolVector<KeptSequence> kept;
  int64_t rows = 0;
  ForEachSequence(tag_offsets, [&](int64_t s, int64_t begin, int64_t end) {
    const auto is_wanted = [&tags](int64_t t) { return std::binary_search(tags.begin(), tags.end(), t); };
    if (std::any_of(tag + begin, tag + end, is_wanted)) {
      const auto from = static_cast<int64_t>(instances[static_cast<size_t>(s)]);
      const int64_t count = static_cast<int64_t>(instances[static_cast<size_t>(s) + 1]) - from;
      kept.push_back({rows, from, count});
      rows += count;
    }
  });
  return kept;
}

template <typename T>
void FilterByInstagKernel(const ExecutionContext& ctx) {
  const LoDTensor& ins = ctx.Input("Ins");
  const int64_t width = ins.dims()[1];
  PoolVector<KeptSequence> kept = TaggedSequences(ctx);
  const bool none = kept.empty();
  if (none) {
    kept.push_back({0, 1, 1});  // a row of zeros, which has no weight and no gradient; the numbers are Fluid's
  }
  const auto count = static_cast<int64_t>(kept.size());
  LoDOffsets rows = {0};
  LoDOffsets each = {0};
  int64_t* map = ctx.Output("IndexMap")->Resize({count, 3}).template mutable_data<int64_t>();
  for (const KeptSequence& sequence : kept) {
    rows.push_back(static_cast<size_t>(sequence.to + sequence.rows));
    each.push_back(each.size());
    *map++ = sequence.to;
    *map++ = sequence.from;
    *map++ = sequence.rows;
  }
  float* weight = ctx.Output("LossWeight")->Resize({count, 1}).template mutable_data<float>();
  std::fill_n(weight, count, none ? 0.0F : 1.0F);
  LoDTensor* out_tensor = ctx.Output("Out");
  T* out = out_tensor->Resize({static_cast<int64_t>(rows.back()), width}).template mutable_data<T>();
  const T* from = ins.data<T>();
  if (none) {
    std::fill_n(out, width, T(0));
  } else {
    ParallelForEach(
        count,
        [=, sequences = kept.data()](int64_t i) {
          const KeptSequence& sequence = sequences[i];
          std::copy_n(from + sequence.from * width, sequence.rows * width, out + sequence.to * width);
        },
        static_cast<int64_t>(rows.back()) * width / count);
  }
  out_tensor->set_lod({std::move(rows)});
  ctx.Output("IndexMap")->set_lod({each});
  ctx.Output("LossWeight")->set_lod({std::move(each)});
}

template <typename T>
void FilterByInstagGradKernel(const ExecutionContext& ctx) {
  LoDTensor* grad = ctx.Output("Ins@GRAD");
  const int64_t width = grad->dims()[1];
  T* to = ZerosOrNull<T>(ctx, "Ins@GRAD");
  const LoDTensor& weight = ctx.Input("LossWeight");
  const bool none = weight.numel() == 1 && *weight.data<float>() == 0;
  const T* d = ctx.Input("Out@GRAD").data<T>();
  const LoDTensor& map_tensor = ctx.Input("IndexMap");
  const int64_t* map = map_tensor.data<int64_t>();
  for (int64_t i = 0; !none && i < map_tensor.dims()[0]; ++i, map += 3) {
    const KeptSequence sequence = {map[0], map[1], map[2]};
    HR_ENFORCE(sequence.to >= 0 && sequence.from >= 0 && sequence.rows >= 0 &&
                   sequence.to <= ctx.Input("Out@GRAD").dims()[0] - sequence.rows &&
                   sequence.from <= grad->dims()[0] - sequence.rows,
               OutOfRange, "input IndexMap: row ", i, " has rows ", sequence.to, " of Out and ", sequence.from,
               " of Ins, ", sequence.rows, " of each, which is too far");
    std::copy_n(d + sequence.to * width, sequence.rows * width, to + sequence.from * width);
  }
}

OpRegistrar&& IsLodAttr(OpRegistrar&& op) {
  return std::move(op).Attr<bool>("is_lod", "whether the LoD of Ins says what a sequence is, or each row is one");
}

}  // namespace

HEADRACE_REGISTER_OP(filter_by_instag)
    .Comment(
        "The sequences of Ins that have at least one of the tags Filter_tag. If there is none, a row of zeros, whose "
        "weight is 0.")
    .Input("Ins", "[rows, D]; if is_lod, with LoD")
    .Input("Ins_tag", "int64 [tags] or [tags, 1], with LoD: a sequence of tags for each sequence of Ins")
    .Input("Filter_tag", "int64, any shape: the tags")
    .Output("Out", "[rows that stay, D], with LoD")
    .Output("LossWeight", "float32 [sequences that stay, 1], with LoD: ones")
    .Output("IndexMap",
            "int64 [sequences that stay, 3], with LoD: the first row in Out, that in Ins, and the number of rows")
    .With(IsLodAttr)
    .KernelTypeFrom("Ins")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "Ins", 2);
      if (ctx.Attr<bool>("is_lod")) {
        EnforceSequences(ctx, "Ins", 2);
      }
      EnforceSequences(ctx, "Ins_tag", 1);
      EnforceType(ctx, "Ins_tag", DataType::kInt64);
      EnforceType(ctx, "Filter_tag", DataType::kInt64);
      const DDim tags = ctx.InputDim("Ins_tag");
      HR_ENFORCE(tags.size() == 1 || Fits(Numel(tags, 1, tags.size()), 1), InvalidArgument,
                 "input Ins_tag: expected a tag in each row, got dims ", ToString(tags));
      if (ctx.IsRuntime()) {
        return;  // the kernel knows how many rows stay
      }
      SetOutput(ctx, "Out", {-1, ctx.InputDim("Ins")[1]}, ctx.InputType("Ins"));
      SetOutput(ctx, "LossWeight", {-1, 1}, DataType::kFloat32);
      SetOutput(ctx, "IndexMap", {-1, 3}, DataType::kInt64);
      for (const HashedName slot : HashedNames{"Out", "LossWeight", "IndexMap"}) {
        ctx.SetOutputLoDLevel(slot, 1);
      }
    })
    .Kernel<float>(FilterByInstagKernel<float>)
    .Kernel<double>(FilterByInstagKernel<double>)
    .Kernel<int32_t>(FilterByInstagKernel<int32_t>)
    .Kernel<int64_t>(FilterByInstagKernel<int64_t>)
    .Gradient(DefaultGradient(
        {.inputs = {"Ins"}, .outputs = {"LossWeight", "IndexMap"}, .no_gradient = {"Ins_tag", "Filter_tag"}}));

HEADRACE_REGISTER_OP(filter_by_instag_grad)
    .Comment("Gradient of filter_by_instag.")
    .Input("Ins", "as in the operator; only its dims are used", kShapeOnly)
    .Input("LossWeight", "as in the operator")
    .Input("IndexMap", "as in the operator")
    .Input("Out@GRAD", "gradient of Out")
    .Input("LossWeight@GRAD", "not used", kDispensable)
    .Input("IndexMap@GRAD", "not used", kDispensable)
    .Output("Ins@GRAD", "dims of Ins")
    .With(IsLodAttr)
    .KernelTypeFrom("Out@GRAD")
    .InferShape([](InferShapeContext& ctx) {
      EnforceRank(ctx, "Ins", 2);
      EnforceDims(ctx, "Out@GRAD", {-1, ctx.InputDim("Ins")[1]});
      EnforceSameType(ctx, "Out@GRAD", "Ins");
      EnforceDims(ctx, "IndexMap", {-1, 3});
      EnforceType(ctx, "IndexMap", DataType::kInt64);
      EnforceType(ctx, "LossWeight", DataType::kFloat32);
      InferGradients(ctx, {"Ins"});
    })
    .Kernel<float>(FilterByInstagGradKernel<float>)
    .Kernel<double>(FilterByInstagGradKernel<double>);

}  // namespace headrace::ops
