#include "python/bindings/sample_writer.h"

#include <pybind11/stl.h>

#include <cstring>

#include "framework/data_type.h"
#include "python/bindings/gil.h"
#include "python/bindings/numpy_interop.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

using shared_memory::BatchLayout;
using shared_memory::LeafKind;
using shared_memory::LeafSpec;
using shared_memory::SideRecord;

// Copies of this size and more give the GIL up: threads of the same process can work meanwhile.
constexpr size_t kLongCopy = size_t{256} << 10;

bool IsArray(PyObject* object) { return py::detail::npy_api::get().PyArray_Check_(object); }

bool SameType(const SampleTemplate::Node& node, PyObject* sample) {
  return reinterpret_cast<PyObject*>(Py_TYPE(sample)) == node.type.ptr();
}

bool ArrayFits(const SampleTemplate::Node& node, PyObject* array) {
  const auto* proxy = py::detail::array_proxy(array);
  if (static_cast<size_t>(proxy->nd) != node.shape.size()) {
    return false;
  }
  for (size_t i = 0; i < node.shape.size(); ++i) {
    if (proxy->dimensions[i] != node.shape[i]) {
      return false;
    }
  }
  return proxy->descr == node.dtype.ptr() ||
         py::detail::npy_api::get().PyArray_EquivTypes_(proxy->descr, node.dtype.ptr());
}

// None for a tensor that has no array of its own: Python collates those, or says what is wrong with them.
py::object TensorToArray(const SampleTemplate::Node& node, PyObject* tensor) {
  py::object object = py::reinterpret_borrow<py::object>(tensor);
  try {
    if (node.to_array) {
      return node.to_array(object);
    }
    if (py::hasattr(object, "detach")) {
      object = object.attr("detach")();
    }
    return object.attr("numpy")();
  } catch (const py::error_already_set& error) {
    if (error.matches(PyExc_Exception)) {
      return py::none();
    }
    throw;
  }
}

py::array ScalarToArray(PyObject* scalar) {
  return py::array(py::module_::import("numpy").attr("asarray")(py::reinterpret_borrow<py::object>(scalar)));
}

// The element at `index` of a list or tuple (or subclass), borrowed.
PyObject* SequenceItem(PyObject* sequence, size_t index) {
  return PyList_Check(sequence) ? PyList_GET_ITEM(sequence, static_cast<Py_ssize_t>(index))
                                : PyTuple_GET_ITEM(sequence, static_cast<Py_ssize_t>(index));
}

size_t SequenceSize(PyObject* sequence) {
  return static_cast<size_t>(PyList_Check(sequence) ? PyList_GET_SIZE(sequence) : PyTuple_GET_SIZE(sequence));
}

bool SameKey(PyObject* key, const py::object& expected) {
  if (key == expected.ptr()) {
    return true;
  }
  const int equal = PyObject_RichCompareBool(key, expected.ptr(), Py_EQ);
  if (equal < 0) {
    throw py::error_already_set();
  }
  return equal == 1;
}

// Calls visit(i, value) for the values of a mapping. False if visit says so, or if the keys are not those expected: in
// the same order, because the first sample's order decides that of the batch, whoever writes it.
template <typename Visit>
bool ForEachValue(const std::vector<py::object>& keys, PyObject* mapping, const Visit& visit) {
  if (!PyDict_Check(mapping)) {
    const py::list items = py::reinterpret_borrow<py::object>(mapping).attr("items")();
    if (items.size() != keys.size()) {
      return false;
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      const py::tuple item = items[i];
      const py::object key = item[0];
      const py::object value = item[1];
      if (!SameKey(key.ptr(), keys[i]) || !visit(i, value.ptr())) {
        return false;
      }
    }
    return true;
  }
  PyObject* borrowed_key = nullptr;
  PyObject* borrowed_value = nullptr;
  Py_ssize_t position = 0;
  size_t i = 0;
  while (PyDict_Next(mapping, &position, &borrowed_key, &borrowed_value) != 0) {
    // Comparing and writing may run Python code, which could drop them.
    const auto key = py::reinterpret_borrow<py::object>(borrowed_key);
    const auto value = py::reinterpret_borrow<py::object>(borrowed_value);
    if (i >= keys.size() || !SameKey(key.ptr(), keys[i]) || !visit(i, value.ptr())) {
      return false;
    }
    ++i;
  }
  return i == keys.size();
}

