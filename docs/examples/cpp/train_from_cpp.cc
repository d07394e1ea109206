// Trains a linear regression without Python: the program is built, saved, loaded and run in C++, and fed by C++
// threads.
//
//   producer threads → LoDTensorBlockingQueue → create_py_reader → create_double_buffer_reader → read → y = x·w + b →
//   loss → sgd
//
// Fails (exit status 1) unless the loss of the last pass is below kWantedLoss.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/backward.h"
#include "framework/errors.h"
#include "framework/executor.h"
#include "framework/model_files.h"
#include "framework/program_desc.h"
#include "framework/scope.h"
#include "reader/lod_tensor_blocking_queue.h"
#include "reader/reader.h"

namespace {

using headrace::BlockDesc;
using headrace::DataType;
using headrace::DDim;
using headrace::LoDTensor;
using headrace::LoDTensorArray;
using headrace::LoDTensorBlockingQueue;
using headrace::LoDTensorBlockingQueueHolder;
using headrace::ProgramDesc;
using headrace::ReaderHolder;
using headrace::Scope;
using headrace::TensorSpec;
using headrace::VarDesc;
using headrace::VarKind;

constexpr int64_t kFeatures = 8;
constexpr int64_t kBatchSize = 32;
constexpr int kBatchesPerPass = 60;
constexpr int kPasses = 5;
constexpr int kProducers = 3;
constexpr float kNoise = 0.01F;
constexpr float kWantedLoss = 5e-4F;  // the noise alone makes 1e-4

constexpr int32_t kFloat = static_cast<int32_t>(DataType::kFloat32);

// --- The programs ---

// A variable that lives in the scope, declared in both programs and set to `value` by the startup program.
VarDesc& Persistable(ProgramDesc& startup, ProgramDesc& main, const std::string& name, const DDim& shape, float value) {
  for (ProgramDesc* program : {&startup, &main}) {
    VarDesc& var = program->block(0).Var(name);
    var.persistable = true;
    var.tensor = {.dims = shape, .dtype = DataType::kFloat32};
  }
  startup.block(0).Append("fill_constant", {}, {{"Out", {name}}},
                          {{"shape", shape}, {"dtype", kFloat}, {"value", value}});
  return main.block(0).MutableVar(name);
}

// Declares the reader in both programs; the startup program creates it over the queue.
void PyReader(ProgramDesc& startup, ProgramDesc& main, const std::string& name, const std::string& queue) {
  VarDesc& queue_var = startup.block(0).Var(queue);
  queue_var.kind = VarKind::kRaw;
  queue_var.persistable = true;
  startup.block(0).Append("create_py_reader", {{"blocking_queue", {queue}}}, {{"Out", {name}}},
                          {{"shape_concat", std::vector<int64_t>{-1, kFeatures, -1, 1}},
                           {"ranks", std::vector<int32_t>{2, 2}},
                           {"dtypes", std::vector<int32_t>{kFloat, kFloat}}});
  main.block(0).Var(name) = startup.block(0).GetVar(name);
}

void BuildPrograms(ProgramDesc& startup, ProgramDesc& main) {
  BlockDesc& block = main.block(0);
  PyReader(startup, main, "reader", "queue");
  block.Append("create_double_buffer_reader", {{"UnderlyingReader", {"reader"}}}, {{"Out", {"buffered"}}});
  block.Append("read", {{"Reader", {"buffered"}}}, {{"Out", {"x", "y"}}});

  Persistable(startup, main, "w", {kFeatures, 1}, 0).is_parameter = true;
  Persistable(startup, main, "b", {1}, 0).is_parameter = true;
  block.Append("mul", {{"X", {"x"}}, {"Y", {"w"}}}, {{"Out", {"xw"}}});
  block.Append("elementwise_add", {{"X", {"xw"}}, {"Y", {"b"}}}, {{"Out", {"prediction"}}});
  block.Append("square_error_cost", {{"X", {"prediction"}}, {"Y", {"y"}}}, {{"Out", {"cost"}}});
  block.Append("mean", {{"X", {"cost"}}}, {{"Out", {"loss"}}});

  Persistable(startup, main, "learning_rate", {1}, 0.1F);
  for (const auto& [parameter, gradient] : headrace::AppendBackward(&main, "loss")) {
    block.Append("sgd", {{"Param", {parameter}}, {"Grad", {gradient}}, {"LearningRate", {"learning_rate"}}},
                 {{"ParamOut", {parameter}}});
  }
}

// --- The data ---

// y = Σ (i + 1) / 10 · x_i + 0.5, with noise.
LoDTensorArray MakeBatch(std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  LoDTensor x;
  LoDTensor y;
  x.Resize({kBatchSize, kFeatures});
  y.Resize({kBatchSize, 1});
  auto* x_data = x.mutable_data<float>();
  auto* y_data = y.mutable_data<float>();
  for (int64_t row = 0; row < kBatchSize; ++row) {
    float sum = 0.5F + kNoise * normal(random);
    for (int64_t i = 0; i < kFeatures; ++i) {
      const float value = normal(random);
      x_data[row * kFeatures + i] = value;
      sum += 0.1F * static_cast<float>(i + 1) * value;
    }
    y_data[row] = sum;
  }
  return {std::move(x), std::move(y)};
}

// Feeds one pass from several threads. The last one to finish closes the queue; an error goes to the consumer.
class Producers {
 public:
  Producers(std::shared_ptr<LoDTensorBlockingQueue> queue, int pass)
      : queue_(std::move(queue)), epoch_(queue_->epoch()) {
    for (int i = 0; i < kProducers; ++i) {
      threads_.emplace_back([this, seed = pass * kProducers + i] { Produce(seed); });
    }
  }

