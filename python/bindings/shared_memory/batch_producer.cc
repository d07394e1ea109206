// _core.BatchProducer, which seeds (SeedRow), makes and writes rows without a step of Python for each.
#include "reader/shared_memory/batch_producer.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/shared_memory/claim_timers.h"
#include "python/bindings/shared_memory/collated_batch.h"
#include "python/bindings/shared_memory/global_generators.h"
#include "python/bindings/shared_memory/sample_writer.h"
#include "python/bindings/shared_memory/served_arena.h"
#include "reader/shared_memory/arena/process_id.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

using shared_memory::Arena;
using shared_memory::Claim;
using shared_memory::ClaimKind;
using shared_memory::KeptSample;
using shared_memory::StreamEnd;

// One per worker thread; must not be shared between threads.
class BatchProducer {
 public:
  BatchProducer(std::shared_ptr<Arena> arena, uint32_t id, int completion_fd, py::object describe, py::object pickle)
      : arena_(std::move(arena)),
        producer_(arena_, id, completion_fd),
        writer_(&producer_, std::move(describe), pickle),
        collated_(&producer_, std::move(pickle)) {}

  std::optional<Claim> Wait(double timeout) {
    const GilReleased released;
    return Begun(producer_.WaitForClaim(timeout < 0 ? -1 : static_cast<int64_t>(timeout * 1e9)));
  }

  void OwnThread() const { ServedArena() = arena_.get(); }

  // Makes the rows of one claim after the other, as long as they are plain rows of `epoch` and `revision`. Returns the
  // first claim that is not; none once the loader is shut down. If getitem raises, the claim it was called for stays in
  // failed_claim().
  std::optional<Claim> FillPlain(const py::object& getitem, uint64_t epoch, bool out, uint64_t revision) {
    return ServePlain(ClaimKind::kRows, epoch, revision,
                      [&](const Claim& claim) { Fill(claim, getitem, py::none(), out); });
  }

  // Makes and collates whole batches, one after the other, as long as they are plain ones of `epoch` and `revision`.
  // Returns and throws as FillPlain; after an exception failed_collation() says whether the samples had been made.
  std::optional<Claim> CollatePlain(const py::object& getitem, const py::object& collate, const py::object& flatten,
                                    uint64_t epoch, uint64_t revision) {
    return ServePlain(ClaimKind::kWhole, epoch, revision,
                      [&](const Claim& claim) { Collate(claim, getitem, collate, flatten); });
  }
  const std::optional<Claim>& failed_claim() const { return failed_claim_; }
  bool failed_collation() const { return failed_collation_; }

  bool HasPickledIndices(const Claim& claim) const { return !producer_.PickledIndices(claim).empty(); }

  py::object Indices(const Claim& claim, const py::object& unpickle) {
    const std::string_view pickled = producer_.PickledIndices(claim);
    if (!pickled.empty()) {
      const py::list keys = unpickle(py::bytes(pickled.data(), pickled.size()));
      py::list wanted(claim.end - claim.begin);
      for (uint32_t row = claim.begin; row < claim.end; ++row) {
        wanted[row - claim.begin] = keys[py::int_(producer_.PlannedRow(claim, row))];
      }
      return wanted;
    }
    const std::vector<uint64_t> numbers = producer_.Indices(claim);
    py::list indices(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      indices[i] = py::int_(numbers[i]);
    }
    return indices;
  }

  // The samples of the claim's rows, which stays open.
  py::list Make(const Claim& claim, const py::object& getitem, const py::object& keys) {
    const RowIndices indices(this, claim, keys);
    py::list samples(claim.end - claim.begin);
    for (uint32_t row = claim.begin; row < claim.end; ++row) {
      BeginRow(claim, row);
      SeedRow(row);
      py::object sample = Call(getitem, indices.At(row));
      PyList_SET_ITEM(samples.ptr(), static_cast<Py_ssize_t>(row - claim.begin), sample.release().ptr());
    }
    return samples;
  }

