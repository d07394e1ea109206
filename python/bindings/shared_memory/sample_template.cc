#include "python/bindings/shared_memory/sample_template.h"

#include <pybind11/stl.h>

#include <optional>
#include <utility>

#include "framework/data_type.h"
#include "framework/errors.h"
#include "python/bindings/numpy_interop.h"
#include "python/bindings/shared_memory/sample_visit.h"

namespace headrace::python {
namespace py = pybind11;

using shared_memory::BatchLayout;
using shared_memory::LeafKind;
using shared_memory::LeafSpec;
using shared_memory::SideRecord;

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

namespace {

// Of elements that are numbers as they are in memory, which complex ones need not be; none for any others.
std::optional<dlpack::DataType> DlpackType(const py::dtype& dtype) {
  const auto bits = static_cast<uint8_t>(8 * dtype.itemsize());
  switch (dtype.kind()) {
    case 'f':
      return dlpack::DataType{dlpack::kFloat, bits, 1};
    case 'i':
      return dlpack::DataType{dlpack::kInt, bits, 1};
    case 'u':
      return dlpack::DataType{dlpack::kUInt, bits, 1};
    case 'b':
      return dlpack::DataType{dlpack::kBool, bits, 1};
    default:
      return std::nullopt;
  }
}

const dlpack::ExchangeApi* ExchangeOf(const py::object& type) {
  // What tells whether the elements are all that there is to a tensor of PyTorch's.
  if (!py::hasattr(type, dlpack::kExchangeAttribute) || !py::hasattr(type, "requires_grad") ||
      !py::hasattr(type, "is_neg")) {
    return nullptr;
  }
  const py::object capsule = type.attr(dlpack::kExchangeAttribute);
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::kExchangeCapsule) == 0) {
    return nullptr;
  }
  const auto* api =
      static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kExchangeCapsule));
  const bool known = api->header.major == dlpack::kMajorVersion && api->dltensor_from_py_object_no_sync != nullptr;
  return known ? api : nullptr;
}

}  // namespace

SampleTemplate::SampleTemplate(const py::handle& description) {
  const auto pair = py::cast<py::tuple>(description);
  tree_ = py::cast<std::string>(pair[0]);
  root_ = Compile(pair[1]);
  place_ = pair[2];
}

py::object SampleTemplate::Place(const BatchLayout& layout, std::byte* data, uint32_t row,
                                 const py::object& owner) const {
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
    arrays[i] = py::array(dtypes_[i], std::vector<py::ssize_t>(leaf.dims.begin(), leaf.dims.end()),
                          data + layout.leaf(i).offset + row * row_bytes_[i], owner);
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
    node.torch_strides = node.kind == NodeKind::kArray && py::cast<bool>(fields[4]);
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
      } else if (const auto element = DlpackType(node.dtype)) {
        node.exchange = ExchangeOf(node.type);
        node.element = *element;
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
  if (layouts_.size() >= 8) {  // the full size, the last batch's, and a few odd ones
    layouts_.clear();
  }
  layouts_.push_back({rows, data_offset, std::move(layout)});
  return layouts_.back().layout;
}

py::array UnownedArray(const py::dtype& dtype, std::vector<py::ssize_t> shape, std::byte* data) {
  // Any base object keeps pybind11 from copying; this one owns nothing.
  const py::object base = py::int_(0);
  return {dtype, std::move(shape), data, base};
}

const char* TensorData(const SampleTemplate::Node& node, PyObject* tensor) {
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  if (node.exchange == nullptr) {
    return nullptr;
  }
  const auto grad = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor, requires_grad));
  const auto neg = py::reinterpret_steal<py::object>(grad ? PyObject_CallMethodNoArgs(tensor, is_neg) : nullptr);
  dlpack::Tensor seen{};
  if (!neg || node.exchange->dltensor_from_py_object_no_sync(tensor, &seen) != 0) {
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) {
      throw py::error_already_set();
    }
    PyErr_Clear();  // whoever makes an array of it says what is wrong
    return nullptr;
  }
  if (!grad.is(py::bool_(false)) || !neg.is(py::bool_(false)) || seen.device_type != dlpack::kCpu ||
      seen.dtype != node.element || static_cast<size_t>(seen.ndim) != node.shape.size() || seen.data == nullptr) {
    return nullptr;
  }
  int64_t stride = 1;
  for (size_t i = node.shape.size(); i-- > 0;) {
    if (seen.shape[i] != node.shape[i] || (seen.strides != nullptr && seen.shape[i] > 1 && seen.strides[i] != stride)) {
      return nullptr;
    }
    stride *= seen.shape[i];
  }
  return static_cast<const char*>(seen.data) + seen.byte_offset;
}

bool Fits(const SampleTemplate::Node& node, PyObject* sample) {
  if (node.kind == NodeKind::kArray) {
    return (IsExactArray(sample) || SameType(node, sample)) && ArrayFits(node, sample);
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
      if (TensorData(node, sample) != nullptr) {
        return true;
      }
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

}  // namespace headrace::python
