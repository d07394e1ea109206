#include "python/bindings/shared_memory/sample_writer.h"

#include <cstring>
#include <optional>
#include <string_view>

#include "python/bindings/gil.h"
#include "python/bindings/shared_memory/sample_visit.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

using shared_memory::BatchLayout;
using shared_memory::SideRecord;

// Copies of at least this size release the GIL, so that other threads of the process can work.
constexpr size_t kLongCopy = size_t{256} << 10;

}  // namespace

bool SampleWriter::Write(PyObject* sample, uint32_t row) {
  if (layout_ == nullptr) {
    if (template_ == nullptr || !Fits(template_->root(), sample)) {
      template_ = std::make_unique<SampleTemplate>(describe_(py::reinterpret_borrow<py::object>(sample)));
    }
    if (!Publish()) {
      return false;
    }
  }
  return WriteNode(template_->root(), sample, row);
}

bool SampleWriter::Publish() {
  try {
    const BatchLayout& layout =
        template_->LayoutFor(claim_.rows, producer_->DataOffset(claim_), producer_->arena().slot_bytes());
    std::optional<bool> published = producer_->TryPublishLayout(claim_, layout.bytes());
    if (!published) {  // this may take as long as the consumer is away
      const GilReleased released;
      published = producer_->PublishLayout(claim_, layout.bytes());
    }
    if (!*published) {
      return false;
    }
    layout_ = &layout;
  } catch (...) {
    Forget();  // what is too large for this batch would be so for all later ones
    throw;
  }
  return true;
}

py::object SampleWriter::Place(uint32_t row, bool* fits) {
  *fits = true;
  if (template_ == nullptr) {
    return py::none();
  }
  if (layout_ == nullptr && !Publish()) {
    *fits = false;
    return py::none();
  }
  if (window_ == nullptr) {
    windows_.Open(claim_.slot, layout_->end());
    window_ = windows_.begin(claim_.slot);
  }
  return template_->Place(*layout_, window_, row, windows_.owner(claim_.slot));
}

bool SampleWriter::IsPlace(const char* data, const std::byte* place) const {
  return data == reinterpret_cast<const char*>(place) ||
         (window_ != nullptr && data == reinterpret_cast<const char*>(window_ + (place - producer_->Data(claim_))));
}

void SampleWriter::RequireFilled() const {
  if (template_->has_objects()) {
    throw py::type_error(
        "__getitem__ returned out, or None, for samples that do not consist of arrays and numbers alone: return the "
        "whole sample, with the parts of out that are filled");
  }
}

bool SampleWriter::WriteNode(const SampleTemplate::Node& node, PyObject* sample, uint32_t row) {
  if (node.kind == NodeKind::kArray) {
    return (IsExactArray(sample) || SameType(node, sample)) && WriteArray(node, sample, RowOf(node, row));
  }
  if (!SameType(node, sample)) {
    // A number or tensor may be the array that was handed out as its place.
    const bool placed = !HasChildren(node.kind) && node.kind != NodeKind::kWhole && node.kind != NodeKind::kObject;
    return placed && IsArray(sample) && ArrayFits(node, sample) &&
           IsPlace(py::detail::array_proxy(sample)->data, RowOf(node, row));
  }
  if (node.kind == NodeKind::kSequence) {
    return ForEachItem(node.children.size(), sample,
                       [&](size_t i, PyObject* item) { return WriteNode(node.children[i], item, row); });
  }
  if (node.kind == NodeKind::kMapping) {
    return ForEachValue(node.keys, sample,
                        [&](size_t i, PyObject* value) { return WriteNode(node.children[i], value, row); });
  }
  if (node.kind == NodeKind::kFields) {
    return ForEachField(node.keys, sample,
                        [&](size_t i, PyObject* value) { return WriteNode(node.children[i], value, row); });
  }
  if (node.kind == NodeKind::kWhole) {
    return false;
  }
  std::byte* place = RowOf(node, row);
  switch (node.kind) {
    case NodeKind::kFloat: {
      const double value = PyFloat_AS_DOUBLE(sample);
      std::memcpy(place, &value, sizeof(value));
      return true;
    }
    case NodeKind::kInt: {
      const long long value = PyLong_AsLongLong(sample);
      if (value == -1 && PyErr_Occurred() != nullptr) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError) == 0) {
          throw py::error_already_set();
        }
        PyErr_Clear();  // the collate function says what becomes of it
        return false;
      }
      std::memcpy(place, &value, sizeof(value));
      return true;
    }
    case NodeKind::kBool:
      *place = static_cast<std::byte>(sample == Py_True);
      return true;
    case NodeKind::kScalar: {
      Py_buffer buffer;
      if (!node.flexible && PyObject_GetBuffer(sample, &buffer, PyBUF_SIMPLE) == 0) {
        const bool fits = static_cast<size_t>(buffer.len) == node.row_bytes;
        if (fits) {
          std::memcpy(place, buffer.buf, node.row_bytes);
        }
        PyBuffer_Release(&buffer);
        return fits;
      }
      PyErr_Clear();  // some extension types have no buffer
      return WriteArray(node, ScalarToArray(sample).ptr(), place);
    }
    case NodeKind::kTensor: {
      if (const char* data = TensorData(node, sample)) {
        CopyRow(node, data, place);
        return true;
      }
      const py::object array = TensorToArray(node, sample);
      return IsArray(array.ptr()) && WriteArray(node, array.ptr(), place);
    }
    default:
      WriteObject(node, sample, place);
      return true;
  }
}

bool SampleWriter::WriteArray(const SampleTemplate::Node& node, PyObject* array, std::byte* place) {
  if (!ArrayFits(node, array)) {
    return false;
  }
  const auto* proxy = py::detail::array_proxy(array);
  if ((proxy->flags & py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_) != 0) {
    CopyRow(node, proxy->data, place);
  } else if (!IsPlace(proxy->data, place)) {
    UnownedArray(node.dtype, node.shape, place)[py::ellipsis()] = py::reinterpret_borrow<py::object>(array);
  }
  return true;
}

void SampleWriter::CopyRow(const SampleTemplate::Node& node, const char* data, std::byte* place) const {
  if (IsPlace(data, place)) {  // made there
    return;
  }
  if (node.row_bytes < kLongCopy) {
    std::memcpy(place, data, node.row_bytes);
  } else {
    const GilReleased released;
    std::memcpy(place, data, node.row_bytes);
  }
}

void SampleWriter::WriteObject(const SampleTemplate::Node&, PyObject* object, std::byte* place) {
  const auto bytes = py::cast<py::bytes>(pickle_(py::reinterpret_borrow<py::object>(object)));
  const std::string_view view = bytes;
  const SideRecord record = producer_->AllocateSide(claim_, view.size(), layout_->end());
  std::memcpy(producer_->Data(claim_) + record.offset, view.data(), view.size());
  std::memcpy(place, &record, sizeof(record));
}

}  // namespace headrace::python
