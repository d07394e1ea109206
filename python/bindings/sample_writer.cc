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

py::object TensorToArray(PyObject* tensor) {
  py::object object = py::reinterpret_borrow<py::object>(tensor);
  if (py::hasattr(object, "detach")) {
    object = object.attr("detach")();
  }
  return object.attr("numpy")();
}

// The element at `index` of a list or tuple (or subclass), borrowed.
PyObject* SequenceItem(PyObject* sequence, size_t index) {
  return PyList_Check(sequence) ? PyList_GET_ITEM(sequence, static_cast<Py_ssize_t>(index))
                                : PyTuple_GET_ITEM(sequence, static_cast<Py_ssize_t>(index));
}

size_t SequenceSize(PyObject* sequence) {
  return static_cast<size_t>(PyList_Check(sequence) ? PyList_GET_SIZE(sequence) : PyTuple_GET_SIZE(sequence));
}

// The value of a key in a dict, borrowed; nullptr if it is not there.
PyObject* MappingItem(PyObject* mapping, const py::object& key) {
  PyObject* value = PyDict_GetItemWithError(mapping, key.ptr());
  if (value == nullptr && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return value;
}

}  // namespace

SampleTemplate::SampleTemplate(const py::handle& description) {
  const auto pair = py::cast<py::tuple>(description);
  tree_ = py::cast<std::string>(pair[0]);
  root_ = Compile(pair[1]);
}

SampleTemplate::Node SampleTemplate::Compile(const py::handle& description) {
  const auto fields = py::cast<py::tuple>(description);
  Node node;
  node.kind = static_cast<NodeKind>(py::cast<int>(fields[0]));
  node.type = fields[1];
  if (node.kind == NodeKind::kSequence || node.kind == NodeKind::kMapping) {
    if (node.kind == NodeKind::kMapping) {
      for (const py::handle key : py::cast<py::tuple>(fields[2])) {
        node.keys.push_back(py::reinterpret_borrow<py::object>(key));
      }
    }
    for (const py::handle child : py::cast<py::tuple>(fields[node.kind == NodeKind::kMapping ? 3 : 2])) {
      node.children.push_back(Compile(child));
    }
    return node;
  }
  LeafSpec leaf;
  if (node.kind == NodeKind::kObject) {
    leaf.kind = LeafKind::kObject;
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
    try {
      leaf.dtype = static_cast<int32_t>(DataTypeOfNumpy(node.dtype));
    } catch (const TypeMismatch&) {
      leaf.dtype = -1;  // travels to NumPy consumers, though no tensor of a program can hold it
    }
    leaf.dims.assign(node.shape.begin(), node.shape.end());
  }
  node.leaf = leaves_.size();
  leaves_.push_back(std::move(leaf));
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
    case NodeKind::kSequence: {
      if (SequenceSize(sample) != node.children.size()) {
        return false;
      }
      for (size_t i = 0; i < node.children.size(); ++i) {
        if (!Fits(node.children[i], SequenceItem(sample, i))) {
          return false;
        }
      }
      return true;
    }
    case NodeKind::kMapping: {
      if (static_cast<size_t>(PyDict_Size(sample)) != node.keys.size()) {
        return false;
      }
      for (size_t i = 0; i < node.children.size(); ++i) {
        PyObject* value = MappingItem(sample, node.keys[i]);
        if (value == nullptr || !Fits(node.children[i], value)) {
          return false;
        }
      }
      return true;
    }
    case NodeKind::kTensor:
      return ArrayFits(node, TensorToArray(sample).ptr());
    default:
      return true;
  }
}

bool SampleWriter::Write(PyObject* sample, uint32_t row) {
  if (layout_ == nullptr) {
    if (template_ == nullptr || !Fits(template_->root(), sample)) {
      template_ = std::make_unique<SampleTemplate>(describe_(py::reinterpret_borrow<py::object>(sample)));
    }
    const BatchLayout& layout =
        template_->LayoutFor(claim_.rows, producer_->DataOffset(claim_), producer_->arena().slot_bytes());
    if (!producer_->PublishLayout(claim_, layout.bytes())) {
      return false;
    }
    layout_ = &layout;
  }
  return WriteNode(template_->root(), sample, row);
}

bool SampleWriter::WriteNode(const SampleTemplate::Node& node, PyObject* sample, uint32_t row) {
  if (node.kind == NodeKind::kArray) {
    return IsArray(sample) &&
           WriteArray(node, sample, producer_->Data(claim_) + layout_->leaf(node.leaf).offset + row * node.row_bytes);
  }
  if (!SameType(node, sample)) {
    return false;
  }
  if (node.kind == NodeKind::kSequence) {
    if (SequenceSize(sample) != node.children.size()) {
      return false;
    }
    for (size_t i = 0; i < node.children.size(); ++i) {
      if (!WriteNode(node.children[i], SequenceItem(sample, i), row)) {
        return false;
      }
    }
    return true;
  }
  if (node.kind == NodeKind::kMapping) {
    if (static_cast<size_t>(PyDict_Size(sample)) != node.keys.size()) {
      return false;
    }
    for (size_t i = 0; i < node.children.size(); ++i) {
      PyObject* value = MappingItem(sample, node.keys[i]);
      if (value == nullptr || !WriteNode(node.children[i], value, row)) {
        return false;
      }
    }
    return true;
  }
  std::byte* place = producer_->Data(claim_) + layout_->leaf(node.leaf).offset + row * node.row_bytes;
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
      if (PyObject_GetBuffer(sample, &buffer, PyBUF_SIMPLE) == 0) {
        std::memcpy(place, buffer.buf, node.row_bytes);
        PyBuffer_Release(&buffer);
        return true;
      }
      PyErr_Clear();  // dates have no buffer
      const py::array array = py::array::ensure(py::reinterpret_borrow<py::object>(sample));
      return WriteArray(node, array.ptr(), place);
    }
    case NodeKind::kTensor:
      return WriteArray(node, TensorToArray(sample).ptr(), place);
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
