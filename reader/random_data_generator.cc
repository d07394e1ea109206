#include "reader/random_data_generator.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "framework/errors.h"
#include "framework/op_registry.h"
#include "reader/index_permutation.h"
#include "reader/reader_op_util.h"

namespace headrace {
namespace {

BatchContract FloatContract(const std::vector<DDim>& shapes) {
  BatchContract contract;
  for (const DDim& shape : shapes) {
    for (const int64_t dim : shape) {
      HR_ENFORCE(dim >= 0, InvalidArgument, "random data need shapes that are wholly known, got ", ToString(shape));
    }
    contract.specs.push_back({.dims = shape, .dtype = DataType::kFloat32, .lod_level = 0});
  }
  return contract;
}

}  // namespace

RandomDataGenerator::RandomDataGenerator(const std::vector<DDim>& shapes, float low, float high, uint64_t seed)
    : ReaderBase(FloatContract(shapes)), low_(low), high_(high), seed_(MixBits(seed)) {
  HR_ENFORCE(low < high && std::isfinite(high - low), InvalidArgument, "random data need low < high, both finite, got ",
             low, " and ", high);
}

void RandomDataGenerator::ReadNextImpl(LoDTensorArray* out) {
  const float largest = std::nextafter(high_, low_);  // rounding may reach the bound
  for (const TensorSpec& spec : specs()) {
    LoDTensor tensor;
    tensor.Resize(spec.dims);
    auto* data = tensor.mutable_data<float>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const uint64_t bits = MixBits(seed_ ^ MixBits(position_++)) >> 40;  // 24, as many as a float's fraction holds
      data[i] = std::min(low_ + (high_ - low_) * (static_cast<float>(bits) * 0x1p-24F), largest);
    }
    out->push_back(std::move(tensor));
  }
}

namespace {

class CreateRandomDataGeneratorOp : public OperatorBase {
 public:
  using OperatorBase::OperatorBase;

 private:
  void RunImpl(const Scope& scope, const Place&) override {
    CreateReader(scope, Output("Out"), [this] {
      std::vector<DDim> shapes;
      for (const TensorSpec& spec : ContractFromAttrs(desc()).specs) shapes.push_back(spec.dims);
      return std::make_shared<RandomDataGenerator>(shapes, Attr<float>("low"), Attr<float>("high"), SeedAttr(desc()));
    });
  }
};

void CheckAllFloat(const OpDesc& op) {
  for (const TensorSpec& spec : ContractFromAttrs(op).specs) {
    HR_ENFORCE(spec.dtype == DataType::kFloat32, Unimplemented, "random data are float32, not ",
               DataTypeName(spec.dtype));
    HR_ENFORCE(spec.lod_level == 0, Unimplemented, "random data have no LoD");
  }
}

HEADRACE_REGISTER_OP(create_random_data_generator)
    .Comment(
        "Creates a reader of random float32 tensors, uniformly distributed in [low, high), without end. Nothing if it "
        "exists.")
    .Output("Out", "reader variable")
    .Attr<float>("low", "the least value")
    .Attr<float>("high", "the bound above")
    .Attr<int64_t>("seed", "the same seed gives the same data; 0: other data each time", 0)
    .With(DeclareContractAttrs)
    .InferShape([](InferShapeContext& context) {
      CheckAllFloat(context.op());
      DeclareReader(context, ContractFromAttrs(context.op()).specs);
    })
    .Operator<CreateRandomDataGeneratorOp>();

}  // namespace
}  // namespace headrace
