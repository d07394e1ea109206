#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "framework/executor.h"
#include "framework/selected_rows.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

// An optimizer at work on two parameters, in place, in double.
class Optimizer {
 public:
  explicit Optimizer(const std::string& type) : test_(type) {
    test_.In<double>("Param", {2}, {1, -2})
        .In<double>("Grad", {2}, {0.5, 0.25})
        .In<float>("LearningRate", {1}, {0.125f});
    test_.InPlace("ParamOut", "Param");
  }
  Optimizer& State(const std::string& slot, const std::vector<double>& values) {
    test_.In<double>(slot, {static_cast<int64_t>(values.size())}, values).InPlace(slot + "Out", slot);
    return *this;
  }
  OpTest& test() { return test_; }

 private:
  OpTest test_;
};

// Attributes are float, and epsilon takes its part.
void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 2e-6) << i;
  }
}

TEST(Sgd, GoesAgainstTheGradient) {
  Optimizer sgd("sgd");
  sgd.test().Run();
  EXPECT_EQ(sgd.test().Get<double>("ParamOut"), (std::vector<double>{1 - 0.0625, -2 - 0.03125}));
}

TEST(Sgd, MayWriteElsewhere) {
  OpTest test("sgd");
  test.In<float>("Param", {1}, {1})
      .In<float>("Grad", {1}, {1})
      .In<float>("LearningRate", {1}, {0.5f})
      .Out("ParamOut")
      .Run();
  EXPECT_EQ(test.Get<float>("ParamOut"), (std::vector<float>{0.5f}));
}

TEST(Momentum, KeepsItsVelocity) {
  Optimizer momentum("momentum");
  momentum.State("Velocity", {2, 0}).test().Attr("mu", 0.5f).Run();
  EXPECT_EQ(momentum.test().Get<double>("VelocityOut"), (std::vector<double>{1.5, 0.25}));
  EXPECT_EQ(momentum.test().Get<double>("ParamOut"), (std::vector<double>{1 - 0.125 * 1.5, -2 - 0.125 * 0.25}));
}

TEST(Momentum, LooksAheadByNesterov) {
  Optimizer momentum("momentum");
  momentum.State("Velocity", {2, 0}).test().Attr("mu", 0.5f).Attr("use_nesterov", true).Run();
  EXPECT_EQ(momentum.test().Get<double>("VelocityOut"), (std::vector<double>{1.5, 0.25}));
  EXPECT_EQ(momentum.test().Get<double>("ParamOut"),
            (std::vector<double>{1 - 0.125 * (0.5 + 0.5 * 1.5), -2 - 0.125 * (0.25 + 0.5 * 0.25)}));
}

// The first steps, by the formulas of the paper: whatever the gradient is, the first one has the length of the learning
// rate.
TEST(Adam, FollowsItsFormula) {
  Optimizer first("adam");
  first.State("Moment1", {0, 0})
      .State("Moment2", {0, 0})
      .State("Beta1Pow", {0.9})
      .State("Beta2Pow", {0.999})
      .test()
      .Run();
  ExpectNear(first.test().Get<double>("ParamOut"), {1 - 0.125, -2 - 0.125});
  ExpectNear(first.test().Get<double>("Moment1Out"), {0.05, 0.025});
  ExpectNear(first.test().Get<double>("Moment2Out"), {0.001 * 0.25, 0.001 * 0.0625});
  ExpectNear(first.test().Get<double>("Beta1PowOut"), {0.81});
  ExpectNear(first.test().Get<double>("Beta2PowOut"), {0.998001});

  Optimizer second("adam");
  second.State("Moment1", {0.05, -0.3})
      .State("Moment2", {0.01, 0.02})
      .State("Beta1Pow", {0.81})
      .State("Beta2Pow", {0.998001})
      .test()
      .Run();
  const auto step = [](double param, double grad, double m1, double m2) {
    m1 = (0.9 * m1 + 0.1 * grad) / (1 - 0.81);
    m2 = (0.999 * m2 + 0.001 * grad * grad) / (1 - 0.998001);
    return param - 0.125 * m1 / std::sqrt(m2);
  };
  ExpectNear(second.test().Get<double>("ParamOut"), {step(1, 0.5, 0.05, 0.01), step(-2, 0.25, -0.3, 0.02)});
}

