// A source that reads several RecordIO files at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "framework/export.h"
#include "framework/lod_tensor.h"
#include "framework/process_owned.h"
#include "reader/blocking_queue.h"
#include "reader/reader.h"

namespace headrace {

// Yields the batches of all files, those of one file in their order. Each of `thread_num` threads reads a file after
// the other and puts its batches into a buffer of `buffer_size`; with one thread the files come in their order, too. An
// error is thrown in place of what is damaged: a chunk, or the rest of a file if nothing behind it can be found.
//
// Thread-safety: that of ReaderBase. The threads run from the first ReadNext of a pass until the pass ends or Shutdown,
// which joins them. A forked child, where they do not exist, must not use the reader; it may drop it.
class HEADRACE_API OpenFilesReader final : public ReaderBase {
 public:
  // Throws InvalidArgument if there is no file, no thread or no buffer, IoError if a file cannot be opened.
  OpenFilesReader(std::vector<std::string> files, BatchContract contract, size_t thread_num, size_t buffer_size);
  ~OpenFilesReader() override;

  bool CanRewind() const override { return true; }

 private:
  void ReadNextImpl(LoDTensorArray* out) override;
  void Interrupt() override;
  void Stop() override;
  void Restart() override;
  bool RewindImpl() override;

  void Begin();
  void ReadFiles(uint64_t epoch);
  // Sends what a file holds. False if the pass is over.
  bool ReadFile(const std::string& path, uint64_t epoch);

  struct Item {
    LoDTensorArray batch;  // empty: the end of the data, or an error
    std::exception_ptr error;
  };
  struct Reading {
    explicit Reading(size_t buffer_size) : buffer(buffer_size) {}
    BlockingQueue<Item> buffer;
    std::vector<std::thread> threads;  // guarded by the read turn; not empty: a pass has started
  };

  const std::vector<std::string> files_;
  const size_t thread_num_;
  ProcessOwned<Reading> reading_;
  std::atomic<size_t> next_file_{0};
  std::atomic<size_t> threads_left_{0};  // that read
};

}  // namespace headrace
