// _core.PlainTree.
#include "python/bindings/shared_memory/plain_tree.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <string>

#include "python/bindings/bindings.h"
#include "python/bindings/shared_memory/sample_visit.h"
#include "reader/shared_memory/arena/batch_layout.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

// A list of more arrays than this may be joined in one leaf (MOST_SEPARATE of _samples/tree_walk.py).
constexpr size_t kMostItems = 16;

bool IsPlainType(PyObject* value) {
  const PyTypeObject* type = Py_TYPE(value);
  return type == &PyLong_Type || type == &PyUnicode_Type || type == &PyFloat_Type || type == &PyBool_Type ||
         value == Py_None || type == &PyBytes_Type || type == &PyComplex_Type;
}

// Of an exact list or tuple.
bool HasOnlyPlainItems(PyObject* sequence) {
  PyObject** items = PySequence_Fast_ITEMS(sequence);
  return std::all_of(items, items + PySequence_Fast_GET_SIZE(sequence), IsPlainType);
}

bool Equal(PyObject* a, PyObject* b) {
  if (a == b) {
    return true;
  }
  const int equal = PyObject_RichCompareBool(a, b, Py_EQ);
  if (equal < 0) {
    throw py::error_already_set();
  }
  return equal == 1;
}

}  // namespace

std::optional<PlainTree> PlainTree::Of(const py::handle& structure, const py::list& dtypes, py::object whole_array) {
  PlainTree tree(std::move(whole_array));
  size_t leaves = 0;
  std::optional<Node> root = Compile(structure, dtypes, &leaves);
  if (!root || leaves != dtypes.size()) {
    return std::nullopt;
  }
  tree.root_ = std::move(*root);
  return tree;
}

std::optional<PlainTree::Node> PlainTree::Compile(const py::handle& structure, const py::list& dtypes, size_t* leaves) {
  const auto fields = py::cast<py::tuple>(structure);
  const auto name = py::cast<std::string>(fields[0]);
  Node node{};
  py::object children;
  if (name == "leaf" || name == "object") {
    if (py::cast<size_t>(fields[1]) != *leaves || *leaves >= dtypes.size()) {
      return std::nullopt;
    }
    node.kind = Kind::kObject;
    if (name == "leaf") {
      node.dtype = dtypes[*leaves];
      node.form = fields[2];
      node.kind = node.form.is_none() ? Kind::kArray : Kind::kTensor;
    }
    ++*leaves;
    return node;
  }
  if (name == "dict") {
    if (py::object(fields[1]).ptr() != reinterpret_cast<PyObject*>(&PyDict_Type) || !fields[2].is_none()) {
      return std::nullopt;
    }
    node.kind = Kind::kDict;
    for (const py::handle key : fields[3]) {
      if (!PyUnicode_CheckExact(key.ptr())) {
        return std::nullopt;
      }
      node.keys.push_back(py::reinterpret_borrow<py::object>(key));
    }
    children = fields[4];
  } else if (name == "list" || name == "tuple") {
    node.kind = name == "list" ? Kind::kList : Kind::kTuple;
    children = fields[1];
    if (node.kind == Kind::kList && py::len(children) > kMostItems) {
      return std::nullopt;
    }
  } else {
    return std::nullopt;
  }
  for (const py::handle child : children) {
    std::optional<Node> compiled = Compile(child, dtypes, leaves);
    if (!compiled) {
      return std::nullopt;
    }
    node.children.push_back(std::move(*compiled));
  }
  return node;
}

py::object PlainTree::Leaves(const py::handle& batch) const {
  Found found;
  if (!Match(root_, batch.ptr(), &found) || !found.IsPlain()) {
    return py::none();
  }
  return std::move(found.leaves);
}

bool PlainTree::Found::IsPlain() {
  std::sort(containers.begin(), containers.end());
  if (std::adjacent_find(containers.begin(), containers.end()) != containers.end()) {
    return false;
  }
  std::sort(spans.begin(), spans.end());
  return std::adjacent_find(spans.begin(), spans.end(),
                            [](const auto& a, const auto& b) { return b.first < a.first + a.second; }) == spans.end();
}

