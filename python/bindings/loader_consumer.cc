// The consumer's end of a loader: _core.BatchScheduler, _core.WaitOutcome, _core.QueueFeeder and
// _core.IndexPermutation.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/python_error.h"
#include "reader/index_permutation.h"
#include "reader/queue_feeder.h"
#include "reader/shared_memory/batch_scheduler.h"
#include "reader/shared_memory/process_id.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

using shared_memory::BatchScheduler;
using shared_memory::Collation;
using shared_memory::EpochStart;
using shared_memory::IndexOrder;
using shared_memory::LayoutView;
using shared_memory::LeafKind;
using shared_memory::LeafRecord;
using shared_memory::ProducerDeath;
using shared_memory::ProducerStats;
using shared_memory::ReadyBatch;
using shared_memory::SchedulerOptions;
using shared_memory::SchedulerStats;
using shared_memory::SideRecord;
using shared_memory::TraceEvent;
using shared_memory::TraceKind;
using shared_memory::WaitOutcome;

// A batch whose samples could not be made, on its way to Python's `decode_problem`.
struct Problem {
  uint32_t kind;
  uint32_t row;
  std::string message;
  uint64_t epoch;
  uint64_t batch;
  uint32_t stream;
  uint64_t stream_batch;
};

Problem ProblemOf(const ReadyBatch& batch) {
  return {batch.problem, batch.problem_row, batch.problem_message, batch.epoch,
          batch.batch,   batch.stream,      batch.stream_batch};
}

// What came with the batch that the consumer has asked for last.
struct LastBatch {
  uint64_t epoch;
  uint64_t batch;
  uint64_t rows;
  uint32_t stream;
  uint64_t stream_batch;
  std::string attachment;
};

// The scheduler and what turns its batches into Python objects. Used by one thread at a time, except Shutdown and
// stats.
class Consumer {
 public:
  // decode_tree(bytes) gives (build, dtypes): build(leaves) makes the batch, dtypes[i] is the leaf's dtype, None for a
  // list of objects. decode_problem(problem) gives the exception to raise. unpickle(bytes) gives an object.
  Consumer(const SchedulerOptions& options, py::object decode_tree, py::object decode_problem, py::object unpickle)
      : scheduler_(BatchScheduler::Create(options)),
        decode_tree_(std::move(decode_tree)),
        decode_problem_(std::move(decode_problem)),
        unpickle_(std::move(unpickle)) {}

  const std::shared_ptr<BatchScheduler>& scheduler() const { return scheduler_; }

  // The next batch, or a WaitOutcome that says what to do first. Python's signal handlers run meanwhile.
  py::object Next(double timeout) {
    RequireOwner();
    const int64_t timeout_ns = Nanoseconds(timeout);
    const WaitOutcome outcome = Wait(timeout_ns);
    if (outcome != WaitOutcome::kBatch) {
      return py::cast(outcome);
    }
    ReadyBatch batch = scheduler_->Take();
    last_ = {batch.epoch, batch.batch, batch.rows, batch.stream, batch.stream_batch, std::move(batch.attachment)};
    if (batch.problem != shared_memory::kNoProblem) {
      const Problem problem = ProblemOf(batch);
      batch.memory.reset();
      throw PythonError(decode_problem_(problem));
    }
    return Build(batch);
  }

  const std::optional<LastBatch>& last() const { return last_; }

  // The shared memory is the creator's: a forked child that went on with it would write into the parent's batches.
  void RequireOwner() const {
    HR_ENFORCE(
        InOwner(), FailedPrecondition,
        "this iteration belongs to the process in which it was started; iterate over the loader anew in this one");
  }
  bool InOwner() const { return shared_memory::ProcessId() == owner_; }

  std::shared_ptr<QueueFeeder> Feed(const std::shared_ptr<LoDTensorBlockingQueue>& queue, py::object on_death,
                                    py::object on_supply, double timeout) {
    RequireOwner();
    FeederHooks hooks;
    hooks.producer_died = CallInPython(std::move(on_death));
    if (!on_supply.is_none()) {
      hooks.needs_indices = CallInPython(std::move(on_supply));
    }
    hooks.batch_failed = [decode = ShareObject(decode_problem_)](const ReadyBatch& batch) -> std::exception_ptr {
      const GilHeld held;
      if (!held) {
        return std::make_exception_ptr(FailedPrecondition("the interpreter is ending"));
      }
      try {
        return std::make_exception_ptr(PythonError(py::reinterpret_borrow<py::object>(decode.get())(ProblemOf(batch))));
      } catch (py::error_already_set& error) {
        error.restore();
        return std::make_exception_ptr(PythonError::Fetch());
      }
    };
    const GilReleased released;  // the queue has a lock
    return {new QueueFeeder(scheduler_, queue, std::move(hooks), Nanoseconds(timeout)), [](QueueFeeder* feeder) {
              const GilReleased while_joining;  // its thread may be waiting for the GIL
              delete feeder;
            }};
  }