  void BeginRow(const Claim& claim, uint32_t row) {
    row_ = row;
    producer_.BeginRow(claim, row);
  }

  // Makes the rows of the claim with getitem(index) or getitem(index, place), and ends the claim.
  void Fill(const Claim& claim, const py::object& getitem, const py::object& keys, bool out) {
    RequirePlaces(claim);
    if (out) {
      FillInPlace(claim, getitem, keys);
      return;
    }
    writer_.Begin(claim);
    const RowIndices indices(this, claim, keys);
    std::optional<RowTimer> timer(std::in_place, &producer_, claim);
    for (uint32_t row = claim.begin; row < claim.end; ++row) {
      timer->Begin();
      BeginRow(claim, row);
      SeedRow(row);
      const py::object sample = Call(getitem, indices.At(row));
      timer->Made();
      if (!writer_.Write(sample.ptr(), row)) {
        producer_.Fail(claim, row, shared_memory::ProblemKind::kMismatch, {});
        return;
      }
      timer->Written();
    }
    timer.reset();
    producer_.Complete(claim);
  }

  // Makes the samples of a whole batch, each of them once, and writes each before the next one is made: they may all be
  // one buffer. Ends the claim and returns None; returns the samples if they do not fit together, the claim then stays
  // open.
  py::object MakeWhole(const Claim& claim, const py::object& getitem, const py::object& keys) {
    HR_ENFORCE(shared_memory::MakesBatch(claim.kind), FailedPrecondition, "the claim is not a whole batch");
    const RowIndices indices(this, claim, keys);
    py::list samples(claim.end - claim.begin);
    bool fits = true;
    writer_.Begin(claim);
    std::optional<RowTimer> timer(std::in_place, &producer_, claim);
    for (uint32_t row = claim.begin; row < claim.end; ++row) {
      timer->Begin();
      BeginRow(claim, row);
      SeedRow(row);
      py::object sample = Call(getitem, indices.At(row));
      timer->Made();
      fits = fits && writer_.Write(sample.ptr(), row);
      timer->Written();
      PyList_SET_ITEM(samples.ptr(), static_cast<Py_ssize_t>(row - claim.begin), sample.release().ptr());
    }
    timer.reset();
    if (!fits) {
      producer_.DropLayout(claim);
      return samples;
    }
    Finish(claim, claim.rows, /*ended=*/false, py::bytes());
    return py::none();
  }

  // Writes samples that exist already and ends the claim. At the end of a stream, its batch has fewer rows. Returns
  // false if the samples of a whole batch do not fit together: the claim stays open, unchanged.
  bool FillFrom(const Claim& whole_claim, const py::sequence& samples, bool ended, const py::bytes& attachment) {
    RequirePlaces(whole_claim);
    const Claim claim = OfSamples(whole_claim, py::len(samples), ended);
    if (claim.rows == 0) {
      EndStream(claim, attachment);
      return true;
    }
    const CopyTimer timer(&producer_);
    writer_.Begin(claim);
    for (uint32_t row = claim.begin; row < claim.end; ++row) {
      BeginRow(claim, row);
      const py::object sample = samples[row - claim.begin];
      if (!writer_.Write(sample.ptr(), row)) {
        if (shared_memory::MakesBatch(claim.kind)) {
          producer_.DropLayout(claim);
          return false;
        }
        producer_.Fail(claim, row, shared_memory::ProblemKind::kMismatch, {});
        return true;
      }
    }
    timer.Stop();
    Finish(claim, claim.rows, ended, attachment);
    return true;
  }