// The weights decay by the learning rate as it is, not as Adam corrects it.
TEST(AdamW, DecaysTheWeightsBesidesTheGradient) {
  Optimizer adamw("adamw");
  adamw.State("Moment1", {0, 0}).State("Moment2", {0, 0}).State("Beta1Pow", {0.9}).State("Beta2Pow", {0.999});
  adamw.test().Attr("coeff", 0.5).Run();
  ExpectNear(adamw.test().Get<double>("ParamOut"), {1 - 0.125 * 0.5 - 0.125, -2 + 0.125 * 0.5 * 2 - 0.125});
  ExpectNear(adamw.test().Get<double>("Moment1Out"), {0.05, 0.025});
  ExpectRunThrows<InvalidArgument>(adamw.test().Attr("coeff", -0.5), "adamw", "coeff", "0 or more");
}

TEST(Adam, LeavesThePowersToOthersIfAsked) {
  Optimizer adam("adam");
  adam.State("Moment1", {0, 0}).State("Moment2", {0, 0});
  adam.test().In<float>("Beta1Pow", {1}, {0.9f}).In<float>("Beta2Pow", {1}, {0.999f}).Run();
  ExpectNear(adam.test().Get<double>("ParamOut"), {1 - 0.125, -2 - 0.125});
}

TEST(Adagrad, FollowsItsFormula) {
  Optimizer adagrad("adagrad");
  adagrad.State("Moment", {1, 0}).test().Run();
  ExpectNear(adagrad.test().Get<double>("MomentOut"), {1.25, 0.0625});
  ExpectNear(adagrad.test().Get<double>("ParamOut"),
             {1 - 0.125 * 0.5 / (std::sqrt(1.25) + 1e-6), -2 - 0.125 * 0.25 / (0.25 + 1e-6)});
}

TEST(Rmsprop, FollowsItsFormula) {
  Optimizer rmsprop("rmsprop");
  rmsprop.State("Moment", {0.5, 0})
      .State("MeanSquare", {1, 0})
      .test()
      .Attr("momentum", 0.5f)
      .Attr("decay", 0.75f)
      .Run();
  const double square = 0.75 + 0.25 * 0.25;
  ExpectNear(rmsprop.test().Get<double>("MeanSquareOut"), {square, 0.25 * 0.0625});
  const double moment = 0.25 + 0.125 * 0.5 / std::sqrt(square);
  EXPECT_NEAR(rmsprop.test().Get<double>("MomentOut")[0], moment, 1e-7);
  EXPECT_NEAR(rmsprop.test().Get<double>("ParamOut")[0], 1 - moment, 1e-7);
}

TEST(Rmsprop, TakesTheMeanOffIfCentered) {
  Optimizer rmsprop("rmsprop");
  rmsprop.State("Moment", {0, 0})
      .State("MeanSquare", {1, 1})
      .State("MeanGrad", {0.5, 0})
      .test()
      .Attr("decay", 0.75f)
      .Attr("centered", true)
      .Run();
  const double mean = 0.75 * 0.5 + 0.25 * 0.5;
  EXPECT_NEAR(rmsprop.test().Get<double>("MeanGradOut")[0], mean, 1e-7);
  EXPECT_NEAR(rmsprop.test().Get<double>("ParamOut")[0], 1 - 0.125 * 0.5 / std::sqrt(0.75 + 0.25 * 0.25 - mean * mean),
              1e-7);
}

