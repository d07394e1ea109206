// Small batches, readers and threads for the tests of the readers.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "framework/lod_tensor.h"
#include "framework/program_desc.h"
#include "reader/lod_tensor_blocking_queue.h"
#include "reader/reader.h"

// ThreadSanitizer does not follow forked children of processes with threads.
#if defined(__SANITIZE_THREAD__)
#define SKIP_WITHOUT_FORK() GTEST_SKIP() << "ThreadSanitizer does not support forked children"
#else
#define SKIP_WITHOUT_FORK() static_cast<void>(0)
#endif

namespace headrace {

// Long enough for another thread to get stuck where it should, short enough to do often.
inline void GiveOthersTime() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

template <typename T>
LoDTensor MakeTensor(DDim dims, T value, LoD lod = {}) {
  Tensor tensor;
  tensor.Resize(std::move(dims));
  T* data = tensor.mutable_data<T>();
  std::fill(data, data + tensor.numel(), value);
  return LoDTensor(std::move(tensor), std::move(lod));
}

// A batch of one float [1].
inline LoDTensorArray MakeBatch(float value) { return {MakeTensor<float>({1}, value)}; }

// The first element of the first tensor.
inline float ValueOf(const LoDTensorArray& batch) { return batch.at(0).data<float>()[0]; }

inline std::vector<TensorSpec> ScalarSpecs() { return {{.dims = {-1}, .dtype = DataType::kFloat32, .lod_level = 0}}; }

inline std::shared_ptr<LoDTensorBlockingQueue> MakeQueue(size_t capacity, std::vector<TensorSpec> specs = ScalarSpecs(),
                                                         QueueOptions options = {}) {
  LoDTensorBlockingQueueHolder holder;
  holder.InitOnce(capacity, specs, std::move(options));
  return holder.GetQueue();
}

// Reads until the end of the data.
inline std::vector<float> ReadAll(ReaderBase& reader) {
  std::vector<float> values;
  LoDTensorArray batch;
  for (reader.ReadNext(&batch); !batch.empty(); reader.ReadNext(&batch)) values.push_back(ValueOf(batch));
  return values;
}

// 0, 1, …, n - 1.
inline std::vector<float> Iota(size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i);
  return values;
}

// The error that `function` throws, which must be an E.
template <typename E>
E ErrorOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const E& error) {
    return error;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return E("");
  }
  ADD_FAILURE() << "no error";
  return E("");
}

// Yields `batches` batches 0, 1, … a pass (negative: without end), then whatever `at_end` does.
class CountingReader : public ReaderBase {
 public:
  explicit CountingReader(int64_t batches, std::function<void()> at_end = {}, bool rewinds = false)
      : ReaderBase({.specs = ScalarSpecs()}), batches_(batches), at_end_(std::move(at_end)), rewinds_(rewinds) {}

  // Reads so far, in all passes, without those that found the end.
  int64_t reads() const { return reads_; }
  int64_t restarts() const { return restarts_; }
  int64_t shutdowns() const { return shutdowns_; }
  bool CanRewind() const override { return rewinds_; }

 private:
  void ReadNextImpl(LoDTensorArray* out) override {
    if (batches_ >= 0 && position_ == batches_) {
      if (at_end_) at_end_();
      return;
    }
    *out = MakeBatch(static_cast<float>(position_++));
    ++reads_;
  }
  void Interrupt() override { ++shutdowns_; }
  void Restart() override {
    position_ = 0;
    ++restarts_;
  }
  bool RewindImpl() override {
    position_ = 0;
    return rewinds_;
  }

  const int64_t batches_;
  const std::function<void()> at_end_;
  const bool rewinds_;
  int64_t position_ = 0;
  std::atomic<int64_t> reads_{0};
  std::atomic<int64_t> restarts_{0};
  std::atomic<int64_t> shutdowns_{0};
};

// Whether a forked child that runs `body` comes to its end. `body` must not use gtest.
inline bool EndsInAForkedChild(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  for (int i = 0; i < 3000; ++i) {
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return false;
}

// Waits, with a limit, until `condition` holds.
inline bool Eventually(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

}  // namespace headrace
