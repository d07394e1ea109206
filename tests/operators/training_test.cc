// Whole programs of these operators: declared, differentiated, run.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/executor.h"
#include "framework/program_desc.h"
#include "framework/testing/op_test.h"
#include "tests/operators/net.h"

namespace headrace {
namespace {

using test::Ints;
using test::Net;

// 32 images of 8 × 8 in 4 classes: where the bright square is says the class; the rest is noise.
std::map<std::string, LoDTensor> Images() {
  LoDTensor image;
  LoDTensor label;
  float* pixels = image.Resize({32, 1, 8, 8}).mutable_data<float>();
  int64_t* classes = label.Resize({32, 1}).mutable_data<int64_t>();
  const auto noise = Numbers(image.numel(), 0, 0.5);
  std::copy(noise.begin(), noise.end(), pixels);
  for (int64_t i = 0; i < 32; ++i) {
    classes[i] = i % 4;
    for (int64_t y = 0; y < 4; ++y) {
      for (int64_t x = 0; x < 4; ++x) {
        pixels[i * 64 + (classes[i] / 2 * 4 + y) * 8 + classes[i] % 2 * 4 + x] += 1;
      }
    }
  }
  return {{"image", image}, {"label", label}};
}

struct LeNet : Net {
  LeNet() {
    Data("image", {-1, 1, 8, 8});
    Data("label", {-1, 1}, DataType::kInt64);
    const std::string features = Pool(Convolution(Pool(Convolution("image", 1, 4, 3)), 4, 8, 3));
    const std::string flat = Add("reshape2", {{"X", features}}, {"Out", "XShape"}, {{"shape", Ints{0, -1}}});
    const std::string hidden = Add("tanh", {{"X", Connected(flat, 32, 16)}}, {"Out"});
    logits = Connected(hidden, 16, 4);
    loss =
        Add("mean",
            {{"X", Add("softmax_with_cross_entropy", {{"Logits", logits}, {"Label", "label"}}, {"Loss", "Softmax"})}},
            {"Out"});
    const std::string top = Add("top_k", {{"X", logits}}, {"Out", "Indices"});
    const std::string indices = top.substr(0, top.size() - 3) + "Indices";
    accuracy =
        Add("accuracy", {{"Out", top}, {"Indices", indices}, {"Label", "label"}}, {"Accuracy", "Correct", "Total"});
  }
  std::string logits;
  std::string loss;
  std::string accuracy;
};

class TrainingWith : public testing::TestWithParam<std::pair<const char*, float>> {};

TEST_P(TrainingWith, LearnsTheImages) {
  LeNet net;
  net.Minimize(net.loss, GetParam().first, GetParam().second);
  EXPECT_EQ(net.parameters(), 8u);
  const auto losses = net.Train(Images(), 100, net.loss);
  EXPECT_NEAR(losses.front(), std::log(4.0f), 0.5f);
  EXPECT_LT(losses.back(), 0.05f);
  EXPECT_EQ(net.Train(Images(), 100, net.accuracy).back(), 1.0f);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, TrainingWith,
                         testing::Values(std::pair{"sgd", 0.3f}, std::pair{"momentum", 0.05f},
                                         std::pair{"adam", 0.01f}),
                         [](const auto& c) { return c.param.first; });

TEST(Training, RepeatsItselfBitByBit) {
  LeNet net;
  net.Minimize(net.loss, "adam", 0.01f);
  EXPECT_EQ(net.Train(Images(), 20, net.loss), net.Train(Images(), 20, net.loss));
}

TEST(Training, KnowsItsShapesApartFromTheBatch) {
  LeNet net;
  EXPECT_EQ(net.main().block(0).GetVar(net.logits).tensor.dims, (DDim{-1, 4}));
  EXPECT_EQ(net.main().block(0).GetVar(net.accuracy).tensor.dims, (DDim{1}));
}

// An embedding, sequences, normalisation and dropout.
TEST(Training, LearnsSequences) {
  Net net;
  net.Data("words", {-1, 1}, DataType::kInt64, 1);
  net.Data("label", {-1, 1}, DataType::kInt64);
  const std::string table = net.Parameter({10, 8}, 0.5f);
  const std::string embedded = net.Add("lookup_table", {{"W", table}, {"Ids", "words"}}, {"Out"});
  const std::string pooled =
      net.Add("sequence_pool", {{"X", embedded}}, {"Out", "MaxIndex"}, {{"pooltype", std::string("MAX")}});
  const std::string scale = net.Parameter({8}, 1);
  const std::string bias = net.Parameter({8}, 1);
  const std::string normal =
      net.Add("layer_norm", {{"X", pooled}, {"Scale", scale}, {"Bias", bias}}, {"Y", "Mean", "Variance"});
  const std::string dropped =
      net.Add("dropout", {{"X", normal}}, {"Out", "Mask"},
              {{"dropout_prob", 0.1f}, {"seed", 3}, {"dropout_implementation", std::string("upscale_in_train")}});
  const std::string probabilities = net.Add("softmax", {{"X", net.Connected(dropped, 8, 2)}}, {"Out"});
  const std::string loss =
      net.Add("mean", {{"X", net.Add("cross_entropy", {{"X", probabilities}, {"Label", "label"}}, {"Y"})}}, {"Out"});
  net.Minimize(loss, "adam", 0.05f);

  // A sequence is of class 1 if it has the word 7.
  LoDTensor words;
  const std::vector<int64_t> ids = {1, 2, 7, 3, 4, 5, 6, 7, 8, 9, 1, 2, 7};
  std::copy(ids.begin(), ids.end(), words.Resize({13, 1}).mutable_data<int64_t>());
  words.set_lod({{0, 3, 6, 9, 12, 13}});
  LoDTensor label;
  const std::vector<int64_t> classes = {1, 0, 1, 0, 1};
  std::copy(classes.begin(), classes.end(), label.Resize({5, 1}).mutable_data<int64_t>());
  const auto losses = net.Train({{"words", words}, {"label", label}}, 100, loss);
  EXPECT_GT(losses.front(), 0.2f);
  EXPECT_LT(losses.back(), 0.05f);
}

}  // namespace
}  // namespace headrace
