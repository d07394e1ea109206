// Writes a batch that Python has collated into the slot of its claim.
#pragma once

#include <pybind11/pybind11.h>

#include "reader/shared_memory/batch_producer.h"

namespace headrace::python {

// Lays out the leaves in the slot of `claim`, which makes its batch alone, publishes the layout with the pickled
// `tree`, and copies the leaves. A leaf is an array, a list of objects, which `pickle(object)` turns into bytes, or an
// object with shape, dtype, meaning and fill(array) that makes its array in place, like headrace.data's Planned. The
// claim stays open. Needs the GIL. Throws ResourceExhausted if the batch is larger than the slot, FailedPrecondition if
// the batch already has another layout, and whatever Python raises.
void WriteCollated(shared_memory::BatchProducer& producer, const shared_memory::Claim& claim,
                   const pybind11::bytes& tree, const pybind11::list& leaves, const pybind11::object& pickle);

}  // namespace headrace::python
