// Readers yield batches to the `read` operator. A source (PyReader, say) gets them from outside; a decorated reader
// gets them from another reader and changes them or their order. Together they form a chain, or a tree if several
// readers decorate the same one:
//
//   auto source = std::make_shared<PyReader>(queue);
//   auto reader = DecoratedReader::Make<BufferedReader>(source);
//   LoDTensorArray batch;
//   for (reader->ReadNext(&batch); !batch.empty(); reader->ReadNext(&batch)) Use(batch);
//   reader->ResetAll();  // the next pass
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "framework/export.h"
#include "framework/lod_tensor.h"
#include "framework/program_desc.h"
#include "framework/thread_annotations.h"
#include "reader/batch_check.h"
#include "reader/read_turn.h"

namespace headrace {

// Totals since the reader was made, over all passes.
struct ReaderStats {
  uint64_t batches = 0;  // given out
  uint64_t wait_ns = 0;  // time that finished ReadNexts have taken: how long consumers waited for this reader
};

// A reader is Running, from its creation on, or Stopped, between Shutdown and Start.
//
// Thread-safety: any public method from any thread. Two kinds of lock, always taken in this order:
//   1. the chain's mutex, shared by all readers of a tree and held during Shutdown, Start and ResetAll: the tree's
//      state changes as a whole;
//   2. each reader's read turn, held during ReadNext, outer reader before inner.
// Shutdown does not wait for a ReadNext to end by itself: it first marks the reader as Stopped and interrupts what
// ReadNext may wait for (Interrupt), then takes the read turn, and so returns when no ReadNext is inside any more.
// ReadNext never takes the chain's mutex. A ReadNext that is interrupted yields no batch. Lifetime: held by
// std::shared_ptr. A reader keeps the one that it decorates alive, not the other way round.
class HEADRACE_API ReaderBase {
 public:
  enum class State { kRunning, kStopped };

  virtual ~ReaderBase();
  ReaderBase(const ReaderBase&) = delete;
  ReaderBase& operator=(const ReaderBase&) = delete;

  // Blocks until there is a batch, which is the caller's from then on: nothing will be written into it by this side. An
  // empty `*out` is the end of the data. `*number`, if given, is how many batches the pass has yielded before this one.
  // Throws FailedPrecondition if the reader is Stopped, and the error of the source of the data.
  void ReadNext(LoDTensorArray* out, uint64_t* number = nullptr);
  // As ReadNext, but a reader that is Stopped has no data (false) rather than throwing.
  bool ReadIfRunning(LoDTensorArray* out, uint64_t* number = nullptr);

  // Ends the pass of this reader and of those below it; wakes callers that wait for data, which then get none. Does
  // nothing if Stopped.
  void Shutdown();
  // Begins a pass of this reader and of those below it. Nothing if Running.
  void Start();
  // Shuts down all readers of the tree that this one belongs to, the outermost first, then starts them all.
  void ResetAll();
  // Begins the data again without leaving the pass; to be called by a decorating reader when this one has reached the
  // end of its data. False if it cannot, see CanRewind, or is Stopped.
  bool Rewind();

  State state() const { return state_.load(); }
  // The form of each batch.
  const std::vector<TensorSpec>& specs() const { return contract_.specs; }
  const BatchContract& contract() const { return contract_; }
  ReaderStats stats() const;

  // Whether the data can be read again at will. False for data that come from outside.
  virtual bool CanRewind() const { return false; }
  // The reader that this one decorates; nullptr for a source.
  virtual ReaderBase* underlying() const { return nullptr; }

 protected:
  // A source. Throws InvalidArgument if the contract makes no sense (CheckContract).
  explicit ReaderBase(BatchContract contract);
  // A reader above `below`. Throws as the other.
  ReaderBase(BatchContract contract, const ReaderBase& below);

 private:
  friend class DecoratedReader;