// As ForEachValue, for a list or tuple of `size` elements.
template <typename Visit>
bool ForEachItem(size_t size, PyObject* sequence, const Visit& visit) {
  if (SequenceSize(sequence) != size) {
    return false;
  }
  for (size_t i = 0; i < size; ++i) {
    if (i >= SequenceSize(sequence)) {  // visiting may run Python code
      return false;
    }
    const auto item = py::reinterpret_borrow<py::object>(SequenceItem(sequence, i));
    if (!visit(i, item.ptr())) {
      return false;
    }
  }
  return true;
}

// As ForEachValue, for the attributes of an object.
template <typename Visit>
bool ForEachField(const std::vector<py::object>& names, PyObject* sample, const Visit& visit) {
  for (size_t i = 0; i < names.size(); ++i) {
    const auto value = py::reinterpret_steal<py::object>(PyObject_GetAttr(sample, names[i].ptr()));
    if (!value) {
      if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) {
        throw py::error_already_set();
      }
      PyErr_Clear();
      return false;
    }
    if (!visit(i, value.ptr())) {
      return false;
    }
  }
  return true;
}

bool HasChildren(NodeKind kind) {
  return kind == NodeKind::kSequence || kind == NodeKind::kMapping || kind == NodeKind::kFields;
}

}  // namespace

int32_t TensorDtype(const py::dtype& dtype, const std::string& meaning) {
  if (!meaning.empty()) {
    try {
      return static_cast<int32_t>(DataTypeFromName(meaning));
    } catch (const InvalidArgument&) {
      return -1;
    }
  }
  if (!py::cast<bool>(dtype.attr("isnative"))) {
    return -1;
  }
  try {
    return static_cast<int32_t>(DataTypeOfNumpy(dtype));
  } catch (const TypeMismatch&) {
    return -1;
  }
}

SampleTemplate::SampleTemplate(const py::handle& description) {
  const auto pair = py::cast<py::tuple>(description);
  tree_ = py::cast<std::string>(pair[0]);
  root_ = Compile(pair[1]);
  place_ = pair[2];
}

py::object SampleTemplate::Place(const BatchLayout& layout, std::byte* data, uint32_t row) const {
  if (whole_) {
    return py::none();
  }
  py::list arrays(leaves_.size());
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const LeafSpec& leaf = leaves_[i];
    if (leaf.kind == LeafKind::kObject) {
      arrays[i] = py::none();
      continue;
    }
    arrays[i] = UnownedArray(dtypes_[i], {leaf.dims.begin(), leaf.dims.end()},
                             data + layout.leaf(i).offset + row * row_bytes_[i]);
  }
  return place_(arrays);
}

SampleTemplate::Node SampleTemplate::Compile(const py::handle& description) {
  const auto fields = py::cast<py::tuple>(description);
  Node node;
  node.kind = static_cast<NodeKind>(py::cast<int>(fields[0]));
  node.type = fields[1];
  if (node.kind == NodeKind::kWhole) {
    whole_ = true;
    return node;
  }
  if (HasChildren(node.kind)) {
    const bool keyed = node.kind != NodeKind::kSequence;
    if (keyed) {
      for (const py::handle key : py::cast<py::tuple>(fields[2])) {
        node.keys.push_back(py::reinterpret_borrow<py::object>(key));
      }
    }
    for (const py::handle child : py::cast<py::tuple>(fields[keyed ? 3 : 2])) {
      node.children.push_back(Compile(child));
    }
    return node;
  }
  LeafSpec leaf;
  if (node.kind == NodeKind::kObject) {
    leaf.kind = LeafKind::kObject;
    has_objects_ = true;
    node.row_bytes = sizeof(SideRecord);
  } else {
    node.dtype = py::dtype::from_args(py::cast<py::object>(fields[2]));
    if (fields.size() > 3) {
      node.shape = py::cast<std::vector<py::ssize_t>>(fields[3]);
    }
    leaf.item_bytes = static_cast<uint32_t>(node.dtype.itemsize());
    node.row_bytes = leaf.item_bytes;
    for (const py::ssize_t extent : node.shape) {
      node.row_bytes *= static_cast<size_t>(extent);
    }
    std::string meaning;
    if (node.kind == NodeKind::kTensor) {
      meaning = py::cast<std::string>(fields[4]);
      if (!fields[5].is_none()) {
        node.to_array = py::cast<py::tuple>(fields[5])[0];
      }
    }
    leaf.dtype = TensorDtype(node.dtype, meaning);
    const char kind = node.dtype.kind();
    node.flexible = kind == 'V' || kind == 'M' || kind == 'm';
    leaf.dims.assign(node.shape.begin(), node.shape.end());
  }
  node.leaf = leaves_.size();
  leaves_.push_back(std::move(leaf));
  dtypes_.push_back(node.dtype);
  row_bytes_.push_back(node.row_bytes);
  return node;
}

