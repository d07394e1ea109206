// create_double_buffer_reader: puts a BufferedReader around another reader.
#include <string>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "reader/buffered_reader.h"
#include "reader/reader_op_util.h"

namespace headrace {
namespace {

class CreateDoubleBufferReaderOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    CreateDecoratedReader(
        scope, Input("UnderlyingReader"), Output("Out"),
        [](const std::shared_ptr<ReaderBase>& below) { return DecoratedReader::Make<BufferedReader>(below); });
  }
};

void CheckPlace(const std::string& place) {
  HR_ENFORCE(place.empty() || place == "AUTO" || place == "CPU" || place == "CPUPlace", InvalidArgument,
             "the place of a double buffer is 'CPU' or 'AUTO', got '", place, "'");
}

HEADRACE_REGISTER_OP(create_double_buffer_reader)
    .Comment("Creates a reader that reads ahead of its consumer, in a thread. Nothing if it exists.")
    .Input("UnderlyingReader", "reader variable")
    .Output("Out", "reader variable")
    .Attr<std::string>("place", "where the batches are wanted: 'CPU', or 'AUTO', the place of the executor", "AUTO",
                       CheckPlace)
    .InferShape(DeclareReaderLikeUnderlying)
    .Operator<CreateDoubleBufferReaderOp>();

}  // namespace
}  // namespace headrace