  // Copies a sample, bytes and buffers, into the slot for the collation of its batch.
  void Keep(const Claim& claim, uint32_t row, const py::bytes& message, const py::list& buffers) {
    RequireItems(claim);
    HR_ENFORCE(row >= claim.begin && row < claim.end, OutOfRange, "row ", row, " is not one of the claim's, ",
               claim.begin, " to ", claim.end);
    const CopyTimer timer(&producer_);
    struct Release {
      void operator()(Py_buffer* view) const {
        PyBuffer_Release(view);
        delete view;
      }
    };
    std::vector<std::unique_ptr<Py_buffer, Release>> views;
    std::vector<std::string_view> contents;
    for (const py::handle buffer : buffers) {
      auto view = std::make_unique<Py_buffer>();
      if (PyObject_GetBuffer(buffer.ptr(), view.get(), PyBUF_SIMPLE) != 0) {
        throw py::error_already_set();
      }
      contents.emplace_back(static_cast<const char*>(view->buf), static_cast<size_t>(view->len));
      views.emplace_back(view.release());
    }
    producer_.Keep(claim, row, static_cast<std::string_view>(message), contents);
    timer.Stop();
  }

  // What was kept for each row: bytes and buffers in the slot, which stay mapped as long as anybody holds them.
  py::list Kept(const Claim& claim) {
    HR_ENFORCE(claim.kind == ClaimKind::kCollate, FailedPrecondition, "the claim is not a collation");
    const py::capsule owner(new std::shared_ptr<Arena>(arena_),
                            [](void* pointer) { delete static_cast<std::shared_ptr<Arena>*>(pointer); });
    const auto view = [&owner](std::span<std::byte> bytes) {
      const py::array_t<uint8_t> array(static_cast<py::ssize_t>(bytes.size()),
                                       reinterpret_cast<const uint8_t*>(bytes.data()), owner);
      return py::memoryview(array);
    };
    py::list rows(claim.rows);
    const std::vector<KeptSample> samples = producer_.Kept(claim);
    for (uint32_t row = 0; row < claim.rows; ++row) {
      const KeptSample& sample = samples[row];
      py::list buffers;
      for (const std::span<std::byte> buffer : sample.buffers) {
        buffers.append(view(buffer));
      }
      rows[row] = py::make_tuple(view(sample.message), buffers);
    }
    return rows;
  }

  // Ends a claim whose samples have been kept.
  void Complete(const Claim& claim) {
    RequireItems(claim);
    producer_.Complete(claim);
  }

  // Ends a claim whose samples cannot be kept: one worker then makes the whole batch again.
  void Mismatch(const Claim& claim) {
    RequireItems(claim);
    producer_.Fail(claim, row_, shared_memory::ProblemKind::kMismatch, {});
  }

  // Ends the claim: its stream is over, and the batch has no rows.
  void EndStream(const Claim& claim, const py::bytes& attachment) {
    RequireStream(claim);
    Describe(claim, /*ended=*/false, attachment);
    producer_.SetStreamEnd(claim, StreamEnd::kBefore);
    producer_.Complete(claim);
  }

  // Writes a whole batch that is already collated, and ends the claim. A leaf is an array, a list of objects, or an
  // object with shape, dtype, meaning and fill(array) that makes its array in place, like headrace.data's Planned.
  void WriteBatch(const Claim& claim, const py::bytes& tree, const py::list& leaves, bool ended,
                  const py::bytes& attachment, std::optional<uint32_t> rows) {
    HR_ENFORCE(shared_memory::MakesBatch(claim.kind), FailedPrecondition, "the claim is not a whole batch");
    const CopyTimer timer(&producer_);
    collated_.Write(claim, tree, leaves);
    timer.Stop();
    Finish(claim, rows.value_or(claim.rows), ended, attachment);
  }

  size_t MessageRoom(const Claim& claim) const { return producer_.MessageRoom(claim); }

  void Fail(const Claim& claim, const py::bytes& message, bool ended, const py::bytes& attachment) {
    try {
      writer_.ClosePlaces(claim);
    } catch (const ResourceExhausted&) {  // the claim has to end all the same, and its own error is the one to report
    }
    Describe(claim, ended, attachment);
    producer_.Fail(claim, row_, shared_memory::ProblemKind::kFailed, static_cast<std::string_view>(message));
  }

