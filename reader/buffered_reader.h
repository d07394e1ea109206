// The double buffer: reads ahead in a thread of its own, so that reading overlaps with the computation.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>

#include "framework/export.h"
#include "framework/process_owned.h"
#include "reader/blocking_queue.h"
#include "reader/reader.h"

namespace headrace {

// Keeps kReadAhead batches ready. A batch that has been given out is the consumer's: nothing is refilled or
// overwritten. Batches, the end of the data and errors come in the order in which the reader below yields them; an
// error ends the pass, and is thrown again until the next Start.
//
// Thread-safety: that of ReaderBase. The thread runs from the first ReadNext of a pass until the pass ends or Shutdown,
// which wakes it wherever it waits (below, by shutting the reader below down; here, by closing the buffer) and joins
// it. It takes part in a pass through the buffer's epoch of that pass alone, so a batch that it still holds when the
// pass is cut short goes nowhere. Lifetime: its end is a Shutdown if a pass is going on, so that the reader below is
// Stopped then: batches that were read ahead are lost, and reading requires a new pass. A forked child,
// where the thread does not exist, must not use the reader; it may drop it.
class HEADRACE_API BufferedReader final : public DecoratedReader {
 public:
  static constexpr size_t kReadAhead = 2;

  explicit BufferedReader(const std::shared_ptr<ReaderBase>& below);
  ~BufferedReader() override;

 private:
  void ReadNextImpl(LoDTensorArray* out) override;
  void Interrupt() override;
  void Stop() override;
  void Restart() override;
  bool RewindImpl() override;

  void Prefetch(uint64_t epoch);

  struct ReadAhead {
    // One batch less than is read ahead: the thread holds another one in its hand.
    BlockingQueue<LoDTensorArray> buffer{kReadAhead - 1};
    std::thread thread;  // guarded by the read turn; joinable: a pass has started
  };
  ProcessOwned<ReadAhead> ahead_;
};

}  // namespace headrace