bool PlainTree::Match(const Node& node, PyObject* value, Found* found) const {
  switch (node.kind) {
    case Kind::kArray:
      return IsExactArray(value) && MatchArray(node, value, found);
    case Kind::kTensor: {
      const py::object pair = whole_array_(py::handle(value));
      if (pair.is_none()) {
        return false;
      }
      const auto fields = py::cast<py::tuple>(pair);
      const py::object array = fields[0];
      return Equal(py::object(fields[1]).ptr(), node.form.ptr()) && MatchArray(node, array.ptr(), found);
    }
    case Kind::kObject: {
      if (!IsPlainType(value)) {
        if ((!PyList_CheckExact(value) && !PyTuple_CheckExact(value)) || !HasOnlyPlainItems(value)) {
          return false;
        }
        found->containers.push_back(value);
      }
      py::list leaf(1);
      leaf[0] = py::reinterpret_borrow<py::object>(value);
      found->leaves.append(leaf);
      return true;
    }
    case Kind::kDict:
      return PyDict_CheckExact(value) && MatchDict(node, value, found);
    case Kind::kList:
      return PyList_CheckExact(value) && MatchItems(node, value, found);
    case Kind::kTuple:
      return PyTuple_CheckExact(value) && MatchItems(node, value, found);
  }
  return false;
}

bool PlainTree::MatchArray(const Node& node, PyObject* array, Found* found) const {
  const auto* proxy = py::detail::array_proxy(array);
  if ((proxy->flags & py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_) == 0 ||
      static_cast<uint32_t>(proxy->nd) > shared_memory::kMaxDims || !Equal(proxy->descr, node.dtype.ptr())) {
    return false;
  }
  const auto view = py::reinterpret_borrow<py::array>(array);
  const auto bytes = static_cast<size_t>(view.nbytes());
  if (bytes != 0) {
    found->spans.emplace_back(proxy->data, bytes);
  }
  found->leaves.append(view);
  return true;
}

bool PlainTree::MatchDict(const Node& node, PyObject* dict, Found* found) const {
  if (static_cast<size_t>(PyDict_Size(dict)) != node.keys.size()) {
    return false;
  }
  found->containers.push_back(dict);
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t position = 0;
  for (size_t i = 0; i < node.keys.size(); ++i) {
    if (PyDict_Next(dict, &position, &key, &value) == 0 || !PyUnicode_CheckExact(key) ||
        !Equal(key, node.keys[i].ptr())) {
      return false;
    }
    const auto held = py::reinterpret_borrow<py::object>(value);
    if (!Match(node.children[i], held.ptr(), found)) {
      return false;
    }
  }
  return true;
}

bool PlainTree::MatchItems(const Node& node, PyObject* sequence, Found* found) const {
  // What has only plain items is one object.
  if (static_cast<size_t>(PySequence_Fast_GET_SIZE(sequence)) != node.children.size() || HasOnlyPlainItems(sequence)) {
    return false;
  }
  found->containers.push_back(sequence);
  for (size_t i = 0; i < node.children.size(); ++i) {
    if (static_cast<size_t>(PySequence_Fast_GET_SIZE(sequence)) <= i) {
      return false;  // whole_array has changed it
    }
    const auto item =
        py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(sequence, static_cast<Py_ssize_t>(i)));
    if (!Match(node.children[i], item.ptr(), found)) {
      return false;
    }
  }
  return true;
}

void BindPlainTree(py::module_& m) {
  py::class_<PlainTree>(m, "PlainTree", "Recognises plain batches that hang together as one before did.")
      .def_static("of", &PlainTree::Of, py::arg("structure"), py::arg("dtypes"), py::arg("whole_array"),
                  "Of a tree and the dtypes of its leaves; None if it has parts that are not known here. "
                  "`whole_array(tensor)`: see _samples/flatten.py.")
      .def("leaves", &PlainTree::Leaves, py::arg("batch"),
           "The leaves of a batch of the same tree; None of any other.");
}

}  // namespace headrace::python
