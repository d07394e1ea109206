// Serves a classifier that fluid.io.save_inference_model has saved, with several threads and without Python.
//
//   serve MODEL THREADS < requests > answers
//
// A request is a line of numbers, the features of a sample; its answer is a line with the most probable class. The
// threads share the parameters; each has its own memory for what is computed on the way.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "framework/errors.h"
#include "framework/executor.h"
#include "framework/model_files.h"
#include "framework/scope.h"

namespace {

using headrace::InvalidArgument;
using headrace::LoDTensor;
using headrace::Scope;

// A model with one input and one output. Any number of threads may use it.
class Model {
 public:
  explicit Model(const std::filesystem::path& folder) : loaded_(headrace::LoadInferenceModel(folder, &parameters_)) {
    HR_ENFORCE(loaded_.feeds.size() == 1 && loaded_.fetches.size() == 1, InvalidArgument,
               "expected a model with one input and one output");
  }

 private:
  friend class Session;
  const headrace::Executor executor_;
  Scope parameters_;  // written by the constructor only
  const headrace::InferenceModel loaded_;
};

// One thread's use of a model, which must outlive it.
class Session {
 public:
  explicit Session(const Model& model)
      : model_(model),
        scope_(&model.parameters_),
        prepared_(model.executor_.Prepare(*model.loaded_.program, model.loaded_.fetches)) {}

  // The most probable class of a sample, [1, features].
  int64_t Classify(const LoDTensor& sample) {
    model_.executor_.Run(*prepared_, &scope_, {{model_.loaded_.feeds[0], sample}}, &fetched_);
    const auto* probabilities = fetched_[0].data<float>();
    return std::max_element(probabilities, probabilities + fetched_[0].numel()) - probabilities;
  }

 private:
  const Model& model_;
  // Finds the parameters in the model's scope; the lists of what is fed and fetched are in this one.
  Scope scope_;
  const std::unique_ptr<headrace::PreparedProgram> prepared_;
  std::vector<LoDTensor> fetched_;
};

LoDTensor ParseRequest(const std::string& line) {
  std::istringstream stream(line);
  const std::vector<float> values(std::istream_iterator<float>(stream), {});
  HR_ENFORCE(!values.empty() && stream.eof(), InvalidArgument, "expected numbers, got '", line, "'");
  LoDTensor sample;
  std::copy(values.begin(), values.end(),
            sample.Resize({1, static_cast<int64_t>(values.size())}).mutable_data<float>());
  return sample;
}

// The answers in the order of the requests. Each thread takes the next request that no other has taken.
std::vector<int64_t> Serve(const Model& model, const std::vector<std::string>& requests, int threads) {
  std::vector<int64_t> answers(requests.size());
  std::atomic<size_t> next = 0;
  std::exception_ptr error;
  std::mutex error_mutex;
  std::vector<std::jthread> pool;
  for (int i = 0; i < threads; ++i) {
    pool.emplace_back([&] {
      try {
        Session session(model);
        for (size_t request = next++; request < requests.size(); request = next++) {
          answers[request] = session.Classify(ParseRequest(requests[request]));
        }
      } catch (...) {
        next = requests.size();  // the other threads take no more
        const std::scoped_lock lock(error_mutex);
        error = std::current_exception();
      }
    });
  }
  pool.clear();  // waits for them
  if (error) std::rethrow_exception(error);
  return answers;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::atoi(argv[2]) < 1) {
    std::cerr << "usage: serve MODEL THREADS < requests > answers\n";
    return EXIT_FAILURE;
  }
  try {
    const Model model(argv[1]);
    std::vector<std::string> requests;
    for (std::string line; std::getline(std::cin, line);) requests.push_back(line);
    const auto begin = std::chrono::steady_clock::now();
    const auto answers = Serve(model, requests, std::atoi(argv[2]));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    for (const int64_t answer : answers) std::cout << answer << '\n';
    std::cerr << requests.size() << " requests in " << seconds.count() << " s\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return EXIT_FAILURE;
  }
}
