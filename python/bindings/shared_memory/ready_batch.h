// Turns the batches that the scheduler hands over into Python objects.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reader/shared_memory/arena/batch_layout.h"
#include "reader/shared_memory/batch_scheduler.h"

namespace headrace::python {

// A batch's description without its contents, which the caller still has to release.
shared_memory::ReadyBatch WithoutMemory(const shared_memory::ReadyBatch& batch);

// Makes Python batches over the memory of slots. Keeps one decoder for each kind of batch seen so far.
// Thread-safety: needs the GIL.
class BatchBuilder {
 public:
  // `decode_tree(bytes)` returns (build, dtypes): build(leaves) makes the batch, dtypes[i] is the leaf's dtype, or None
  // for a list of objects. `unpickle(bytes)` returns an object.
  BatchBuilder(pybind11::object decode_tree, pybind11::object unpickle);

  // The batch. Its arrays share the slot, which is released with the last of them; if the consumer holds nearly all
  // slots, they share a copy instead. Throws what Python raises.
  pybind11::object Build(const shared_memory::ReadyBatch& batch);

 private:
  struct Decoder {
    pybind11::object build;
    std::vector<pybind11::object> dtypes;
  };

  const Decoder& DecoderOf(const shared_memory::BatchLayout& layout);
  // `count` objects of batch.objects, from `first` on.
  pybind11::list Objects(const shared_memory::ReadyBatch& batch, size_t first, size_t count);

  pybind11::object decode_tree_;
  pybind11::object unpickle_;
  std::map<std::string, Decoder, std::less<>> decoders_;  // by the batch's tree
};

}  // namespace headrace::python
