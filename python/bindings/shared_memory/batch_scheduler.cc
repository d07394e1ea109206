// _core.BatchScheduler.
#include "python/bindings/shared_memory/batch_scheduler.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/python_error.h"
#include "python/bindings/reader/queue_feeder.h"
#include "python/bindings/shared_memory/ready_batch.h"
#include "python/bindings/shared_memory/scheduler_options.h"
#include "python/bindings/shared_memory/scheduler_stats.h"
#include "python/bindings/shared_memory/served_arena.h"
#include "reader/shared_memory/arena/process_id.h"
#include "reader/shared_memory/batch_scheduler.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

using shared_memory::EpochStart;
using shared_memory::ReadyBatch;
using shared_memory::SchedulerOptions;
using shared_memory::WaitOutcome;

// A signal may arrive just before the wait begins, or on another thread: how long it may go unnoticed.
constexpr int64_t kSignalCheckNs = 100'000'000;

int64_t Nanoseconds(double seconds) { return seconds < 0 ? -1 : static_cast<int64_t>(seconds * 1e9); }

// The scheduler, and what turns its batches into Python objects. One thread at a time may use it, except for Shutdown
// and stats. It belongs to the process that created it: in a fork, the scheduler's methods throw.
class BatchScheduler {
 public:
  // `decode_problem(batch)` returns the exception to raise for a batch that could not be made; for the others see
  // BatchBuilder.
  // `look_ahead`: Next also builds the following batch if it is ready, so that work started by building it, such as a
  // copy to a device, overlaps with the consumer's work on the current one.
  BatchScheduler(const SchedulerOptions& options, py::object decode_tree, py::object decode_problem,
                 py::object unpickle, bool look_ahead)
      : look_ahead_(look_ahead),
        scheduler_(shared_memory::BatchScheduler::Create(options)),
        builder_(std::move(decode_tree), std::move(unpickle)),
        decode_problem_(std::move(decode_problem)) {}

  shared_memory::BatchScheduler& scheduler() const { return *scheduler_; }

  // The next batch, or a WaitOutcome that says what to do first. Python's signal handlers run during the wait.
  //
  // A signal handler may raise while Python code builds the batch, or before the caller has stored the result. The
  // batch is therefore kept until it is acknowledged, and built again if it is asked for again.
  py::object Next(double timeout) {
    RequireConsumer();
    undecoded_ = false;
    if (!taken_) {
      if (std::exchange(death_seen_ahead_, false)) {
        return py::cast(WaitOutcome::kProducerDied);
      }
      if (!ahead_) {
        const WaitOutcome outcome = Wait(Nanoseconds(timeout));
        if (outcome != WaitOutcome::kBatch) {
          return py::cast(outcome);
        }
      }
      taken_ = ahead_ ? std::move(*ahead_) : scheduler_->Take();
      ahead_.reset();
      built_ = std::exchange(built_ahead_, py::object());
      last_ = WithoutMemory(*taken_);
    }
    if (taken_->problem != shared_memory::ProblemKind::kNone) {
      taken_->memory.reset();
      throw PythonError(decode_problem_(*last_));
    }
    if (!built_) {
      undecoded_ = true;
      built_ = builder_.Build(*taken_);
      undecoded_ = false;
    }
    if (look_ahead_ && !ahead_) {
      LookAhead();
    }
    return built_;
  }

  // As Next; a batch is acknowledged at once, and `*number` says which one it was.
  py::object Take(double timeout, std::optional<uint64_t>* number) {
    py::object result = Next(timeout);
    if (taken_) {
      *number = last_->batch;
      Acknowledge();
    }
    return result;
  }

  // The caller has stored what Next returned, a batch or its problem.
  void Acknowledge() {
    taken_.reset();
    built_ = py::object();
  }

  void StartEpoch(const EpochStart& start) {
    scheduler_->RequireOwner();
    Acknowledge();
    ahead_.reset();
    built_ahead_ = py::object();
    supplied_ = 0;
    scheduler_->StartEpoch(start);
  }

