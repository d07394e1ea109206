// Writes batches that Python has collated into the slots of their claims.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "reader/shared_memory/arena/batch_layout.h"
#include "reader/shared_memory/batch_producer.h"

namespace headrace::python {

// One per producer. Thread-safety: all functions need the GIL.
class CollatedWriter {
 public:
  // `pickle(object)` returns an object's bytes.
  CollatedWriter(shared_memory::BatchProducer* producer, pybind11::object pickle)
      : producer_(producer), pickle_(std::move(pickle)) {}

  // Lays out the leaves in the slot of `claim`, which makes its batch alone, publishes the layout with the pickled
  // `tree`, and copies the leaves. A leaf is an array, a list of objects, or an object with shape, dtype, meaning and
  // fill(array) that makes its array in place, like headrace.data's Planned. The claim stays open. Throws
  // ResourceExhausted if the batch is larger than the slot, FailedPrecondition if the batch already has another layout,
  // and whatever Python raises.
  void Write(const shared_memory::Claim& claim, const pybind11::bytes& tree, const pybind11::list& leaves);

 private:
  shared_memory::LeafSpec SpecOf(const pybind11::handle& leaf, size_t i);
  void WriteObjects(const shared_memory::Claim& claim, const pybind11::list& objects, size_t leaves_end,
                    std::byte* place);

  shared_memory::BatchProducer* producer_;
  pybind11::object pickle_;
  // By leaf, of the batch before: what asks NumPy, and is usually the same in the next one.
  std::vector<std::pair<pybind11::dtype, int32_t>> dtypes_;
};

}  // namespace headrace::python
