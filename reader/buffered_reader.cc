#include "reader/buffered_reader.h"

#include <exception>
#include <utility>

#include "framework/start_thread.h"

namespace headrace {

BufferedReader::BufferedReader(const std::shared_ptr<ReaderBase>& below) : DecoratedReader(below) {}

BufferedReader::~BufferedReader() {
  // A reader that was never read from has no claim on the one below.
  if (ahead_.InOwner() && ahead_->thread.joinable()) Shutdown();
}

void BufferedReader::ReadNextImpl(LoDTensorArray* out) {
  if (!ahead_->thread.joinable()) {
    ahead_->thread =
        StartThread("the thread of a double buffer", [this, epoch = ahead_->buffer.epoch()] { Prefetch(epoch); });
  }
  ahead_->buffer.Receive(out);  // leaves `*out` empty at the end of the data
}

void BufferedReader::Prefetch(uint64_t epoch) {
  try {
    for (;;) {
      LoDTensorArray batch;
      // A reader that was stopped below is the end of the pass here.
      underlying()->ReadIfRunning(&batch);
      if (batch.empty()) {
        ahead_->buffer.Close(epoch);
        return;
      }
      if (ahead_->buffer.Send(std::move(batch), epoch) != SendResult::kTaken) return;
    }
  } catch (...) {
    ahead_->buffer.Fail(std::current_exception(), epoch);
  }
}

void BufferedReader::Interrupt() {
  ahead_->buffer.Interrupt();
  DecoratedReader::Interrupt();
}

void BufferedReader::Stop() {
  if (ahead_->thread.joinable()) ahead_->thread.join();
  ahead_->buffer.ReOpen();  // lets go of the batches now rather than at the next Start
  ahead_->buffer.Close();
}

void BufferedReader::Restart() {
  DecoratedReader::Restart();
  ahead_->buffer.ReOpen();
}

bool BufferedReader::RewindImpl() {
  if (!CanRewind()) return false;
  ahead_->buffer.Interrupt();
  if (ahead_->thread.joinable()) ahead_->thread.join();
  ahead_->buffer.ReOpen();
  return DecoratedReader::RewindImpl();
}

}  // namespace headrace
