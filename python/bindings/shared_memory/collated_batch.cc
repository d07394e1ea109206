#include "python/bindings/shared_memory/collated_batch.h"

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
#include "python/bindings/framework/ddim_caster.h"
#include "python/bindings/gil.h"
#include "python/bindings/shared_memory/sample_template.h"
#include "reader/shared_memory/arena/batch_layout.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

using shared_memory::BatchLayout;
using shared_memory::Claim;
using shared_memory::LeafKind;
using shared_memory::LeafSpec;
using shared_memory::SideRecord;

// From how many bytes on other threads of the process may run during a copy.
constexpr size_t kLongCopy = size_t{64} << 10;

// Copies an array of the target's shape and dtype.
void CopyArray(const py::array& source, const LeafSpec& spec, std::byte* place) {
  constexpr int kHasReferences = 0x01;  // NPY_ITEM_REFCOUNT
  if ((source.flags() & py::array::c_style) == 0 || (source.dtype().flags() & kHasReferences) != 0) {
    py::array target = UnownedArray(source.dtype(), {spec.dims.begin(), spec.dims.end()}, place);
    target[py::ellipsis()] = source;
    return;
  }
  const auto bytes = static_cast<size_t>(source.nbytes());
  const void* data = source.data();
  if (bytes < kLongCopy) {
    std::memcpy(place, data, bytes);
    return;
  }
  const GilReleased released;
  std::memcpy(place, data, bytes);
}

}  // namespace

LeafSpec CollatedWriter::SpecOf(const py::handle& leaf, size_t i) {
  LeafSpec spec;
  if (py::isinstance<py::array>(leaf)) {
    const auto array = py::reinterpret_borrow<py::array>(leaf);
    spec.item_bytes = static_cast<uint32_t>(array.itemsize());
    spec.dims.assign(array.shape(), array.shape() + array.ndim());
    const py::dtype dtype = array.dtype();
    if (i >= dtypes_.size()) {
      dtypes_.resize(i + 1);
    }
    if (!dtypes_[i].first.is(dtype)) {
      dtypes_[i] = {dtype, TensorDtype(dtype)};
    }
    spec.dtype = dtypes_[i].second;
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
void CollatedWriter::WriteObjects(const Claim& claim, const py::list& objects, size_t leaves_end, std::byte* place) {
  for (const py::handle object : objects) {
    const auto bytes = py::cast<py::bytes>(pickle_(object));
    const std::string_view view = bytes;
    const SideRecord record = producer_->AllocateSide(claim, view.size(), leaves_end);
    std::memcpy(producer_->Data(claim) + record.offset, view.data(), view.size());
    std::memcpy(place, &record, sizeof(record));
    place += sizeof(record);
  }
}

void CollatedWriter::Write(const Claim& claim, const py::bytes& tree, const py::list& leaves) {
  std::vector<LeafSpec> specs;
  specs.reserve(leaves.size());
  for (const py::handle leaf : leaves) {
    specs.push_back(SpecOf(leaf, specs.size()));
  }
  const BatchLayout layout(specs, static_cast<std::string_view>(tree), producer_->DataOffset(claim),
                           producer_->LeavesLimit(claim));
  // No other producer publishes a layout for this batch, and what a dead one had published is gone with its claim.
  HR_ENFORCE(producer_->PublishLayout(claim, layout.bytes()), DataLoss, "the layout of a batch was written over");
  const size_t leaves_end = layout.end();
  for (size_t i = 0; i < specs.size(); ++i) {
    std::byte* place = producer_->Data(claim) + layout.leaf(i).offset;
    const py::object leaf = leaves[i];
    if (specs[i].kind == LeafKind::kObject) {
      WriteObjects(claim, py::cast<py::list>(leaf), leaves_end, place);
    } else if (py::isinstance<py::array>(leaf)) {
      CopyArray(py::reinterpret_borrow<py::array>(leaf), specs[i], place);
    } else {
      const auto dtype = py::dtype::from_args(leaf.attr("dtype"));
      leaf.attr("fill")(UnownedArray(dtype, {specs[i].dims.begin(), specs[i].dims.end()}, place));
    }
  }
}

}  // namespace headrace::python
