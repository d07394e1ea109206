// Writes Python samples into the rows of a batch in the arena, in one pass: while copying, it checks that each sample
// matches the template of its batch.
//
// Thread-safety: all methods need the GIL; a writer belongs to one producer.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "python/bindings/shared_memory/place_window.h"
#include "python/bindings/shared_memory/sample_template.h"
#include "reader/shared_memory/arena/batch_layout.h"
#include "reader/shared_memory/batch_producer.h"

namespace headrace::python {

class SampleWriter {
 public:
  // `describe(sample)` returns a sample's description, `pickle(object)` an object's bytes.
  SampleWriter(shared_memory::BatchProducer* producer, pybind11::object describe, pybind11::object pickle)
      : producer_(producer), windows_(producer->arena()), describe_(std::move(describe)), pickle_(std::move(pickle)) {}

  // Begins the rows of a claim.
  void Begin(const shared_memory::Claim& claim) {
    claim_ = claim;
    layout_ = nullptr;
    window_ = nullptr;
  }
  // Expects samples like `prototype`, until a different one comes.
  void Expect(const pybind11::object& prototype) { template_ = std::make_unique<SampleTemplate>(describe_(prototype)); }
  // Forgets what Expect or a sample has established.
  void Forget() { template_.reset(); }
  // The place of one row of the claim; None while the samples' structure is unknown. Sets `fits` to false if this batch
  // already has a different layout.
  pybind11::object Place(uint32_t row, bool* fits);
  // Call before the claim ends: gives places that were kept memory of their own. Throws ResourceExhausted if there is
  // none.
  void ClosePlaces(const shared_memory::Claim& claim) { windows_.Close(claim.slot); }
  // The dataset made the row in its place. Throws TypeError if parts of the row have no place.
  void RequireFilled() const;
  // Writes one row of the claim. Returns false if the sample does not match the others of its batch. Throws what Python
  // raises.
  bool Write(PyObject* sample, uint32_t row);

 private:
  bool Publish();
  // Whether an array's data is the place in the slot, or the same place as mapped for the dataset.
  bool IsPlace(const char* data, const std::byte* place) const;
  std::byte* RowOf(const SampleTemplate::Node& node, uint32_t row) const {
    return producer_->Data(claim_) + layout_->leaf(node.leaf).offset + row * node.row_bytes;
  }
  bool WriteNode(const SampleTemplate::Node& node, PyObject* sample, uint32_t row);
  bool WriteArray(const SampleTemplate::Node& node, PyObject* array, std::byte* place);
  // Copies elements in C's order to the place, unless they were made there.
  void CopyRow(const SampleTemplate::Node& node, const char* data, std::byte* place) const;
  void WriteObject(const SampleTemplate::Node& node, PyObject* object, std::byte* place);

  shared_memory::BatchProducer* producer_;
  PlaceWindows windows_;
  std::byte* window_ = nullptr;  // the claim's slot, as mapped for places
  pybind11::object describe_;
  pybind11::object pickle_;
  std::unique_ptr<SampleTemplate> template_;
  shared_memory::Claim claim_{};
  const shared_memory::BatchLayout* layout_ = nullptr;  // set once the batch has it
};

}  // namespace headrace::python