const BatchLayout& SampleTemplate::LayoutFor(uint32_t rows, size_t data_offset, size_t slot_bytes) {
  for (const CachedLayout& cached : layouts_) {
    if (cached.rows == rows && cached.data_offset == data_offset) {
      return cached.layout;
    }
  }
  std::vector<LeafSpec> leaves = leaves_;
  for (LeafSpec& leaf : leaves) {
    leaf.dims.insert(leaf.dims.begin(), static_cast<int64_t>(rows));
  }
  BatchLayout layout(leaves, tree_, data_offset, slot_bytes);
  if (layouts_.size() >= 8) {  // full, last and a few odd batch sizes
    layouts_.clear();
  }
  layouts_.push_back({rows, data_offset, std::move(layout)});
  return layouts_.back().layout;
}

py::array UnownedArray(const py::dtype& dtype, std::vector<py::ssize_t> shape, std::byte* data) {
  // Any base keeps pybind11 from copying; this one owns nothing.
  const py::object base = py::int_(0);
  return {dtype, std::move(shape), data, base};
}

bool Fits(const SampleTemplate::Node& node, PyObject* sample) {
  if (node.kind == NodeKind::kArray) {
    return IsArray(sample) && ArrayFits(node, sample);
  }
  if (!SameType(node, sample)) {
    return false;
  }
  switch (node.kind) {
    case NodeKind::kSequence:
      return ForEachItem(node.children.size(), sample,
                         [&](size_t i, PyObject* item) { return Fits(node.children[i], item); });
    case NodeKind::kMapping:
      return ForEachValue(node.keys, sample, [&](size_t i, PyObject* value) { return Fits(node.children[i], value); });
    case NodeKind::kFields:
      return ForEachField(node.keys, sample, [&](size_t i, PyObject* value) { return Fits(node.children[i], value); });
    case NodeKind::kTensor: {
      const py::object array = TensorToArray(node, sample);
      return IsArray(array.ptr()) && ArrayFits(node, array.ptr());
    }
    case NodeKind::kWhole:
      return false;
    case NodeKind::kScalar:
      return !node.flexible || ArrayFits(node, ScalarToArray(sample).ptr());
    default:
      return true;
  }
}

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
  const BatchLayout& layout =
      template_->LayoutFor(claim_.rows, producer_->DataOffset(claim_), producer_->arena().slot_bytes());
  if (!producer_->PublishLayout(claim_, layout.bytes())) {
    return false;
  }
  layout_ = &layout;
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
  return template_->Place(*layout_, producer_->Data(claim_), row);
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
    return IsArray(sample) && WriteArray(node, sample, RowOf(node, row));
  }
  if (!SameType(node, sample)) {
    // A number or tensor may come as the array that is its place.
    const bool placed = !HasChildren(node.kind) && node.kind != NodeKind::kWhole && node.kind != NodeKind::kObject;
    return placed && IsArray(sample) && ArrayFits(node, sample) &&
           py::detail::array_proxy(sample)->data == reinterpret_cast<const char*>(RowOf(node, row));
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
        throw py::error_already_set();
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
      PyErr_Clear();  // extension types may have no buffer
      return WriteArray(node, ScalarToArray(sample).ptr(), place);
    }
    case NodeKind::kTensor: {
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
  if (proxy->data == reinterpret_cast<const char*>(place)) {  // made there
    return true;
  }
  if ((proxy->flags & py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_) == 0) {
    UnownedArray(node.dtype, node.shape, place)[py::ellipsis()] = py::reinterpret_borrow<py::object>(array);
  } else if (node.row_bytes < kLongCopy) {
    std::memcpy(place, proxy->data, node.row_bytes);
  } else {
    const char* data = proxy->data;
    const GilReleased released;
    std::memcpy(place, data, node.row_bytes);
  }
  return true;
}

void SampleWriter::WriteObject(const SampleTemplate::Node&, PyObject* object, std::byte* place) {
  const auto bytes = py::cast<py::bytes>(pickle_(py::reinterpret_borrow<py::object>(object)));
  const std::string_view view = bytes;
  const shared_memory::LayoutView layout(producer_->Data(claim_));
  const SideRecord record = producer_->AllocateSide(claim_, view.size(), layout.end());
  std::memcpy(producer_->Data(claim_) + record.offset, view.data(), view.size());
  std::memcpy(place, &record, sizeof(record));
}

}  // namespace headrace::python