  void Supply(uint64_t rows, std::string_view indices, bool pickled) {
    scheduler_->Supply(rows, indices, pickled);
    ++supplied_;
  }
  uint64_t supplied() const { return supplied_; }

  const std::optional<ReadyBatch>& last() const { return last_; }
  uint64_t last_batch() const {
    HR_ENFORCE(last_.has_value(), FailedPrecondition, "no batch was taken yet");
    return last_->batch;
  }
  bool undecoded() const { return undecoded_; }

  bool InOwner() const { return shared_memory::ProcessId() == owner_; }
  // A worker, a thread of this process, that waited for a batch of its own loader might wait for itself.
  void RequireConsumer() const {
    scheduler_->RequireOwner();
    HR_ENFORCE(ServedArena() != scheduler_->arena().get(), FailedPrecondition,
               "a worker of this loader, a thread, called next() on its iterator");
  }

  std::shared_ptr<QueueFeeder> Feed(const std::shared_ptr<LoDTensorBlockingQueue>& queue, py::object on_death,
                                    py::object on_supply, py::object on_timeout, py::object order, double timeout) {
    scheduler_->RequireOwner();
    return StartFeeder(scheduler_, queue, std::move(on_death), std::move(on_supply), std::move(on_timeout),
                       std::move(order), decode_problem_, Nanoseconds(timeout));
  }

 private:
  WaitOutcome Wait(int64_t timeout_ns) {
    // If a batch is ready, keep the GIL: while another thread computes in Python, reacquiring it takes up to a switch
    // interval, 5 ms. No thread that holds the scheduler's lock ever waits for the GIL.
    if (const std::optional<WaitOutcome> decided = scheduler_->TryWait()) {
      return *decided;
    }
    if (timeout_ns == 0) {
      return scheduler_->Wait(0);
    }
    const GilReleased released;
    const auto begin = std::chrono::steady_clock::now();
    for (;;) {
      int64_t left = kSignalCheckNs;
      if (timeout_ns > 0) {
        const auto waited = std::chrono::steady_clock::now() - begin;
        left = std::min(left, timeout_ns - std::chrono::nanoseconds(waited).count());
        if (left <= 0) {
          return WaitOutcome::kTimedOut;
        }
      }
      const WaitOutcome outcome = scheduler_->Wait(left);
      if (outcome != WaitOutcome::kInterrupted && outcome != WaitOutcome::kTimedOut) {
        return outcome;
      }
      CheckSignals();
    }
  }

  void LookAhead() {
    const std::optional<WaitOutcome> outcome = scheduler_->TryWait();
    death_seen_ahead_ = outcome == WaitOutcome::kProducerDied;
    if (outcome != WaitOutcome::kBatch) {
      return;
    }
    ahead_ = scheduler_->Take();
    if (ahead_->problem != shared_memory::ProblemKind::kNone) {
      return;  // it is reported when its turn comes
    }
    try {
      built_ahead_ = builder_.Build(*ahead_);
    } catch (py::error_already_set& error) {
      // A signal handler's exception is raised now, when nothing can be lost. It is one if the batch can be built.
      if (error.matches(PyExc_KeyboardInterrupt) || BuildAhead()) {
        throw;
      }
    } catch (const Error&) {  // as BuildAhead
    }
  }

  // False if that is impossible, which is reported when the turn of the batch comes.
  bool BuildAhead() {
    try {
      built_ahead_ = builder_.Build(*ahead_);
      return true;
    } catch (const py::error_already_set&) {
      return false;
    } catch (const Error&) {
      return false;
    }
  }

  const pid_t owner_ = shared_memory::ProcessId();
  const bool look_ahead_;
  const std::shared_ptr<shared_memory::BatchScheduler> scheduler_;
  BatchBuilder builder_;
  py::object decode_problem_;
  std::optional<ReadyBatch> taken_;  // returned, and not yet acknowledged
  py::object built_;                 // its Python object; null if not built
  std::optional<ReadyBatch> last_;   // without its memory
  std::optional<ReadyBatch> ahead_;  // taken, and returned next
  py::object built_ahead_;           // its Python object; null if not built
  bool death_seen_ahead_ = false;
  bool undecoded_ = false;
  uint64_t supplied_ = 0;  // in this epoch
};

}  // namespace