// The mean square less the squared mean is the variance, 0 for a constant gradient; rounding makes it negative.
TEST(Rmsprop, CenteredStaysFiniteWhileTheGradientIsConstant) {
  float square = 0;
  float mean = 0;
  for (int step = 0; step < 200; ++step) {
    OpTest test("rmsprop");
    test.In<float>("Param", {1}, {0}).In<float>("Grad", {1}, {3.3F}).In<float>("LearningRate", {1}, {0.1F});
    test.In<float>("Moment", {1}, {0}).In<float>("MeanSquare", {1}, {square}).In<float>("MeanGrad", {1}, {mean});
    test.Out("ParamOut").Out("MomentOut").Out("MeanSquareOut").Out("MeanGradOut");
    test.Attr("centered", true).Attr("decay", 0.9).Attr("epsilon", 1e-6).Run();
    ASSERT_TRUE(std::isfinite(test.Get<float>("ParamOut")[0])) << "step " << step;
    square = test.Get<float>("MeanSquareOut")[0];
    mean = test.Get<float>("MeanGradOut")[0];
  }
}

TEST(Rmsprop, NeedsTheMeanIfCentered) {
  Optimizer rmsprop("rmsprop");
  rmsprop.State("Moment", {0, 0}).State("MeanSquare", {1, 1}).test().Attr("centered", true);
  ExpectRunThrows<InvalidArgument>(rmsprop.test(), "rmsprop", "MeanGrad", "centered");
}

TEST(OptimizerOperators, RefuseShapesAndTypesThatDiffer) {
  OpTest grad("sgd");
  grad.In<float>("Param", {2}, {1, 2}).In<float>("Grad", {1}, {1}).In<float>("LearningRate", {1}, {1}).Out("ParamOut");
  ExpectRunThrows<InvalidArgument>(grad, "sgd", "Grad", "[2]", "[1]");
  OpTest rate("sgd");
  rate.In<float>("Param", {1}, {1}).In<float>("Grad", {1}, {1}).In<float>("LearningRate", {2}, {1, 1}).Out("ParamOut");
  ExpectRunThrows<InvalidArgument>(rate, "LearningRate", "[2]");
  OpTest rate_type("sgd");
  rate_type.In<float>("Param", {1}, {1})
      .In<float>("Grad", {1}, {1})
      .In<int32_t>("LearningRate", {1}, {1})
      .Out("ParamOut");
  ExpectRunThrows<TypeMismatch>(rate_type, "LearningRate", "int32");
  OpTest type("sgd");
  type.In<float>("Param", {1}, {1}).In<double>("Grad", {1}, {1}).In<float>("LearningRate", {1}, {1}).Out("ParamOut");
  ExpectRunThrows<TypeMismatch>(type, "Grad", "float32", "float64");
  Optimizer moment("adam");
  moment.State("Moment1", {0, 0, 0}).State("Moment2", {0, 0}).State("Beta1Pow", {0.9}).State("Beta2Pow", {0.999});
  ExpectRunThrows<InvalidArgument>(moment.test(), "adam", "Moment1", "[2]", "[3]");
  Optimizer beta("adam");
  beta.State("Moment1", {0, 0})
      .State("Moment2", {0, 0})
      .State("Beta1Pow", {0.9})
      .State("Beta2Pow", {0.999})
      .test()
      .Attr("beta1", 1.0f);
  ExpectRunThrows<InvalidArgument>(beta.test(), "adam", "beta1", "1");
}

// --- Sparse gradients ---

struct SparseOptimizer {
  std::string type;
  std::vector<std::string> state;  // slots
  AttributeMap attrs;
};
std::string NameOf(const testing::TestParamInfo<SparseOptimizer>& info) { return info.param.type; }

class SparseOptimizerTest : public testing::TestWithParam<SparseOptimizer> {};

// Bytes of the tensor's memory that the process has touched, in whole pages. Fresh memory has none.
size_t TouchedBytes(const Tensor& tensor) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(tensor.raw_data()) / page * page;
  const size_t size = reinterpret_cast<uintptr_t>(tensor.raw_data()) + tensor.nbytes() - begin;
  std::vector<unsigned char> pages((size + page - 1) / page);
  EXPECT_EQ(mincore(reinterpret_cast<void*>(begin), size, pages.data()), 0);
  return page * static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](auto p) { return (p & 1) != 0; }));
}

