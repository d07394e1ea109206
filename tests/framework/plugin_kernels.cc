// A library that adds a kernel to one of our operators, and a reader: numbers from 0 on.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "framework/op_registry.h"
#include "reader/reader.h"
#include "reader/reader_op_util.h"

namespace {

using headrace::ExecutionContext;
using headrace::LoDTensor;

HEADRACE_REGISTER_KERNEL(relu, int32_t, [](const ExecutionContext& ctx) {
  const LoDTensor& x = ctx.Input("X");
  const auto* from = x.data<int32_t>();
  std::transform(from, from + x.numel(), ctx.Output("Out")->mutable_data<int32_t>(),
                 [](int32_t v) { return std::max(v, 0); });
});

headrace::BatchContract OneNumber() {
  headrace::BatchContract contract;
  contract.specs = {{{1}, headrace::DataType::kInt64, 0}};
  return contract;
}

class Counter : public headrace::ReaderBase {
 public:
  explicit Counter(int64_t count) : ReaderBase(OneNumber()), count_(count) {}

 private:
  void ReadNextImpl(headrace::LoDTensorArray* out) override {
    if (next_ < count_) {
      *out->emplace_back().Resize({1}).mutable_data<int64_t>() = next_++;
    }
  }
  void Restart() override { next_ = 0; }

  const int64_t count_;
  int64_t next_ = 0;
};

class CreateCounterOp : public headrace::OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const headrace::Scope& scope, const headrace::Place&) override {
    auto* holder = scope.GetVar(Output("Out")).GetMutable<headrace::ReaderHolder>();
    if (holder->Get() == nullptr) {
      holder->Reset(std::make_shared<Counter>(Attr<int32_t>("count")));
    }
  }
};

HEADRACE_REGISTER_OP(create_plugin_counter)
    .Output("Out", "reader variable")
    .Attr<int32_t>("count", "how many numbers a pass has")
    .InferShape([](headrace::InferShapeContext& ctx) { headrace::DeclareReader(ctx, OneNumber().specs); })
    .Operator<CreateCounterOp>();

}  // namespace
