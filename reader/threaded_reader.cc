#include "reader/threaded_reader.h"

#include "framework/op_registry.h"
#include "reader/reader_op_util.h"

namespace headrace {
namespace {

class CreateThreadedReaderOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    CreateDecoratedReader(
        scope, Input("UnderlyingReader"), Output("Out"),
        [](const std::shared_ptr<ReaderBase>& below) { return DecoratedReader::Make<ThreadedReader>(below); });
  }
};

HEADRACE_REGISTER_OP(create_threaded_reader)
    .Comment("Creates a reader of the batches of another one, for several threads. Nothing if it exists.")
    .Input("UnderlyingReader", "reader variable")
    .Output("Out", "reader variable")
    .Attr<bool>("safe_mode", "Fluid's, where it forbids a reset, which is safe here at any moment", true)
    .InferShape(DeclareReaderLikeUnderlying)
    .Operator<CreateThreadedReaderOp>();

}  // namespace
}  // namespace headrace
