#include "reader/multi_pass_reader.h"

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "reader/reader_op_util.h"

namespace headrace {

MultiPassReader::MultiPassReader(const std::shared_ptr<ReaderBase>& below, uint64_t pass_num)
    : DecoratedReader(below), pass_num_(pass_num) {
  HR_ENFORCE(pass_num > 0, InvalidArgument, "the number of passes must be at least 1, got 0");
  HR_ENFORCE(below->CanRewind(), FailedPrecondition,
             "the reader below gets its data from outside and cannot read them again: repeat the passes where the data "
             "come from");
}

void MultiPassReader::ReadNextImpl(LoDTensorArray* out) {
  while (passes_ended_ < pass_num_) {
    if (!underlying()->ReadIfRunning(out) || !out->empty()) return;
    if (++passes_ended_ < pass_num_ && !underlying()->Rewind()) return;  // stopped in the meantime
  }
}

void MultiPassReader::Restart() {
  DecoratedReader::Restart();
  passes_ended_ = 0;
}

bool MultiPassReader::RewindImpl() {
  passes_ended_ = 0;
  return DecoratedReader::RewindImpl();
}

namespace {

class CreateMultiPassReaderOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    CreateDecoratedReader(scope, Input("UnderlyingReader"), Output("Out"),
                          [this](const std::shared_ptr<ReaderBase>& below) {
                            return DecoratedReader::Make<MultiPassReader>(below, PositiveAttr(desc(), "pass_num"));
                          });
  }
};

HEADRACE_REGISTER_OP(create_multi_pass_reader)
    .Comment("Creates a reader that yields the data of another one several times over. Nothing if it exists.")
    .Input("UnderlyingReader", "reader variable, of data that can be read again")
    .Output("Out", "reader variable")
    .Attr<int32_t>("pass_num", "how often the data are read")
    .InferShape([](InferShapeContext& context) {
      PositiveAttr(context.op(), "pass_num");
      DeclareReaderLikeUnderlying(context);
    })
    .Operator<CreateMultiPassReaderOp>();

}  // namespace
}  // namespace headrace
