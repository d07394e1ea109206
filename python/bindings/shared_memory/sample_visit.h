// Walks over a sample as a template describes it. SampleTemplate (does it fit?) and SampleWriter (copy it) share this.
//
// Thread-safety: all functions need the GIL.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <vector>

#include "python/bindings/shared_memory/sample_template.h"

namespace headrace::python {

inline bool IsArray(PyObject* object) { return pybind11::detail::npy_api::get().PyArray_Check_(object); }

// An array that is nothing more than that: a subclass may have, say, a mask.
inline bool IsExactArray(PyObject* object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) ==
         reinterpret_cast<PyObject*>(pybind11::detail::npy_api::get().PyArray_Type_);
}

inline bool SameType(const SampleTemplate::Node& node, PyObject* sample) {
  return reinterpret_cast<PyObject*>(Py_TYPE(sample)) == node.type.ptr();
}

inline bool ArrayFits(const SampleTemplate::Node& node, PyObject* array) {
  const auto* proxy = pybind11::detail::array_proxy(array);
  if (static_cast<size_t>(proxy->nd) != node.shape.size()) {
    return false;
  }
  for (size_t i = 0; i < node.shape.size(); ++i) {
    if (proxy->dimensions[i] != node.shape[i]) {
      return false;
    }
    if (node.torch_strides && (proxy->strides[i] < 0 || proxy->strides[i] % node.dtype.itemsize() != 0)) {
      return false;
    }
  }
  return proxy->descr == node.dtype.ptr() ||
         pybind11::detail::npy_api::get().PyArray_EquivTypes_(proxy->descr, node.dtype.ptr());
}

// None for a tensor without an array of its own: Python collates those, or says what is wrong with them.
inline pybind11::object TensorToArray(const SampleTemplate::Node& node, PyObject* tensor) {
  const auto object = pybind11::reinterpret_borrow<pybind11::object>(tensor);
  try {
    if (node.to_array) {
      return node.to_array(object);
    }
    return object.attr("numpy")();  // raises for one that requires a gradient, or has other elements than its memory
  } catch (const pybind11::error_already_set& error) {
    if (error.matches(PyExc_Exception)) {
      return pybind11::none();
    }
    throw;
  }
}

inline pybind11::array ScalarToArray(PyObject* scalar) {
  return pybind11::array(
      pybind11::module_::import("numpy").attr("asarray")(pybind11::reinterpret_borrow<pybind11::object>(scalar)));
}

// The element at `index` of a list or tuple (or subclass), borrowed.
inline PyObject* SequenceItem(PyObject* sequence, size_t index) {
  return PyList_Check(sequence) ? PyList_GET_ITEM(sequence, static_cast<Py_ssize_t>(index))
                                : PyTuple_GET_ITEM(sequence, static_cast<Py_ssize_t>(index));
}

inline size_t SequenceSize(PyObject* sequence) {
  return static_cast<size_t>(PyList_Check(sequence) ? PyList_GET_SIZE(sequence) : PyTuple_GET_SIZE(sequence));
}

inline bool SameKey(PyObject* key, const pybind11::object& expected) {
  if (key == expected.ptr()) {
    return true;
  }
  if (Py_TYPE(key) != Py_TYPE(expected.ptr())) {  // 1, 1.0 and True are equal, but a batch has the keys of its samples
    return false;
  }
  const int equal = PyObject_RichCompareBool(key, expected.ptr(), Py_EQ);
  if (equal < 0) {
    throw pybind11::error_already_set();
  }
  return equal == 1;
}

// Whether an object has attributes of its own, which a batch takes over from its first sample.
inline bool HasAttributes(PyObject* object) {
  PyObject** attributes = _PyObject_GetDictPtr(object);
  return attributes != nullptr && *attributes != nullptr && PyDict_GET_SIZE(*attributes) != 0;
}

// Calls visit(i, value) for the values of a mapping. Returns false if visit does, or if the keys are not the expected
// ones in the same order: the first sample's order decides that of the batch, whichever producer writes it.
template <typename Visit>
bool ForEachValue(const std::vector<pybind11::object>& keys, PyObject* mapping, const Visit& visit) {
  if (!PyDict_Check(mapping)) {
    const pybind11::list items = pybind11::reinterpret_borrow<pybind11::object>(mapping).attr("items")();
    if (items.size() != keys.size()) {
      return false;
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      const pybind11::tuple item = items[i];
      const pybind11::object key = item[0];
      const pybind11::object value = item[1];
      if (!SameKey(key.ptr(), keys[i]) || !visit(i, value.ptr())) {
        return false;
      }
    }
    return true;
  }
  // The only subclass that gets here with attributes: others that may have some are kWhole.
  if (PyODict_CheckExact(mapping) && HasAttributes(mapping)) {
    return false;
  }
  PyObject* borrowed_key = nullptr;
  PyObject* borrowed_value = nullptr;
  Py_ssize_t position = 0;
  size_t i = 0;
  while (PyDict_Next(mapping, &position, &borrowed_key, &borrowed_value) != 0) {
    // Comparing and writing may run Python code, which could drop them.
    const auto key = pybind11::reinterpret_borrow<pybind11::object>(borrowed_key);
    const auto value = pybind11::reinterpret_borrow<pybind11::object>(borrowed_value);
    if (i >= keys.size() || !SameKey(key.ptr(), keys[i]) || !visit(i, value.ptr())) {
      return false;
    }
    ++i;
  }
  return i == keys.size();
}

// Like ForEachValue, for a list or tuple of `size` elements.
template <typename Visit>
bool ForEachItem(size_t size, PyObject* sequence, const Visit& visit) {
  if (SequenceSize(sequence) != size) {
    return false;
  }
  for (size_t i = 0; i < size; ++i) {
    if (i >= SequenceSize(sequence)) {  // visiting may run Python code
      return false;
    }
    const auto item = pybind11::reinterpret_borrow<pybind11::object>(SequenceItem(sequence, i));
    if (!visit(i, item.ptr())) {
      return false;
    }
  }
  return true;
}

// Like ForEachValue, for the attributes of an object.
template <typename Visit>
bool ForEachField(const std::vector<pybind11::object>& names, PyObject* sample, const Visit& visit) {
  for (size_t i = 0; i < names.size(); ++i) {
    const auto value = pybind11::reinterpret_steal<pybind11::object>(PyObject_GetAttr(sample, names[i].ptr()));
    if (!value) {
      if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) {
        throw pybind11::error_already_set();
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

inline bool HasChildren(NodeKind kind) {
  return kind == NodeKind::kSequence || kind == NodeKind::kMapping || kind == NodeKind::kFields;
}

}  // namespace headrace::python
