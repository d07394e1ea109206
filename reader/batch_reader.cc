#include "reader/batch_reader.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "reader/reader_op_util.h"

namespace headrace {
namespace {

BatchContract BatchedContract(BatchContract contract) {
  contract.specs = BatchedSpecs(std::move(contract.specs));
  return contract;
}

// Whether the two can be joined along the first dimension.
void CheckAlike(const LoDTensor& a, const LoDTensor& b, size_t i) {
  HR_ENFORCE(a.dtype() == b.dtype(), TypeMismatch, "tensor ", i, ": cannot join ", DataTypeName(a.dtype()), " and ",
             DataTypeName(b.dtype()), " to one batch");
  const bool alike = !a.dims().empty() && a.dims().size() == b.dims().size() &&
                     std::equal(a.dims().begin() + 1, a.dims().end(), b.dims().begin() + 1);
  HR_ENFORCE(alike, InvalidArgument, "tensor ", i, ": cannot join shapes ", ToString(a.dims()), " and ",
             ToString(b.dims()), " to one batch");
  HR_ENFORCE(a.lod_level() == b.lod_level(), InvalidArgument, "tensor ", i, ": cannot join LoDs of depth ",
             a.lod_level(), " and ", b.lod_level(), " to one batch");
}

LoDTensor Join(const std::vector<LoDTensorArray>& batches, size_t i) {
  const LoDTensor& first = batches.front()[i];
  LoD lod = first.lod();
  int64_t rows = 0;
  for (const LoDTensorArray& batch : batches) {
    CheckAlike(first, batch[i], i);
    rows += batch[i].dims()[0];
    if (&batch == &batches.front()) continue;
    for (size_t level = 0; level < lod.size(); ++level) {
      const LoDOffsets& more = batch[i].lod()[level];
      const size_t shift = lod[level].back();
      for (size_t k = 1; k < more.size(); ++k) lod[level].push_back(shift + more[k]);
    }
  }
  Tensor joined;
  DDim dims = first.dims();
  dims[0] = rows;
  joined.Resize(std::move(dims));
  auto* to = static_cast<char*>(joined.mutable_data(first.dtype()));
  for (const LoDTensorArray& batch : batches) {
    if (batch[i].nbytes() == 0) continue;
    std::memcpy(to, batch[i].raw_data(), batch[i].nbytes());
    to += batch[i].nbytes();
  }
  return LoDTensor(std::move(joined), std::move(lod));
}

}  // namespace

std::vector<TensorSpec> BatchedSpecs(std::vector<TensorSpec> specs) {
  for (size_t i = 0; i < specs.size(); ++i) {
    HR_ENFORCE(!specs[i].dims.empty(), InvalidArgument, "tensor ", i,
               " is a scalar, which has no dimension to make batches along");
    specs[i].dims[0] = -1;
  }
  return specs;
}

BatchReader::BatchReader(const std::shared_ptr<ReaderBase>& below, size_t batch_size, bool drop_last)
    : DecoratedReader(below, BatchedContract(below->contract())), batch_size_(batch_size), drop_last_(drop_last) {
  HR_ENFORCE(batch_size > 0, InvalidArgument, "the size of a batch must be at least 1, got 0");
}

void BatchReader::ReadNextImpl(LoDTensorArray* out) {
  LoDTensorArray batch;
  uint64_t number = 0;
  while (gathered_.size() < batch_size_ && underlying()->ReadIfRunning(&batch, &number) && !batch.empty()) {
    CheckBatch(underlying()->contract(), {}, batch, number);
    gathered_.push_back(std::move(batch));
  }
  const std::vector<LoDTensorArray> batches = std::exchange(gathered_, {});
  if (batches.empty() || (drop_last_ && batches.size() < batch_size_)) return;
  LoDTensorArray joined;
  for (size_t i = 0; i < batches.front().size(); ++i) joined.push_back(Join(batches, i));
  *out = std::move(joined);
}

bool BatchReader::RewindImpl() {
  gathered_.clear();
  return DecoratedReader::RewindImpl();
}

namespace {

class CreateBatchReaderOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    CreateDecoratedReader(
        scope, Input("UnderlyingReader"), Output("Out"), [this](const std::shared_ptr<ReaderBase>& below) {
          return DecoratedReader::Make<BatchReader>(below, PositiveAttr(desc(), "batch_size"), Attr<bool>("drop_last"));
        });
  }
};

HEADRACE_REGISTER_OP(create_batch_reader)
    .Comment("Creates a reader that joins batches along their first dimension. Nothing if it exists.")
    .Input("UnderlyingReader", "reader variable")
    .Output("Out", "reader variable")
    .Attr<int32_t>("batch_size", "batches that are joined to one")
    .Attr<bool>("drop_last", "whether a smaller last batch is left away", false)
    .InferShape([](InferShapeContext& context) {
      PositiveAttr(context.op(), "batch_size");
      DeclareReader(context, BatchedSpecs(DeclaredSpecs(context, "UnderlyingReader")));
    })
    .Operator<CreateBatchReaderOp>();

}  // namespace
}  // namespace headrace
