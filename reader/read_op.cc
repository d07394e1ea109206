// The read operator: takes the next batch of the reader in a variable, checks it against what the reader declares, and
// writes it to its outputs.
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
  HR_ENFORCE(yields == outputs, InvalidArgument, "the reader '", reader,
             "' has to yield a tensor for each variable that is read: expected ", outputs, ", got ", yields);
}

class ReadOp : public OperatorBase {
 public:
  explicit ReadOp(OpDesc desc) : OperatorBase(std::move(desc)), names_(Outputs("Out")), lasts_(names_.size()) {}

  void Prepare(const BlockDesc& block) override {
    for (size_t i = 0; i < names_.size(); ++i) {
      const VarDesc* out = block.FindVar(names_[i]);
      lasts_[i] = out != nullptr && out->persistable;
    }
  }

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    const ExecutionContext& ctx = Bind(scope);
    const Variable& variable = ctx.InputVariable("Reader");
    const std::shared_ptr<ReaderBase> reader = GetReader(variable);
    CheckCount(variable.name(), reader->specs().size(), names_.size());
    // The memory of the batch before may be what the feeder waits for. What is persistable must survive the end.
    for (size_t i = 0; i < names_.size(); ++i) {
      if (!lasts_[i]) *ctx.Output("Out", i) = {};
    }
    LoDTensorArray batch;
    uint64_t number = 0;
    reader->ReadNext(&batch, &number);
    if (batch.empty()) {
      HR_ENFORCE(!Attr<bool>("throw_eof_exp"), EndOfData, "There is no next data.");
      for (size_t i = 0; i < names_.size(); ++i) *ctx.Output("Out", i) = {};
      return;
    }
    CheckBatch(reader->contract(), names_, batch, number);
    for (size_t i = 0; i < names_.size(); ++i) {
      *ctx.Output("Out", i) = std::move(batch[i]);
    }
  }

  const std::vector<std::string>& names_;
  std::vector<bool> lasts_;  // whether the variable is persistable
};

HEADRACE_REGISTER_OP(read)
    .Comment(
        "Takes the next batch from a reader and checks it against the reader's declaration. A batch that does not fit "
        "is an error that takes this batch alone. While it waits and after an error, persistable variables have the "
        "batch before, and others are empty.")
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