TEST_P(SparseOptimizerTest, TouchesOnlyTheRowsOfTheGradient) {
  constexpr int64_t kRows = 10'000'000;
  const DDim dims = {kRows, 4};
  ProgramDesc program;
  Scope scope;
  const auto declare = [&](const std::string& name, const DDim& shape) -> LoDTensor* {
    VarDesc& var = program.block(0).Var(name);
    var.tensor.dims = shape;
    var.persistable = true;
    auto* tensor = scope.Var(name)->GetMutable<LoDTensor>();
    float* data = tensor->Resize(shape).mutable_data<float>();
    for (const int64_t row : {int64_t{5}, kRows / 2, kRows - 1}) {
      if (row < shape[0]) {
        std::fill_n(data + row * 4, 4, 0.0F);  // the others stay untouched
      }
    }
    return tensor;
  };
  OpDesc op;
  op.type = GetParam().type;
  op.attrs = GetParam().attrs;
  std::vector<const LoDTensor*> tables = {declare("Param", dims)};
  op.inputs["Param"] = op.outputs["ParamOut"] = {"Param"};
  for (const std::string& slot : GetParam().state) {
    tables.push_back(declare(slot, dims));
    op.inputs[slot] = {slot};
    op.outputs[slot == "SquaredAccumulator"  ? "SquaredAccumOut"
               : slot == "LinearAccumulator" ? "LinearAccumOut"
                                             : slot + "Out"] = {slot};
  }
  *declare("LearningRate", {1})->mutable_data<float>() = 0.1F;
  op.inputs["LearningRate"] = {"LearningRate"};
  if (op.type == "adam" || op.type == "adamw") {
    *declare("Beta1Pow", {1})->mutable_data<float>() = 0.9F;
    *declare("Beta2Pow", {1})->mutable_data<float>() = 0.999F;
    op.inputs["Beta1Pow"] = {"Beta1Pow"};
    op.inputs["Beta2Pow"] = {"Beta2Pow"};
  }
  VarDesc& grad = program.block(0).Var("Grad");
  grad.kind = VarKind::kSelectedRows;
  grad.tensor.dims = dims;
  grad.persistable = true;
  auto* rows = scope.Var("Grad")->GetMutable<SelectedRows>();
  *rows->mutable_rows() = {9'999'999, 5, 5'000'000, 5};
  rows->set_height(kRows);
  std::fill_n(rows->mutable_value()->Resize({4, 4}).mutable_data<float>(), 16, 1.0F);
  op.inputs["Grad"] = {"Grad"};
  program.block(0).AppendOp(std::move(op));
  Executor().Run(program, &scope);
  for (const LoDTensor* table : tables) {
    const float* data = table->data<float>();
    EXPECT_NE(data[5 * 4], 0.0F);
    // A page each, which may be a huge one of 2 MiB; one more for what the allocator keeps beside the memory.
    EXPECT_LE(TouchedBytes(*table), size_t{4} * 2 * 1024 * 1024) << "of " << table->nbytes();
  }
}

INSTANTIATE_TEST_SUITE_P(All, SparseOptimizerTest,
                         testing::Values(SparseOptimizer{"sgd", {}, {}}, SparseOptimizer{"adagrad", {"Moment"}, {}},
                                         SparseOptimizer{
                                             "ftrl", {"SquaredAccumulator", "LinearAccumulator"}, {{"l1", 0.01}}},
                                         SparseOptimizer{"adam", {"Moment1", "Moment2"}, {{"lazy_mode", true}}},
                                         SparseOptimizer{"adamw", {"Moment1", "Moment2"}, {{"lazy_mode", true}}}),
                         NameOf);

}  // namespace
}  // namespace headrace
