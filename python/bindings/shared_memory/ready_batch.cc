// _core.ReadyBatch.
#include "python/bindings/shared_memory/ready_batch.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "framework/allocation.h"
#include "framework/errors.h"
#include "python/bindings/bindings.h"

namespace headrace::python {
namespace py = pybind11;

using shared_memory::BatchLayout;
using shared_memory::LeafKind;
using shared_memory::LeafRecord;
using shared_memory::ReadyBatch;
using shared_memory::SideRecord;

namespace {

// Trees do not contain shapes, so a loader meets only a few.
constexpr size_t kMaxDecoders = 4096;

}  // namespace

ReadyBatch WithoutMemory(const ReadyBatch& batch) {
  return {.epoch = batch.epoch,
          .batch = batch.batch,
          .rows = batch.rows,
          .stream = batch.stream,
          .stream_batch = batch.stream_batch,
          .attachment = batch.attachment,
          .problem = batch.problem,
          .problem_row = batch.problem_row,
          .problem_message = batch.problem_message,
          .author = batch.author};
}

BatchBuilder::BatchBuilder(py::object decode_tree, py::object unpickle)
    : decode_tree_(std::move(decode_tree)), unpickle_(std::move(unpickle)) {}

const BatchBuilder::Decoder& BatchBuilder::DecoderOf(const BatchLayout& layout) {
  const std::string_view tree = layout.tree();
  const auto found = decoders_.find(tree);
  if (found != decoders_.end()) {
    return found->second;
  }
  if (decoders_.size() >= kMaxDecoders) {
    decoders_.clear();
  }
  const auto pair = py::cast<py::tuple>(decode_tree_(py::bytes(tree.data(), tree.size())));
  Decoder decoder{pair[0], {}};
  for (const py::handle dtype : py::cast<py::list>(pair[1])) {
    decoder.dtypes.push_back(py::reinterpret_borrow<py::object>(dtype));
  }
  return decoders_.emplace(std::string(tree), std::move(decoder)).first->second;
}

py::object BatchBuilder::Build(const ReadyBatch& batch) {
  const BatchLayout& layout = batch.layout();
  const Decoder& decoder = DecoderOf(layout);
  std::byte* base = static_cast<std::byte*>(batch.memory->data());
  std::shared_ptr<Allocation> memory = batch.memory;
  if (batch.last_slots) {
    // The consumer keeps so many batches that the arena would run out of slots: copy this one.
    const size_t begin = layout.leaf_count() == 0 ? layout.end() : layout.leaf(0).offset;
    memory = Allocation::OnHeap(layout.end() - begin + 1);
    std::memcpy(memory->data(), base + begin, layout.end() - begin);
    base = static_cast<std::byte*>(memory->data()) - begin;
  }
  // All arrays of a batch share one owner: the slot is released with the last of them.
  const py::capsule owner(new std::shared_ptr<Allocation>(std::move(memory)),
                          [](void* pointer) { delete static_cast<std::shared_ptr<Allocation>*>(pointer); });
  HR_ENFORCE(decoder.dtypes.size() == layout.leaf_count(), DataLoss, "a batch has ", layout.leaf_count(),
             " elements, and a tree of ", decoder.dtypes.size());
  size_t objects = 0;  // how many of batch.objects belong to the leaves so far
  py::list leaves(layout.leaf_count());
  for (size_t i = 0; i < layout.leaf_count(); ++i) {
    const LeafRecord& leaf = layout.leaf(i);
    if (leaf.kind == LeafKind::kObject) {
      leaves[i] = Objects(batch, objects, leaf.dims[0]);
      objects += leaf.dims[0];
      continue;
    }
    const auto dtype = py::reinterpret_borrow<py::dtype>(decoder.dtypes[i]);
    HR_ENFORCE(static_cast<uint64_t>(dtype.itemsize()) == leaf.item_bytes, DataLoss, "element ", i,
               " of a batch has items of ", leaf.item_bytes, " bytes, and a dtype of ", dtype.itemsize());
    leaves[i] = py::array(dtype, std::vector<py::ssize_t>(leaf.dims, leaf.dims + leaf.ndim), base + leaf.offset, owner);
  }
  return decoder.build(leaves);
}

py::list BatchBuilder::Objects(const ReadyBatch& batch, size_t first, size_t count) {
  py::list objects(count);
  for (size_t row = 0; row < count; ++row) {
    const SideRecord& record = batch.objects[first + row];
    objects[row] = unpickle_(py::bytes(reinterpret_cast<const char*>(batch.slot + record.offset), record.bytes));
  }
  return objects;
}

void BindReadyBatch(py::module_& m) {
  py::class_<ReadyBatch>(m, "ReadyBatch", "Which batch it was that a loader has given, or could not make.")
      .def_readonly("epoch", &ReadyBatch::epoch)
      .def_readonly("batch", &ReadyBatch::batch)
      .def_readonly("rows", &ReadyBatch::rows)
      .def_readonly("stream", &ReadyBatch::stream)
      .def_readonly("stream_batch", &ReadyBatch::stream_batch)
      .def_property_readonly("attachment", [](const ReadyBatch& self) { return py::bytes(self.attachment); })
      .def_property_readonly(
          "killed", [](const ReadyBatch& self) { return self.problem == shared_memory::ProblemKind::kKilled; },
          "Whether it could not be made because its producers died at one row, again and again.")
      .def_property_readonly(
          "corrupt", [](const ReadyBatch& self) { return self.problem == shared_memory::ProblemKind::kCorrupt; },
          "Whether what workers left in shared memory contradicts itself; `message` is then a text.")
      .def_readonly("row", &ReadyBatch::problem_row, "The row that could not be made.")
      .def_property_readonly(
          "message", [](const ReadyBatch& self) { return py::bytes(self.problem_message); }, "The producer's report.")
      .def_readonly("author", &ReadyBatch::author,
                    "The producer that described the batch, or reported its problem; None if unknown.");
}

}  // namespace headrace::python
