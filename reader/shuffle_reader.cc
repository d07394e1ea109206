#include "reader/shuffle_reader.h"

#include <utility>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "reader/index_permutation.h"
#include "reader/reader_op_util.h"

namespace headrace {

ShuffleReader::ShuffleReader(const std::shared_ptr<ReaderBase>& below, size_t buffer_size, uint64_t seed)
    : DecoratedReader(below), buffer_size_(buffer_size), seed_(seed) {
  HR_ENFORCE(buffer_size > 0, InvalidArgument, "the buffer of a shuffling reader must hold at least 1 batch, got 0");
}

void ShuffleReader::ReadNextImpl(LoDTensorArray* out) {
  if (buffer_.empty()) {
    LoDTensorArray batch;
    while (filling_.size() < buffer_size_ && underlying()->ReadIfRunning(&batch) && !batch.empty()) {
      filling_.push_back(std::move(batch));
    }
    if (filling_.empty()) return;
    const IndexPermutation order(filling_.size(), seed_, buffers_++);
    for (uint64_t i = 0; i < filling_.size(); ++i) buffer_.push_back(std::move(filling_[order(i)]));
    filling_.clear();
  }
  *out = std::move(buffer_.back());
  buffer_.pop_back();
}

bool ShuffleReader::RewindImpl() {
  Clear();
  return DecoratedReader::RewindImpl();
}

void ShuffleReader::Clear() {
  buffer_.clear();
  filling_.clear();
}

namespace {

class CreateShuffleReaderOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    CreateDecoratedReader(
        scope, Input("UnderlyingReader"), Output("Out"), [this](const std::shared_ptr<ReaderBase>& below) {
          return DecoratedReader::Make<ShuffleReader>(below, PositiveAttr(desc(), "buffer_size"), SeedAttr(desc()));
        });
  }
};

HEADRACE_REGISTER_OP(create_shuffle_reader)
    .Comment("Creates a reader that yields batches in a pseudo-random order. Nothing if it exists.")
    .Input("UnderlyingReader", "reader variable")
    .Output("Out", "reader variable")
    .Attr<int32_t>("buffer_size", "batches that are shuffled together")
    .Attr<int64_t>("seed", "the same seed gives the same order; 0: another order each time", 0)
    .InferShape([](InferShapeContext& context) {
      PositiveAttr(context.op(), "buffer_size");
      DeclareReaderLikeUnderlying(context);
    })
    .Operator<CreateShuffleReaderOp>();

}  // namespace
}  // namespace headrace