  void AddTime(uint64_t dataset_ns, uint64_t collate_ns, uint64_t copy_ns) {
    producer_.AddTime(dataset_ns, collate_ns, copy_ns);
  }

  void Expect(const py::object& prototype) { writer_.Expect(prototype); }

  // From now on, the samples of all rows, and collate_plain's collations, are made with generators that are seeded by
  // their position in the epoch.
  void SeedRows(std::shared_ptr<GlobalGenerators> generators, uint64_t epoch_key) {
    generators_ = std::move(generators);
    epoch_key_ = epoch_key;
  }

  std::optional<Claim> TryClaim() { return Begun(producer_.TryClaim()); }
  bool stopped() const { return producer_.stopped(); }
  bool HasTrialBefore(const Claim& claim) const { return producer_.HasTrialBefore(claim); }
  bool IsOpen(const Claim& claim) const { return producer_.IsOpen(claim); }
  uint32_t row() const { return row_; }
  uint64_t batch() const { return batch_; }
  uint32_t id() const { return producer_.id(); }

 private:
  // Passes claims to `serve`, which ends them, as long as they are plain ones of that kind.
  template <typename Serve>
  std::optional<Claim> ServePlain(ClaimKind kind, uint64_t epoch, uint64_t revision, const Serve& serve) {
    for (;;) {
      failed_collation_ = false;
      failed_claim_ = Wait(-1);
      if (!failed_claim_ || !IsPlain(*failed_claim_, kind, epoch, revision)) {
        return std::exchange(failed_claim_, std::nullopt);
      }
      serve(*failed_claim_);
      failed_claim_.reset();
      if (PyErr_CheckSignals() != 0) {
        throw py::error_already_set();
      }
    }
  }

  bool IsPlain(const Claim& claim, ClaimKind kind, uint64_t epoch, uint64_t revision) const {
    return claim.kind == kind && claim.epoch == epoch && claim.revision == revision && claim.deaths == 0 &&
           !HasPickledIndices(claim);
  }

  py::object Call(const py::object& function, const py::object& argument) const {
    auto result = py::reinterpret_steal<py::object>(PyObject_CallOneArg(function.ptr(), argument.ptr()));
    if (!result) {
      throw py::error_already_set();
    }
    RefuseChild();
    return result;
  }

  // After a call of the user's code: a child that it has forked returns from it, too, and would write to the slot.
  void RefuseChild() const {
    HR_ENFORCE(shared_memory::ProcessId() == process_, FailedPrecondition,
               "a forked child is no worker: it has to end with os._exit");
  }

  // Makes a whole batch of getitem's samples, and ends the claim. Samples and batch die as soon as nothing needs them.
  void Collate(const Claim& claim, const py::object& getitem, const py::object& collate, const py::object& flatten) {
    const uint64_t begin_ns = shared_memory::MonotonicNanoseconds();
    py::object samples = Make(claim, getitem, py::none());
    failed_collation_ = true;
    const uint64_t made_ns = shared_memory::MonotonicNanoseconds();
    SeedRow(kCollationRow);
    py::object batch = Call(collate, samples);
    samples = py::object();
    producer_.AddTime(made_ns - begin_ns, shared_memory::MonotonicNanoseconds() - made_ns, 0);
    const auto flat = py::cast<py::tuple>(Call(flatten, batch));
    batch = py::object();
    WriteBatch(claim, py::cast<py::bytes>(flat[0]), py::cast<py::list>(flat[1]), /*ended=*/false, py::bytes(),
               std::nullopt);
  }

  void SeedRow(uint32_t row) {
    if (generators_) {
      generators_->Seed(epoch_key_, PositionKey(batch_, row));
    }
  }

  // A failure before any row was started counts as one of the claim's first row.
  std::optional<Claim> Begun(std::optional<Claim> claim) {
    if (claim) {
      row_ = claim->begin;
      batch_ = claim->batch;
    }
    return claim;
  }