 private:
  // A signal may arrive just before the wait begins, or on another thread: how long Python may not notice.
  static constexpr int64_t kSignalCheckNs = 100'000'000;

  static int64_t Nanoseconds(double seconds) { return seconds < 0 ? -1 : static_cast<int64_t>(seconds * 1e9); }

  WaitOutcome Wait(int64_t timeout_ns) {
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

  struct Decoder {
    py::object build;
    std::vector<py::object> dtypes;
  };

  // Calls a function that returns None, or the exception to throw.
  static std::function<void()> CallInPython(py::object function) {
    return [shared = ShareObject(std::move(function))] {
      const GilHeld held;
      if (!held) {
        Throw<FailedPrecondition>("the interpreter is ending");
      }
      try {
        const py::object problem = py::reinterpret_borrow<py::object>(shared.get())();
        if (!problem.is_none()) {
          throw PythonError(problem);
        }
      } catch (py::error_already_set& error) {
        error.restore();
        throw PythonError::Fetch();
      }
    };
  }

  const Decoder& DecoderOf(const LayoutView& layout) {
    const std::string_view tree = layout.tree();
    const auto found = decoders_.find(tree);
    if (found != decoders_.end()) {
      return found->second;
    }
    if (decoders_.size() >= 4096) {  // shapes are not part of the tree: more than a few are unusual
      decoders_.clear();
    }
    const auto pair = py::cast<py::tuple>(decode_tree_(py::bytes(tree.data(), tree.size())));
    Decoder decoder{pair[0], {}};
    for (const py::handle dtype : py::cast<py::list>(pair[1])) {
      decoder.dtypes.push_back(py::reinterpret_borrow<py::object>(dtype));
    }
    return decoders_.emplace(std::string(tree), std::move(decoder)).first->second;
  }

  py::object Build(const ReadyBatch& batch) {
    const LayoutView layout = batch.layout();
    const Decoder& decoder = DecoderOf(layout);
    std::byte* base = static_cast<std::byte*>(batch.memory->data());
    std::shared_ptr<Allocation> memory = batch.memory;
    if (batch.last_slots) {
      // The consumer keeps so many batches that the arena would run dry: this one becomes a copy.
      const size_t begin = layout.leaf_count() == 0 ? layout.end() : layout.leaf(0).offset;
      memory = Allocation::OnHeap(layout.end() - begin + 1);
      std::memcpy(memory->data(), base + begin, layout.end() - begin);
      base = static_cast<std::byte*>(memory->data()) - begin;
    }
    // All arrays of a batch share one owner: the slot goes back with the last of them.
    const py::capsule owner(new std::shared_ptr<Allocation>(std::move(memory)),
                            [](void* pointer) { delete static_cast<std::shared_ptr<Allocation>*>(pointer); });
    py::list leaves(layout.leaf_count());
    for (size_t i = 0; i < layout.leaf_count(); ++i) {
      const LeafRecord& leaf = layout.leaf(i);
      if (leaf.kind == static_cast<uint32_t>(LeafKind::kObject)) {
        leaves[i] = Objects(leaf, batch);
        continue;
      }
      leaves[i] = py::array(py::reinterpret_borrow<py::dtype>(decoder.dtypes.at(i)),
                            std::vector<py::ssize_t>(leaf.dims, leaf.dims + leaf.ndim), base + leaf.offset, owner);
    }
    return decoder.build(leaves);
  }

  py::list Objects(const LeafRecord& leaf, const ReadyBatch& batch) {
    py::list objects(leaf.dims[0]);
    for (size_t row = 0; row < leaf.dims[0]; ++row) {
      SideRecord record;
      std::memcpy(&record, batch.slot + leaf.offset + row * sizeof(record), sizeof(record));
      objects[row] = unpickle_(py::bytes(reinterpret_cast<const char*>(batch.slot + record.offset), record.bytes));
    }
    return objects;
  }

  const pid_t owner_ = shared_memory::ProcessId();
  std::shared_ptr<BatchScheduler> scheduler_;
  py::object decode_tree_;
  py::object decode_problem_;
  py::object unpickle_;
  std::map<std::string, Decoder, std::less<>> decoders_;
  std::optional<LastBatch> last_;
};

double Seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

void AddFigures(const ProducerStats& stats, const std::string& prefix, py::dict& out) {
  out["samples"] = stats.samples;
  out["claims"] = stats.claims;
  out[py::str(prefix + "busy_s")] = Seconds(stats.work_ns);
  out[py::str(prefix + "wait_s")] = Seconds(stats.wait_ns);
  out["dataset_s"] = Seconds(stats.dataset_ns);
  out["collate_s"] = Seconds(stats.collate_ns);
  out["copy_s"] = Seconds(stats.copy_ns);
}

IndexOrder OrderFromName(const std::string& name) {
  if (name == "sequential") {
    return IndexOrder::kSequential;
  }
  if (name == "shuffled") {
    return IndexOrder::kShuffled;
  }
  if (name == "stream") {
    return IndexOrder::kStream;
  }
  HR_ENFORCE(name == "explicit", InvalidArgument, "unknown order '", name, "'");
  return IndexOrder::kExplicit;
}

const char* NameOf(TraceKind kind) {
  switch (kind) {
    case TraceKind::kRows:
      return "rows";
    case TraceKind::kWhole:
      return "whole";
    case TraceKind::kItems:
      return "items";
    case TraceKind::kCollate:
      return "collate";
    case TraceKind::kStream:
      return "stream";
    case TraceKind::kOpened:
      return "opened";
    case TraceKind::kReady:
      return "ready";
    case TraceKind::kTaken:
      return "taken";
    case TraceKind::kReleased:
      return "released";
    case TraceKind::kWait:
      break;
  }
  return "wait";
}

py::list TraceOf(const Consumer& consumer) {
  py::list events;
  for (const TraceEvent& event : consumer.scheduler()->Trace()) {
    const int64_t producer = event.producer == TraceEvent::kScheduler ? -1 : static_cast<int64_t>(event.producer);
    events.append(py::make_tuple(NameOf(event.kind), producer, event.begin_ns, event.end_ns, event.epoch, event.batch,
                                 event.slot, event.begin_row, event.end_row, event.stream));
  }
  return events;
}

Collation CollationFromName(const std::optional<std::string>& name) {
  if (!name) {
    return Collation::kNone;
  }
  if (*name == "whole") {
    return Collation::kWhole;
  }
  if (*name == "split") {
    return Collation::kSplit;
  }
  HR_ENFORCE(*name == "adaptive", InvalidArgument, "unknown collate '", *name, "'");
  return Collation::kAdaptive;
}

}  // namespace

