#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "reader/batch_check.h"
#include "reader/reader_op_util.h"

namespace headrace {
namespace {

void CheckCount(const std::string& reader, size_t yields, size_t outputs) {
  HR_ENFORCE(yields == outputs, InvalidArgument, "the reader '", reader, "' yields ", yields, " tensors, but ", outputs,
             " variables are to be read");
}

class ReadOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const std::vector<std::string>& names = Outputs("Out");
    const std::shared_ptr<ReaderBase> reader = GetReader(scope, Input("Reader"));
    CheckCount(Input("Reader"), reader->specs().size(), names.size());
    // The memory of the batch before may be what the feeder waits for.
    for (const std::string& name : names) *scope.GetVar(name).GetMutable<LoDTensor>() = {};
    LoDTensorArray batch;
    uint64_t number = 0;
    reader->ReadNext(&batch, &number);
    if (batch.empty()) {
      HR_ENFORCE(!Attr<bool>("throw_eof_exp"), EndOfData, "There is no next data.");
      return;
    }
    CheckBatch(reader->contract(), names, batch, number);
    for (size_t i = 0; i < names.size(); ++i) {
      *scope.GetVar(names[i]).GetMutable<LoDTensor>() = std::move(batch[i]);
    }
  }
};

HEADRACE_REGISTER_OP(read)
    .Comment(
        "Takes the next batch from a reader and checks it against what the reader declares. A batch that does not fit "
        "is an error "
        "that takes this batch alone. The variables are empty while it waits and after an error.")
    .Input("Reader", "reader variable")
    .Output("Out", "one variable for each tensor that the reader yields", kDuplicable)
    .Attr<bool>("throw_eof_exp", "the end of the data is an EndOfData; else the variables are left empty", true)
    .Attr<bool>("infer_out", "whether the declarations of the variables are made those of the reader", true)
    .InferShape([](InferShapeContext& context) {
      const std::vector<TensorSpec>& specs = DeclaredSpecs(context, "Reader");
      if (specs.empty()) return;  // declared elsewhere; the run will tell
      CheckCount(context.op().Input("Reader").front(), specs.size(), context.OutputSize("Out"));
      if (!context.Attr<bool>("infer_out")) return;
      for (size_t i = 0; i < specs.size(); ++i) {
        if (VarDesc* out = context.OutputDesc("Out", i)) {
          out->kind = VarKind::kLoDTensor;
          out->tensor = specs[i];
          out->stop_gradient = true;
        }
      }
    })
    .ReadsData()
    .Operator<ReadOp>();

}  // namespace
}  // namespace headrace