  // What the rows of a claim are in the dataset.
  class RowIndices {
   public:
    // `keys` are the indices, or None: the producer computes them.
    RowIndices(BatchProducer* self, const Claim& claim, py::object keys) : begin_(claim.begin), keys_(std::move(keys)) {
      if (keys_.is_none()) {
        numbers_ = self->producer_.Indices(claim);
      }
    }
    py::object At(uint32_t row) const {
      return keys_.is_none() ? py::object(py::int_(numbers_[row - begin_])) : py::object(keys_[py::int_(row - begin_)]);
    }

   private:
    const uint32_t begin_;
    const py::object keys_;
    std::vector<uint64_t> numbers_;
  };

  void FillInPlace(const Claim& claim, const py::object& getitem, const py::object& keys) {
    writer_.Begin(claim);
    const uint32_t unfit = FillRowsInPlace(claim, getitem, keys);
    writer_.ClosePlaces(claim);
    if (unfit < claim.end) {
      writer_.Forget();  // otherwise all later batches would get the wrong places, too
      producer_.Fail(claim, unfit, shared_memory::ProblemKind::kMismatch, {});
      return;
    }
    producer_.Complete(claim);
  }

  // The first row whose structure differs from the rest of its batch, else the claim's end.
  uint32_t FillRowsInPlace(const Claim& claim, const py::object& getitem, const py::object& keys) {
    const RowIndices indices(this, claim, keys);
    RowTimer timer(&producer_, claim);
    for (uint32_t row = claim.begin; row < claim.end; ++row) {
      timer.Begin();
      BeginRow(claim, row);
      bool fits = true;
      const py::object place = writer_.Place(row, &fits);
      if (fits) {
        SeedRow(row);
        const py::object sample = getitem(indices.At(row), place);
        RefuseChild();
        timer.Made();
        if (!place.is_none() && (sample.is_none() || sample.is(place))) {
          writer_.RequireFilled();
        } else {
          fits = writer_.Write(sample.ptr(), row);
        }
      }
      if (!fits) {
        return row;
      }
      timer.Written();
    }
    return claim.end;
  }

  static void RequirePlaces(const Claim& claim) {
    HR_ENFORCE(claim.kind != ClaimKind::kItems && claim.kind != ClaimKind::kCollate, FailedPrecondition,
               "the claim's samples are to be kept, or were, not to be written to their places");
  }

  static void RequireItems(const Claim& claim) {
    HR_ENFORCE(claim.kind == ClaimKind::kItems, FailedPrecondition, "the claim's samples are not to be kept");
  }

  static void RequireStream(const Claim& claim) {
    HR_ENFORCE(claim.kind == ClaimKind::kStream, FailedPrecondition, "the claim is not a batch of a stream");
  }

  // The claim, reduced to as many rows as there are samples.
  static Claim OfSamples(Claim claim, size_t samples, bool ended) {
    const uint32_t rows = claim.end - claim.begin;
    if (claim.kind == ClaimKind::kStream && ended && samples < rows) {
      claim.rows = claim.end = static_cast<uint32_t>(samples);
      return claim;
    }
    HR_ENFORCE(samples == rows, InvalidArgument, "the claim has ", rows, " rows, got ", samples, " samples");
    return claim;
  }

  // Attaches what travels with the batch.
  void Describe(const Claim& claim, bool ended, const py::bytes& attachment) {
    if (ended) {
      RequireStream(claim);
      producer_.SetStreamEnd(claim, StreamEnd::kAfter);
    }
    const auto bytes = static_cast<std::string_view>(attachment);
    if (!bytes.empty()) {
      HR_ENFORCE(shared_memory::MakesBatch(claim.kind), FailedPrecondition,
                 "only the producer of a whole batch can attach something to it");
      producer_.Attach(claim, bytes);
    }
  }

  void Finish(const Claim& claim, uint32_t rows, bool ended, const py::bytes& attachment) {
    Describe(claim, ended, attachment);
    if (shared_memory::MakesBatch(claim.kind)) {
      producer_.SetRows(claim, rows);
    }
    producer_.Complete(claim);
  }