void BindLoaderConsumer(py::module_& m) {
  py::enum_<WaitOutcome>(m, "WaitOutcome", "What a consumer has to do before its next batch.")
      .value("BATCH", WaitOutcome::kBatch)
      .value("END_OF_EPOCH", WaitOutcome::kEndOfEpoch)
      .value("NEEDS_INDICES", WaitOutcome::kNeedsIndices)
      .value("PRODUCER_DIED", WaitOutcome::kProducerDied)
      .value("TIMED_OUT", WaitOutcome::kTimedOut)
      .value("STOPPED", WaitOutcome::kStopped);
  py::class_<ProducerDeath>(m, "ProducerDeath", "What a worker that died was doing.")
      .def_readonly("producer", &ProducerDeath::producer)
      .def_readonly("busy", &ProducerDeath::busy)
      .def_readonly("epoch", &ProducerDeath::epoch)
      .def_readonly("batch", &ProducerDeath::batch)
      .def_readonly("row", &ProducerDeath::row)
      .def_readonly("attempts", &ProducerDeath::attempts);
  py::class_<Problem>(m, "BatchProblem", "Why a batch could not be made.")
      .def_property_readonly("killed", [](const Problem& self) { return self.kind == shared_memory::kKilled; })
      .def_readonly("row", &Problem::row)
      .def_property_readonly("message", [](const Problem& self) { return py::bytes(self.message); })
      .def_readonly("epoch", &Problem::epoch)
      .def_readonly("batch", &Problem::batch)
      .def_readonly("stream", &Problem::stream)
      .def_readonly("stream_batch", &Problem::stream_batch);
  py::class_<LastBatch>(m, "LastBatch", "Which batch it is that a loader has given last.")
      .def_readonly("epoch", &LastBatch::epoch)
      .def_readonly("batch", &LastBatch::batch)
      .def_readonly("rows", &LastBatch::rows)
      .def_readonly("stream", &LastBatch::stream)
      .def_readonly("stream_batch", &LastBatch::stream_batch)
      .def_property_readonly("attachment", [](const LastBatch& self) { return py::bytes(self.attachment); });
  py::class_<QueueFeeder, std::shared_ptr<QueueFeeder>>(m, "QueueFeeder",
                                                        "A C++ thread that feeds a queue from a loader.")
      .def("stop", &QueueFeeder::Stop, py::arg("reason") = "", py::call_guard<GilReleased>(),
           "Ends the thread and joins it. If the pass is not over and there is a reason, the queue fails with it. May "
           "be "
           "called twice.");
  py::class_<Consumer>(m, "BatchScheduler", "The main process's end of a loader's arena.")
      .def(py::init([](const std::string& order, uint64_t dataset_length, uint64_t seed, uint64_t batch_size,
                       bool drop_last, uint32_t prefetch, uint32_t producers, bool cross_epochs, uint32_t slot_count,
                       uint64_t slot_bytes, py::object decode_tree, py::object decode_problem, py::object unpickle,
                       uint32_t rank, uint32_t world, bool in_order, uint32_t streams,
                       const std::optional<std::string>& collate, std::optional<uint32_t> collators,
                       uint32_t trace_events, bool pin_memory) {
             SchedulerOptions options;
             options.arena.order = OrderFromName(order);
             options.arena.dataset_length = dataset_length;
             options.arena.seed = seed;
             options.arena.trace_events = trace_events;
             options.arena.slot_count = slot_count;
             options.arena.slot_bytes = slot_bytes;
             options.batch_size = batch_size;
             options.pin_memory = pin_memory;
             options.drop_last = drop_last;
             options.prefetch = prefetch;
             options.producers = producers;
             options.collation = CollationFromName(collate);
             options.collators = collators.value_or(options.collators);
             options.cross_epochs = cross_epochs;
             options.rank = rank;
             options.world = world;
             options.in_order = in_order;
             options.streams = streams;
             return std::make_unique<Consumer>(options, std::move(decode_tree), std::move(decode_problem),
                                               std::move(unpickle));
           }),
           py::kw_only(), py::arg("order"), py::arg("dataset_length"), py::arg("seed"), py::arg("batch_size"),
           py::arg("drop_last"), py::arg("prefetch"), py::arg("producers"), py::arg("cross_epochs"),
           py::arg("slot_count"), py::arg("slot_bytes"), py::arg("decode_tree"), py::arg("decode_problem"),
           py::arg("unpickle"), py::arg("rank") = 0, py::arg("world") = 1, py::arg("in_order") = true,
           py::arg("streams") = 0, py::arg("collate") = py::none(), py::arg("collators") = py::none(),
           py::arg("trace_events") = 0, py::arg("pin_memory") = false)
      .def_property_readonly("arena_fd", [](const Consumer& self) { return self.scheduler()->arena()->fd(); })
      .def_property_readonly("completion_fd", [](const Consumer& self) { return self.scheduler()->completion_fd(); })
      .def_property_readonly("batches_per_epoch",
                             [](const Consumer& self) { return self.scheduler()->batches_per_epoch(); })
      .def(
          "start_epoch",
          [](Consumer& self, uint64_t epoch, uint64_t first_batch, std::vector<uint64_t> skip,
             const std::vector<std::pair<uint64_t, bool>>& streams, uint32_t next_stream) {
            self.RequireOwner();
            EpochStart start{epoch, first_batch, std::move(skip), {}, next_stream};
            for (const auto& [next, ended] : streams) {
              start.streams.push_back({next, ended});
            }
            self.scheduler()->StartEpoch(start);
          },
          py::arg("epoch"), py::arg("first_batch") = 0, py::arg("skip") = std::vector<uint64_t>(),
          py::arg("streams") = std::vector<std::pair<uint64_t, bool>>(), py::arg("next_stream") = 0,
          "The consumer wants `first_batch` of `epoch` next, and none of the batches in `skip`. `streams`: of each of "
          "several streams the next batch and whether it has ended; `next_stream`: whose turn it is.")
      .def(
          "supply",
          [](Consumer& self, uint64_t rows, const py::bytes& indices, bool pickled) {
            self.scheduler()->Supply(rows, static_cast<std::string_view>(indices), pickled);
          },
          py::arg("rows"), py::arg("indices"), py::arg("pickled"))
      .def("end_supply", [](Consumer& self) { self.scheduler()->EndSupply(); })
      .def("wanted_supply", [](const Consumer& self) { return self.scheduler()->WantedSupply(); })
      .def("next", &Consumer::Next, py::arg("timeout") = -1.0,
           "The next batch, or the WaitOutcome that keeps it away. Waits without the GIL, at most `timeout` seconds "
           "(negative: no limit).")
      .def_property_readonly(
          "last", &Consumer::last,
          "Which batch `next` gave last, also if it raised the batch's error; None before the first.")
      .def("feed", &Consumer::Feed, py::arg("queue"), py::arg("on_death"), py::arg("on_supply"),
           py::arg("timeout") = -1.0,
           "Starts a C++ thread that moves this epoch's batches into `queue`. The functions return None, or an "
           "exception, "
           "with which the queue then fails.")
      .def(
          "watch_producer", [](Consumer& self, uint32_t id, int pidfd) { self.scheduler()->WatchProducer(id, pidfd); },
          py::arg("id"), py::arg("pidfd"))
      .def(
          "retire_producer", [](Consumer& self, uint32_t id) { self.scheduler()->RetireProducer(id); }, py::arg("id"),
          "Asks a worker to end: its `wait` gives None after the claim at hand. Its death is not reported.")
      .def(
          "set_producers", [](Consumer& self, uint32_t producers) { self.scheduler()->SetProducers(producers); },
          py::arg("producers"), "For how many workers batches are cut from now on.")
      .def("take_deaths", [](Consumer& self) { return self.scheduler()->TakeDeaths(); })
      .def(
          "reclaim", [](Consumer& self, uint32_t id) { return self.scheduler()->Reclaim(id); }, py::arg("id"))
      .def(
          "shutdown",
          [](Consumer& self) {
            if (self.InOwner()) {
              self.scheduler()->Shutdown();
            }
          },
          "Ends producers and waits. Does nothing in a forked child.")
      .def_property_readonly(
          "pinning", [](const Consumer& self) { return self.scheduler()->pinning_problem(); },
          "Why batches are not locked for CUDA though pin_memory is on; \"\" if nothing keeps them from it.")
      .def("trace", &TraceOf,
           "What has happened, by begin: tuples (kind, worker, begin_ns, end_ns, epoch, batch, slot, begin_row, "
           "end_row, "
           "stream). The clock is CLOCK_MONOTONIC. Of workers (\"rows\", \"whole\", \"items\", \"collate\", "
           "\"stream\"): their claims. Of worker -1: the moments at which a batch was \"opened\", \"ready\", "
           "\"taken\", \"released\", and each \"wait\" of the consumer.")
      // Sums over all workers, those of each under "producers"; with worker_ before what the consumer has too.
      .def("stats", [](const Consumer& self) {
        const SchedulerStats stats = self.scheduler()->stats();
        py::dict result;
        result["elapsed_s"] = Seconds(stats.elapsed_ns);
        result["batches"] = stats.batches;
        result["bytes"] = stats.bytes;
        result["consumer_wait_s"] = Seconds(stats.wait_ns);
        result["waits"] = stats.waits;
        result["prefetch"] = stats.prefetch;
        result["open_batches"] = stats.open_batches;
        result["ready_batches"] = stats.ready_batches;
        result["held_slots"] = stats.held_slots;
        result["slots_used"] = stats.slots_used;
        result["resident_bytes"] = stats.resident_bytes;
        result["pinned_bytes"] = stats.pinned_bytes;
        AddFigures(stats.all, "worker_", result);
        py::list producers;
        for (const ProducerStats& producer : stats.producers) {
          py::dict figures;
          AddFigures(producer, "", figures);
          producers.append(figures);
        }
        result["producers"] = producers;
        return result;
      });
  py::class_<IndexPermutation>(m, "IndexPermutation", "A pseudo-random permutation of range(length), O(1) per index.")
      .def(py::init<uint64_t, uint64_t, uint64_t>(), py::arg("length"), py::arg("seed"), py::arg("epoch"))
      .def("__len__", &IndexPermutation::length)
      .def("__getitem__", [](const IndexPermutation& self, uint64_t position) {
        HR_ENFORCE(position < self.length(), OutOfRange, "position ", position, " is outside a permutation of ",
                   self.length());
        return self(position);
      });
}

}  // namespace headrace::python
