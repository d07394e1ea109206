// Writes Python samples into the rows of a batch in the arena, in one pass: while it copies it checks that each sample
// looks like the template of its batch.
//
// Thread-safety: all methods need the GIL; a writer belongs to one producer.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "python/bindings/place_window.h"
#include "python/bindings/sample_template.h"
#include "reader/shared_memory/batch_layout.h"
#include "reader/shared_memory/batch_producer.h"

namespace headrace::python {

class SampleWriter {
 public:
  // `describe(sample)` gives a sample's description; `pickle(object)` its bytes.
  SampleWriter(shared_memory::BatchProducer* producer, pybind11::object describe, pybind11::object pickle)
      : producer_(producer), windows_(producer->arena()), describe_(std::move(describe)), pickle_(std::move(pickle)) {}

  // Begins the rows of a claim.
  void Begin(const shared_memory::Claim& claim) {
    claim_ = claim;
    layout_ = nullptr;
    window_ = nullptr;
  }
  // Samples look like `prototype`, until others come.
  void Expect(const pybind11::object& prototype) { template_ = std::make_unique<SampleTemplate>(describe_(prototype)); }
  // What Expect or a sample has said is no longer so.
  void Forget() { template_.reset(); }
  // Where one row of the claim goes; None if it is not known yet what samples look like. False in `fits` if this batch
  // looks different already.
  pybind11::object Place(uint32_t row, bool* fits);
  // Before the claim is ended: places that were kept are not the slot's any more. Throws ResourceExhausted if there is
  // no memory for them.
  void ClosePlaces(const shared_memory::Claim& claim) { windows_.Close(claim.slot); }
  // The row was made in its place. Throws TypeError if that cannot be all of it.
  void RequireFilled() const;
  // Writes one row of the claim. False if the sample does not look like the others of its batch. Throws what Python
  // throws.
  bool Write(PyObject* sample, uint32_t row);

 private:
  bool Publish();
  // Whether an array's data is the place in the slot, or that place as the dataset sees it.
  bool IsPlace(const char* data, const std::byte* place) const;
  std::byte* RowOf(const SampleTemplate::Node& node, uint32_t row) const {
    return producer_->Data(claim_) + layout_->leaf(node.leaf).offset + row * node.row_bytes;
  }
  bool WriteNode(const SampleTemplate::Node& node, PyObject* sample, uint32_t row);
  bool WriteArray(const SampleTemplate::Node& node, PyObject* array, std::byte* place);
  void WriteObject(const SampleTemplate::Node& node, PyObject* object, std::byte* place);

  shared_memory::BatchProducer* producer_;
  PlaceWindows windows_;
  std::byte* window_ = nullptr;  // the claim's slot, as places are handed out
  pybind11::object describe_;
  pybind11::object pickle_;
  std::unique_ptr<SampleTemplate> template_;
  shared_memory::Claim claim_{};
  const shared_memory::BatchLayout* layout_ = nullptr;  // set once the batch has it
};

}  // namespace headrace::python
