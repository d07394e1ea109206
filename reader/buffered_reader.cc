#include "reader/buffered_reader.h"

#include <exception>
#include <utility>

namespace headrace {

BufferedReader::BufferedReader(const std::shared_ptr<ReaderBase>& below) : DecoratedReader(below) {}

BufferedReader::~BufferedReader() {
  // A reader that was never read from has no claim on the one below.
  if (thread_.joinable()) Shutdown();
}

void BufferedReader::ReadNextImpl(LoDTensorArray* out) {
  if (!thread_.joinable()) {
    thread_ = std::thread(&BufferedReader::Prefetch, this, buffer_.epoch());
  }
  buffer_.Receive(out);  // leaves `*out` empty at the end of the data
}

void BufferedReader::Prefetch(uint64_t epoch) {
  try {
    for (;;) {
      LoDTensorArray batch;
      // A reader that was stopped below is the end of the pass here.
      underlying()->ReadIfRunning(&batch);
      if (batch.empty()) {
        buffer_.Close(epoch);
        return;
      }
      if (buffer_.Send(std::move(batch), epoch) != SendResult::kTaken) return;
    }
  } catch (...) {
    buffer_.Fail(std::current_exception(), epoch);
  }
}

void BufferedReader::Interrupt() {
  buffer_.Interrupt();
  DecoratedReader::Interrupt();
}

void BufferedReader::Stop() {
  if (thread_.joinable()) thread_.join();
  buffer_.ReOpen();  // lets go of the batches now rather than at the next Start
  buffer_.Close();
}

void BufferedReader::Restart() {
  DecoratedReader::Restart();
  buffer_.ReOpen();
}

bool BufferedReader::RewindImpl() {
  if (thread_.joinable()) thread_.join();
  buffer_.ReOpen();
  return DecoratedReader::RewindImpl();
}

}  // namespace headrace