  // Refuses what the threads still push, so that they end, if the pass was cut short.
  ~Producers() { queue_->Close(epoch_); }
  Producers(const Producers&) = delete;
  Producers& operator=(const Producers&) = delete;

 private:
  void Produce(int seed) {
    try {
      std::mt19937_64 random(static_cast<uint64_t>(seed));
      for (int i = 0; i < kBatchesPerPass / kProducers; ++i) {
        if (!queue_->Push(MakeBatch(random), epoch_)) return;  // the consumer has begun another pass
      }
      if (--running_ == 0) queue_->Close(epoch_);
    } catch (...) {
      queue_->Fail(std::current_exception(), epoch_);
    }
  }

  const std::shared_ptr<LoDTensorBlockingQueue> queue_;
  const uint64_t epoch_;
  std::atomic<int> running_{kProducers};
  std::vector<std::jthread> threads_;  // last, so that they end before what they use
};

// --- The run ---

// Leaves what has been learnt in `scope`.
float Train(const ProgramDesc& startup, const ProgramDesc& main, Scope& scope) {
  auto* holder = scope.Var("queue")->GetMutable<LoDTensorBlockingQueueHolder>();
  holder->InitOnce(/*capacity=*/8, std::vector<TensorSpec>{{.dims = {-1, kFeatures}}, {.dims = {-1, 1}}},
                   {.name = "queue", .tensor_names = {"x", "y"}});

  const headrace::Executor executor;
  executor.Run(startup, &scope);
  const auto prepared = executor.Prepare(main, {"loss"});
  const auto reader = scope.GetVar("reader").Get<ReaderHolder>().Get();
  float mean_loss = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const Producers producers(holder->GetQueue(), pass);
    float sum = 0;
    int batches = 0;
    std::vector<LoDTensor> fetched;
    try {
      for (;; ++batches) {
        executor.Run(*prepared, &scope, {}, &fetched);
        sum += fetched[0].data<float>()[0];
      }
    } catch (const headrace::EndOfData&) {
      reader->ResetAll();
    }
    HR_ENFORCE(batches == kBatchesPerPass, DataLoss, "expected ", kBatchesPerPass, " batches, got ", batches);
    mean_loss = sum / static_cast<float>(batches);
    std::cout << "pass " << pass << ": " << batches << " batches, mean loss " << mean_loss << '\n';
  }
  return mean_loss;
}

// What the loaded model makes of a point whose features are all 1.
float Predict(const std::filesystem::path& model_folder) {
  Scope scope;
  const headrace::InferenceModel model = headrace::LoadInferenceModel(model_folder, &scope);
  LoDTensor x;
  std::fill_n(x.Resize({1, kFeatures}).mutable_data<float>(), kFeatures, 1.0F);
  std::vector<LoDTensor> fetched;
  const headrace::Executor executor;
  const auto prepared = executor.Prepare(*model.program, model.fetches);
  executor.Run(*prepared, &scope, {{model.feeds[0], x}}, &fetched);
  return fetched[0].data<float>()[0];
}

float BuildSaveLoadTrain(const std::filesystem::path& directory) {
  {
    ProgramDesc startup;
    ProgramDesc main;
    BuildPrograms(startup, main);
    headrace::SaveProgram(startup, directory / "startup.program");
    headrace::SaveProgram(main, directory / "main.program");
  }
  const auto startup = headrace::LoadProgram(directory / "startup.program");
  const auto main = headrace::LoadProgram(directory / "main.program");
  Scope scope;
  const float loss = Train(*startup, *main, scope);
  // Everything, to train on; and what is needed to predict, without the optimizer and the reader.
  headrace::SavePersistables(*main, scope, directory / "state");
  headrace::SaveInferenceModel(*main, {"x"}, {"prediction"}, scope, directory / "model");
  std::cout << "predicts " << Predict(directory / "model") << " for 4.1\n";
  return loss;
}

}  // namespace

int main() {
  std::string directory = (std::filesystem::temp_directory_path() / "train_from_cpp.XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) {
    std::cerr << "cannot make a directory for the programs at " << directory << '\n';
    return EXIT_FAILURE;
  }
  int status = EXIT_FAILURE;
  try {
    const float loss = BuildSaveLoadTrain(directory);
    status = loss < kWantedLoss ? EXIT_SUCCESS : EXIT_FAILURE;
    std::cout << (status == EXIT_SUCCESS ? "reached" : "missed") << " the wanted loss of " << kWantedLoss << '\n';
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  std::filesystem::remove_all(directory);
  return status;
}