  const pid_t process_ = shared_memory::ProcessId();
  const std::shared_ptr<Arena> arena_;
  shared_memory::BatchProducer producer_;
  SampleWriter writer_;
  CollatedWriter collated_;
  std::shared_ptr<GlobalGenerators> generators_;  // null: rows are not seeded
  uint64_t epoch_key_ = 0;
  uint32_t row_ = 0;
  uint64_t batch_ = 0;  // of the latest claim
  std::optional<Claim> failed_claim_;
  bool failed_collation_ = false;
};

}  // namespace

const Arena*& ServedArena() {
  thread_local const Arena* arena = nullptr;
  return arena;
}

void BindBatchProducer(py::module_& m) {
  py::class_<BatchProducer>(m, "BatchProducer", "A producer's end of a loader's arena. Belongs to one thread.")
      .def(py::init([](int arena_fd, uint32_t id, int completion_fd, py::object describe, py::object pickle) {
             return std::make_unique<BatchProducer>(Arena::Attach(arena_fd), id, completion_fd, std::move(describe),
                                                    std::move(pickle));
           }),
           py::arg("arena_fd"), py::arg("id"), py::arg("completion_fd"), py::arg("describe"), py::arg("pickle"))
      .def("wait", &BatchProducer::Wait, py::arg("timeout") = -1.0,
           "The next claim; None once the loader is shut down, or after `timeout` seconds (negative: no limit).")
      .def(
          "own_thread", &BatchProducer::OwnThread,
          "This thread works for the producer until it ends: the scheduler refuses it batches, for which it might wait "
          "in vain.")
      .def("try_claim", &BatchProducer::TryClaim, "The next claim, or None if there is nothing to do now.")
      .def("indices", &BatchProducer::Indices, py::arg("claim"), py::arg("unpickle"),
           "The dataset indices of the claim's rows.")
      .def(
          "make", &BatchProducer::Make, py::arg("claim"), py::arg("getitem"), py::arg("keys") = py::none(),
          "The samples getitem(index) of the claim's rows, as a list. `keys`: the indices; None: the producer computes "
          "them. The claim stays the caller's; if getitem raises, `row` says for which row.")
      .def(
          "make_whole", &BatchProducer::MakeWhole, py::arg("claim"), py::arg("getitem"), py::arg("keys") = py::none(),
          "As `make`, of a claim of a whole batch, and writes each sample before it makes the next one. Ends the claim "
          "and returns None; if the samples do not fit each other, returns them, and the claim is still the caller's.")
      .def("has_pickled_indices", &BatchProducer::HasPickledIndices, py::arg("claim"),
           "Whether the claim's indices are not plain integers.")
      .def("begin_row", &BatchProducer::BeginRow, py::arg("claim"), py::arg("row"),
           "Notes the row at hand, for reports of a death.")
      .def(
          "fill", &BatchProducer::Fill, py::arg("claim"), py::arg("getitem"), py::arg("keys") = py::none(),
          py::arg("out") = false,
          "Makes the claim's rows with getitem(index) and ends the claim. With `out`, getitem(index, place): the row's "
          "place as a sample of writable arrays, to be used during the call only, or None while it is not known what "
          "samples look like; if it returns the place, or None for it, the row is filled. If getitem raises, the claim "
          "is still the caller's: call fail.")
      .def("fill_plain", &BatchProducer::FillPlain, py::arg("getitem"), py::arg("epoch"), py::arg("out") = false,
           py::arg("revision") = 0,
           "Waits for claims and fills them, without a step in Python between them, as long as each is rows of `epoch` "
           "and `revision` with integers as indices, at which no worker has died. Returns the first other claim, or "
           "None once the loader is shut down. If getitem raises, see `failed_claim`.")
      .def_property_readonly(
          "failed_claim", &BatchProducer::failed_claim,
          "The claim for which fill_plain or collate_plain raised, which is the caller's: call fail. None if it raised "
          "between two claims, because of a signal handler.")
      .def(
          "collate_plain", &BatchProducer::CollatePlain, py::arg("getitem"), py::arg("collate"), py::arg("flatten"),
          py::arg("epoch"), py::arg("revision") = 0,
          "As `fill_plain`, of whole batches: makes of each collate([getitem(index), ...]), which flatten(batch) takes "
          "apart as a tree and leaves, see `write_batch`.")
      .def_property_readonly("failed_collation", &BatchProducer::failed_collation,
                             "Whether collate_plain had made the samples of the failed claim.")
      .def(
          "seed_rows", &BatchProducer::SeedRows, py::arg("generators"), py::arg("epoch_key"),
          "From now on, the samples that getitem makes, and collate_plain's batches, are made with generators that are "
          "seeded by that key and their position, as `seed_generators` does.")
      .def("expect", &BatchProducer::Expect, py::arg("prototype"), "Says what samples look like, before the first one.")
      .def("fill_from", &BatchProducer::FillFrom, py::arg("claim"), py::arg("samples"), py::arg("ended") = false,
           py::arg("attachment") = py::bytes(),
           "As fill, with the samples made already. `ended`: the stream is over after them. Of a whole batch's claim: "
           "False if the samples do not fit each other; the claim is then still the caller's.")
      .def("keep", &BatchProducer::Keep, py::arg("claim"), py::arg("row"), py::arg("data"), py::arg("buffers"),
           "Of a claim of items: keeps a sample for the collation, as bytes and buffers, which are copied.")
      .def("complete", &BatchProducer::Complete, py::arg("claim"), "Ends a claim of items, all of which are kept.")
      .def("mismatch", &BatchProducer::Mismatch, py::arg("claim"),
           "Ends a claim of items that cannot be kept: the batch is made again by one worker, as a whole.")
      .def("kept", &BatchProducer::Kept, py::arg("claim"),
           "Of a collation: for each row the bytes and the buffers that were kept, writable memoryviews over the slot. "
           "They hold until the claim is ended; afterwards other batches are written there.")
      .def("end_stream", &BatchProducer::EndStream, py::arg("claim"), py::arg("attachment") = py::bytes(),
           "Ends the claim: its stream was over before this batch, which will not be delivered. `attachment`: see the "
           "scheduler's `stream_end`.")
      .def(
          "write_batch", &BatchProducer::WriteBatch, py::arg("claim"), py::arg("tree"), py::arg("leaves"),
          py::arg("ended") = false, py::arg("attachment") = py::bytes(), py::arg("rows") = py::none(),
          "Writes a batch that is collated already and ends the claim. `rows`: how many samples are in it, if not all.")
      .def("message_room", &BatchProducer::MessageRoom, py::arg("claim"),
           "How many bytes a message to `fail` may have now; others may take some of them meanwhile.")
      .def("fail", &BatchProducer::Fail, py::arg("claim"), py::arg("message"), py::arg("ended") = false,
           py::arg("attachment") = py::bytes(), "Ends the claim: its rows, from the one at hand on, could not be made.")
      .def("add_time", &BatchProducer::AddTime, py::kw_only(), py::arg("dataset_ns") = 0, py::arg("collate_ns") = 0,
           py::arg("copy_ns") = 0,
           "Records how the time of a claim was spent; fill, fill_from and write_batch note theirs.")
      .def_property_readonly("stopped", &BatchProducer::stopped, "Whether the loader is shut down.")
      .def("has_trial_before", &BatchProducer::HasTrialBefore, py::arg("claim"),
           "Whether an earlier batch of a stream has killed workers and is not made yet, or was given up.")
      .def("is_open", &BatchProducer::IsOpen, py::arg("claim"), "Whether its batch may still be delivered.")
      .def_property_readonly("row", &BatchProducer::row, "The row at hand.")
      .def_property_readonly("batch", &BatchProducer::batch, "The number, in its epoch, of the batch at hand.")
      .def_property_readonly("id", &BatchProducer::id);
}

}  // namespace headrace::python
