#include "python/bindings/collated_batch.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/ddim.h"
#include "framework/errors.h"
#include "python/bindings/ddim_caster.h"
#include "python/bindings/sample_template.h"
#include "reader/shared_memory/batch_layout.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

using shared_memory::BatchLayout;
using shared_memory::BatchProducer;
using shared_memory::Claim;
using shared_memory::LeafKind;
using shared_memory::LeafSpec;
using shared_memory::SideRecord;

LeafSpec SpecOf(const py::handle& leaf) {
  LeafSpec spec;
  if (py::isinstance<py::array>(leaf)) {
    const auto array = py::reinterpret_borrow<py::array>(leaf);
    spec.item_bytes = static_cast<uint32_t>(array.itemsize());
    spec.dims.assign(array.shape(), array.shape() + array.ndim());
    spec.dtype = TensorDtype(array.dtype());
  } else if (py::isinstance<py::list>(leaf)) {
    spec.kind = LeafKind::kObject;
    spec.dims = {static_cast<int64_t>(py::len(leaf))};
  } else {
    const auto dtype = py::dtype::from_args(leaf.attr("dtype"));
    const auto meaning = py::cast<std::string>(leaf.attr("meaning"));
    spec.kind = meaning == "offsets" ? LeafKind::kOffsets : LeafKind::kArray;
    spec.item_bytes = static_cast<uint32_t>(dtype.itemsize());
    spec.dims = py::cast<DDim>(leaf.attr("shape"));
    spec.dtype = TensorDtype(dtype, spec.kind == LeafKind::kOffsets ? std::string() : meaning);
  }
  return spec;
}

// Pickles the objects into side data; their records go to `place`.
void WriteObjects(BatchProducer& producer, const Claim& claim, const py::list& objects, const py::object& pickle,
                  size_t leaves_end, std::byte* place) {
  for (const py::handle object : objects) {
    const auto bytes = py::cast<py::bytes>(pickle(object));
    const std::string_view view = bytes;
    const SideRecord record = producer.AllocateSide(claim, view.size(), leaves_end);
    std::memcpy(producer.Data(claim) + record.offset, view.data(), view.size());
    std::memcpy(place, &record, sizeof(record));
    place += sizeof(record);
  }
}

}  // namespace

void WriteCollated(BatchProducer& producer, const Claim& claim, const py::bytes& tree, const py::list& leaves,
                   const py::object& pickle) {
  std::vector<LeafSpec> specs;
  for (const py::handle leaf : leaves) {
    specs.push_back(SpecOf(leaf));
  }
  const BatchLayout layout(specs, static_cast<std::string_view>(tree), producer.DataOffset(claim),
                           producer.LeavesLimit(claim));
  HR_ENFORCE(producer.PublishLayout(claim, layout.bytes()), FailedPrecondition,
             "the batch has a layout from another producer");
  const size_t leaves_end = layout.end();
  for (size_t i = 0; i < specs.size(); ++i) {
    std::byte* place = producer.Data(claim) + layout.leaf(i).offset;
    if (specs[i].kind == LeafKind::kObject) {
      WriteObjects(producer, claim, py::cast<py::list>(leaves[i]), pickle, leaves_end, place);
      continue;
    }
    const bool is_array = py::isinstance<py::array>(leaves[i]);
    const auto dtype = py::dtype::from_args(leaves[i].attr("dtype"));
    py::array target = UnownedArray(dtype, {specs[i].dims.begin(), specs[i].dims.end()}, place);
    if (is_array) {
      target[py::ellipsis()] = leaves[i];
    } else {
      leaves[i].attr("fill")(target);
    }
  }
}

}  // namespace headrace::python
