#include "reader/reader.h"

#include <chrono>
#include <string>
#include <typeinfo>

#include "framework/demangle.h"
#include "framework/errors.h"
#include "framework/profiler.h"

namespace headrace {
namespace {

// "BufferedReader", say.
std::string ClassName(const ReaderBase& reader) {
  const std::string name = Demangled(typeid(reader).name());
  const size_t prefix = name.rfind("::");
  return prefix == std::string::npos ? name : name.substr(prefix + 2);
}

// Tells the profiler of a read, if that was on when the read began.
class ReadSpan {
 public:
  ReadSpan(const ReaderBase& reader, const LoDTensorArray& batch)
      : reader_(reader), batch_(batch), begin_ns_(Profiler::is_on() ? Profiler::Now() : 0) {}
  ReadSpan(const ReadSpan&) = delete;
  ReadSpan& operator=(const ReadSpan&) = delete;
  ~ReadSpan() {
    if (begin_ns_ == 0) return;
    size_t bytes = 0;
    for (const LoDTensor& tensor : batch_) bytes += tensor.nbytes();
    Profiler::Record(ProfiledSpan::Kind::kReader, ClassName(reader_), begin_ns_, bytes);
  }

 private:
  const ReaderBase& reader_;
  const LoDTensorArray& batch_;
  const uint64_t begin_ns_;
};

}  // namespace

ReaderBase::ReaderBase(BatchContract contract)
    : contract_(std::move(contract)), chain_mutex_(std::make_shared<Mutex>()) {
  CheckContract(contract_, "a reader");
}

ReaderBase::ReaderBase(BatchContract contract, const ReaderBase& below)
    : contract_(std::move(contract)), chain_mutex_(below.chain_mutex_), state_(below.state()) {
  CheckContract(contract_, "a reader");
}

ReaderBase::~ReaderBase() = default;

void ReaderBase::ReadNext(LoDTensorArray* out, uint64_t* number) {
  HR_ENFORCE(ReadIfRunning(out, number), FailedPrecondition,
             "the reader is stopped: it has to be started before it is read again");
}

bool ReaderBase::ReadIfRunning(LoDTensorArray* out, uint64_t* number) {
  struct WaitTime {
    std::atomic<uint64_t>& total_ns;
    std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
    ~WaitTime() {
      const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - begin;
      total_ns.fetch_add(static_cast<uint64_t>(spent.count()), std::memory_order_relaxed);
    }
  } const wait{wait_ns_};
  out->clear();
  const ReadSpan span(*this, *out);
  const ReadTurnLock turn(read_turn_, ReadTurnLock::Hook::kOfThread);
  if (state() == State::kStopped) return false;
  ReadNextImpl(out);
  if (state() == State::kStopped) out->clear();  // interrupted: what it has may be part of a batch
  if (number != nullptr) *number = batches_in_pass_;
  if (!out->empty()) {
    ++batches_in_pass_;
    batches_.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

void ReaderBase::Shutdown() {
  const MutexLock lock(*chain_mutex_);
  ShutdownLocked();
}

void ReaderBase::Start() {
  const MutexLock lock(*chain_mutex_);
  StartLocked();
}

void ReaderBase::ResetAll() {
  ReaderBase* source = this;
  while (source->underlying() != nullptr) source = source->underlying();
  // Declared before the lock: letting go of a reader may be its end, which takes the chain's mutex.
  std::vector<std::shared_ptr<ReaderBase>> decorators;
  const MutexLock lock(*chain_mutex_);
  source->CollectDecorators(&decorators);
  for (const auto& reader : decorators) reader->ShutdownLocked();
  source->ShutdownLocked();
  source->StartLocked();
  for (const auto& reader : decorators) reader->StartLocked();
}

bool ReaderBase::Rewind() {
  const ReadTurnLock turn(read_turn_);
  return state() == State::kRunning && RewindImpl();
}

ReaderStats ReaderBase::stats() const {
  return {.batches = batches_.load(std::memory_order_relaxed), .wait_ns = wait_ns_.load(std::memory_order_relaxed)};
}

void ReaderBase::ShutdownLocked() {
  if (state() == State::kStopped) return;
  state_ = State::kStopped;
  Interrupt();
  const ReadTurnLock turn(read_turn_);
  Stop();
}

void ReaderBase::StartLocked() {
  if (state() == State::kRunning) return;
  const ReadTurnLock turn(read_turn_);
  Restart();
  batches_in_pass_ = 0;
  state_ = State::kRunning;
}

void ReaderBase::CollectDecorators(std::vector<std::shared_ptr<ReaderBase>>* decorators) const {
  for (const auto& weak : decorators_) {
    if (auto decorator = weak.lock()) {
      decorator->CollectDecorators(decorators);
      decorators->push_back(std::move(decorator));
    }
  }
}

DecoratedReader::DecoratedReader(const std::shared_ptr<ReaderBase>& below, BatchContract contract)
    : ReaderBase(std::move(contract), *below), below_(below) {}

void DecoratedReader::Interrupt() { below_->ShutdownLocked(); }

void DecoratedReader::Restart() { below_->StartLocked(); }

Mutex& DecoratedReader::ChainMutex(const std::shared_ptr<ReaderBase>& below) {
  HR_ENFORCE(below != nullptr, InvalidArgument, "a decorated reader needs a reader to decorate, got none");
  return *below->chain_mutex_;
}

void DecoratedReader::Register(ReaderBase* below, const std::shared_ptr<ReaderBase>& reader) {
  std::erase_if(below->decorators_, [](const std::weak_ptr<ReaderBase>& weak) { return weak.expired(); });
  below->decorators_.push_back(reader);
}

void ReaderHolder::Reset(std::shared_ptr<ReaderBase> reader) {
  const MutexLock lock(mutex_);
  reader_.swap(reader);  // the old one ends with `reader`, after the lock
}

std::shared_ptr<ReaderBase> ReaderHolder::Get() const {
  const MutexLock lock(mutex_);
  return reader_;
}

std::shared_ptr<ReaderBase> ReaderHolder::Reader() const {
  std::shared_ptr<ReaderBase> reader = Get();
  HR_ENFORCE(reader != nullptr, FailedPrecondition, "there is no reader yet: run the program that creates it first");
  return reader;
}

}  // namespace headrace