  // With the read turn.
  virtual void ReadNextImpl(LoDTensorArray* out) HR_REQUIRES(read_turn_) = 0;
  // Makes a ReadNextImpl that waits return soon, empty-handed; one that comes later must not wait either. Under the
  // chain's mutex only.
  virtual void Interrupt() {}
  // Drops batches that were read ahead. With the chain's mutex and the read turn, after Interrupt; no thread reads.
  virtual void Stop() HR_REQUIRES(read_turn_) {}
  // With the chain's mutex and the read turn; no thread reads. An exception leaves the reader Stopped.
  virtual void Restart() HR_REQUIRES(read_turn_) {}
  // With the read turn. Must not block.
  virtual bool RewindImpl() HR_REQUIRES(read_turn_) { return false; }

  void ShutdownLocked();
  void StartLocked();
  // Adds all that decorate this reader, directly or not, the outermost first.
  void CollectDecorators(std::vector<std::shared_ptr<ReaderBase>>* decorators) const;

  const BatchContract contract_;
  const std::shared_ptr<Mutex> chain_mutex_;           // 1.
  std::vector<std::weak_ptr<ReaderBase>> decorators_;  // guarded by chain_mutex_
  ReadTurn read_turn_;                                 // 2.
  uint64_t batches_in_pass_ HR_GUARDED_BY(read_turn_) = 0;
  std::atomic<State> state_{State::kRunning};
  std::atomic<uint64_t> batches_{0};
  std::atomic<uint64_t> wait_ns_{0};
};

// A reader over another one. Forwards Shutdown and Start downward. As long as it does nothing else, it starts in the
// state of the other.
class HEADRACE_API DecoratedReader : public ReaderBase {
 public:
  // The only way to make one: also tells the reader below, so that ResetAll finds the new one.
  template <typename Reader, typename... Args>
  static std::shared_ptr<Reader> Make(const std::shared_ptr<ReaderBase>& below, Args&&... args) {
    const MutexLock lock(ChainMutex(below));  // so that no reset passes the new reader by
    auto reader = std::make_shared<Reader>(below, std::forward<Args>(args)...);
    Register(below.get(), reader);
    return reader;
  }

  bool CanRewind() const override { return below_->CanRewind(); }
  ReaderBase* underlying() const override { return below_.get(); }

 protected:
  // `contract` is that of `below` unless the reader changes the form of batches.
  explicit DecoratedReader(const std::shared_ptr<ReaderBase>& below) : DecoratedReader(below, below->contract()) {}
  DecoratedReader(const std::shared_ptr<ReaderBase>& below, BatchContract contract);

  // An override calls these too.
  void Interrupt() override;
  void Restart() override;
  bool RewindImpl() override { return below_->Rewind(); }

 private:
  // Throws InvalidArgument if there is no reader.
  static Mutex& ChainMutex(const std::shared_ptr<ReaderBase>& below);
  static void Register(ReaderBase* below, const std::shared_ptr<ReaderBase>& reader);

  const std::shared_ptr<ReaderBase> below_;
};

// The contents of a reader's scope variable. Thread-safety: any method from any thread.
class HEADRACE_API ReaderHolder {
 public:
  // Puts a reader in, in place of the one before, if any.
  void Reset(std::shared_ptr<ReaderBase> reader);
  // nullptr if there is none yet.
  std::shared_ptr<ReaderBase> Get() const;

  // These forward to the reader, and throw FailedPrecondition if there is none.
  void ReadNext(LoDTensorArray* out) const { Reader()->ReadNext(out); }
  void Shutdown() const { Reader()->Shutdown(); }
  void Start() const { Reader()->Start(); }
  void ResetAll() const { Reader()->ResetAll(); }

 private:
  std::shared_ptr<ReaderBase> Reader() const;

  mutable Mutex mutex_;
  std::shared_ptr<ReaderBase> reader_ HR_GUARDED_BY(mutex_);
};

}  // namespace headrace