py::object TakeBatch(const py::handle& scheduler, double timeout, std::optional<uint64_t>* number) {
  return py::cast<BatchScheduler&>(scheduler).Take(timeout, number);
}

void BindBatchScheduler(py::module_& m) {
  py::class_<BatchScheduler>(m, "BatchScheduler", "The main process's end of a loader's arena.")
      .def(py::init([](py::object decode_tree, py::object decode_problem, py::object unpickle, bool look_ahead,
                       const py::kwargs& options) {
             return std::make_unique<BatchScheduler>(SchedulerOptionsOf(options), std::move(decode_tree),
                                                     std::move(decode_problem), std::move(unpickle), look_ahead);
           }),
           py::kw_only(), py::arg("decode_tree"), py::arg("decode_problem"), py::arg("unpickle"),
           py::arg("look_ahead") = false)
      .def_property_readonly("arena_fd", [](const BatchScheduler& self) { return self.scheduler().arena()->fd(); })
      .def_property_readonly("completion_fd",
                             [](const BatchScheduler& self) { return self.scheduler().completion_fd(); })
      .def_property_readonly("batches_per_epoch",
                             [](const BatchScheduler& self) { return self.scheduler().batches_per_epoch(); })
      .def(
          "start_epoch",
          [](BatchScheduler& self, uint64_t epoch, uint64_t first_batch, std::vector<uint64_t> skip,
             const std::vector<std::pair<uint64_t, bool>>& streams, uint32_t next_stream, uint64_t revision) {
            EpochStart start{epoch, first_batch, std::move(skip), {}, next_stream, revision};
            for (const auto& [next, ended] : streams) {
              start.streams.push_back({next, ended});
            }
            self.StartEpoch(start);
          },
          py::arg("epoch"), py::arg("first_batch") = 0, py::arg("skip") = std::vector<uint64_t>(),
          py::arg("streams") = std::vector<std::pair<uint64_t, bool>>(), py::arg("next_stream") = 0,
          py::arg("revision") = 0,
          "The consumer wants `first_batch` of `epoch` next, and none of the batches in `skip`. `streams`: of each of "
          "several streams the next batch and whether it has ended; `next_stream`: whose turn it is. `revision`: of "
          "the dataset; batches that were opened with another one are withdrawn.")
      .def(
          "supply",
          [](BatchScheduler& self, uint64_t rows, const py::bytes& indices, bool pickled) {
            self.Supply(rows, static_cast<std::string_view>(indices), pickled);
          },
          py::arg("rows"), py::arg("indices"), py::arg("pickled"))
      .def_property_readonly("supplied", &BatchScheduler::supplied, "How many batches were supplied in this epoch.")
      .def("end_supply", [](BatchScheduler& self) { self.scheduler().EndSupply(); })
      .def("wanted_supply", [](const BatchScheduler& self) { return self.scheduler().WantedSupply(); })
      .def("require_consumer", &BatchScheduler::RequireConsumer,
           "Raises FailedPrecondition in a forked child, and in a thread that is one of the workers.")
      .def("next", &BatchScheduler::Next, py::arg("timeout") = -1.0,
           "The next batch, or the WaitOutcome that keeps it away. Waits without the GIL, at most `timeout` seconds "
           "(negative: no limit). Gives the same batch, or raises its error, again until `acknowledge` is called.")
      .def(
          "acknowledge", &BatchScheduler::Acknowledge,
          "The batch that `next` gave has arrived: the next one is wanted. Its memory is now held by its arrays alone.")
      .def_property_readonly(
          "last", &BatchScheduler::last,
          "Which batch `next` gave last, also if it raised the batch's error; None before the first.")
      // A method: it is called for each batch, and an attribute takes several times as long.
      .def("last_batch", &BatchScheduler::last_batch, "`last.batch`.")
      .def_property_readonly("undecoded", &BatchScheduler::undecoded,
                             "Whether the exception that `next` has just raised came from decoding its batch.")
      .def(
          "stream_end",
          [](const BatchScheduler& self, uint32_t stream) {
            return py::bytes(self.scheduler().StreamEndAttachment(stream));
          },
          py::arg("stream"),
          "What the worker attached that reported the end of the stream, with its last batch or after it; else b\"\".")
      .def("feed", &BatchScheduler::Feed, py::arg("queue"), py::arg("on_death"), py::arg("on_supply"),
           py::arg("on_timeout"), py::arg("order") = py::none(), py::arg("timeout") = -1.0,
           "Starts a C++ thread that moves this epoch's batches into `queue`. The functions return None, or an "
           "exception, with which the queue then fails. `on_timeout` is called after each `timeout` seconds without a "
           "batch (negative: never). `order` is given the tree of batches, as bytes, and returns the places that their "
           "tensors take in turn, an empty list if they are in order.")
      .def(
          "watch_producer",
          [](BatchScheduler& self, uint32_t id, int pidfd, uint32_t threads) {
            self.scheduler().WatchProducer(id, pidfd, threads);
          },
          py::arg("id"), py::arg("pidfd"), py::arg("threads") = 1,
          "Watches the process behind the pidfd, in which producers `id` to `id + threads - 1` live.")
      .def(
          "retire_producer", [](BatchScheduler& self, uint32_t id) { self.scheduler().RetireProducer(id); },
          py::arg("id"),
          "Asks a worker to end: its `wait` gives None after the claim at hand. Its death is not reported.")
      .def(
          "set_producers", [](BatchScheduler& self, uint32_t producers) { self.scheduler().SetProducers(producers); },
          py::arg("producers"), "For how many workers batches are cut from now on.")
      .def(
          "claims", [](BatchScheduler& self) { return self.scheduler().Claims(); },
          "The current claims of producers, the oldest batch's first.")
      .def("take_deaths", [](BatchScheduler& self) { return self.scheduler().TakeDeaths(); })
      .def(
          "reclaim", [](BatchScheduler& self, uint32_t id) { return self.scheduler().Reclaim(id); }, py::arg("id"))
      .def(
          "accuse", [](BatchScheduler& self, uint32_t author) { self.scheduler().Accuse(author); }, py::arg("author"),
          "What that worker wrote of a batch cannot be read: ends it, if it is a process; its death is then reported.")
      .def(
          "abandon",
          [](BatchScheduler& self, uint64_t sequence, uint32_t row) { return self.scheduler().Abandon(sequence, row); },
          py::arg("sequence"), py::arg("row"),
          "Makes the batch of a death fail, as `killed`, at that row. False if it is not open any more or the row is "
          "made.")
      .def(
          "skip",
          [](BatchScheduler& self, uint64_t sequence, uint32_t row) { return self.scheduler().Skip(sequence, row); },
          py::arg("sequence"), py::arg("row"),
          "Has the batch of a death made without that row. False as for `abandon`, for a batch of a stream, and where "
          "too many rows are skipped already.")
      .def(
          "shutdown",
          [](BatchScheduler& self) {
            if (self.InOwner()) {
              self.scheduler().Shutdown();
            }
          },
          "Ends producers and waits. Does nothing in a forked child.")
      .def_property_readonly(
          "pinning", [](const BatchScheduler& self) { return self.scheduler().pinning_problem(); },
          "Why batches are not locked for CUDA though pin_memory is on; \"\" if nothing keeps them from it.")
      .def(
          "trace", [](const BatchScheduler& self) { return TraceList(self.scheduler().Trace()); },
          "The events, by begin: tuples (kind, producer, begin_ns, end_ns, epoch, batch, slot, begin_row, "
          "end_row, stream). The clock is CLOCK_MONOTONIC. Of producers (\"rows\", \"whole\", \"items\", "
          "\"collate\", \"stream\"): their claims. Of producer -1: the moments at which a batch was \"opened\", "
          "\"ready\", \"taken\", \"released\", and each \"wait\" of the consumer.")
      .def("stats", [](const BatchScheduler& self) { return StatsDict(self.scheduler().stats()); });
}

}  // namespace headrace::python
