// _core.ArrayContents and _core.ArrayVisit.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python/bindings/bindings.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

// What the arrays and buffers contained that one visit came across, in its order. Immutable after it.
class ArrayContents {
 public:
  struct Item {
    const void* dtype;  // NumPy's own object of the dtype, which lives for ever; null for a buffer
    bool writable;
    const void* data;
    std::size_t size;  // bytes
    const py::ssize_t* shape;
    std::size_t rank;

    bool operator==(const Item& other) const {
      return dtype == other.dtype && writable == other.writable && size == other.size && rank == other.rank &&
             std::equal(shape, shape + rank, other.shape) && (size == 0 || std::memcmp(data, other.data, size) == 0);
    }
  };

  void Add(const Item& item) {
    const std::size_t shape_size = item.rank * sizeof(py::ssize_t);
    // Shapes come first, since they have to be aligned.
    char* to = Allocate(shape_size + item.size);
    std::copy_n(item.shape, item.rank, reinterpret_cast<py::ssize_t*>(to));
    if (item.size != 0) std::memcpy(to + shape_size, item.data, item.size);
    items_.push_back(
        {item.dtype, item.writable, to + shape_size, item.size, reinterpret_cast<py::ssize_t*>(to), item.rank});
    has_arrays_ |= item.dtype != nullptr;
  }

  const std::vector<Item>& items() const { return items_; }
  bool has_arrays() const { return has_arrays_; }

 private:
  // Blocks are not moved, as one vector's bytes would be when it grows.
  char* Allocate(std::size_t size) {
    const std::size_t rounded = (size + alignof(py::ssize_t) - 1) / alignof(py::ssize_t) * alignof(py::ssize_t);
    if (rounded > left_) {
      left_ = std::max(rounded, kBlock);
      blocks_.emplace_back(new char[left_]);
      next_ = blocks_.back().get();
    }
    left_ -= rounded;
    return std::exchange(next_, next_ + rounded);
  }

  static constexpr std::size_t kBlock = 1 << 20;
  std::vector<Item> items_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  std::size_t left_ = 0;
  bool has_arrays_ = false;
};

// Beyond the numbers of plain types of NumPy, which end with complex ones.
constexpr int kHalf = 23;

// Numbers the arrays that a pickler comes across by their first occurrence, and records their contents, or compares
// them with those of an earlier visit. It keeps the arrays alive, so that none takes the address of another. The caller
// holds the GIL.
class ArrayVisit {
 public:
  // Records; OverflowError beyond so many bytes.
  explicit ArrayVisit(std::size_t max_bytes)
      : left_(max_bytes), recorded_(std::make_shared<ArrayContents>()), contents_(recorded_) {}
  // Compares; ValueError at the first difference.
  explicit ArrayVisit(std::shared_ptr<const ArrayContents> contents) : contents_(std::move(contents)) {}

  // Of an array as pickle sees it: with a dtype of NumPy's own and in C's order. -1 for anything else.
  int64_t NumberOf(PyObject* value) {
    if (Py_TYPE(value) != api_.PyArray_Type_) return -1;
    const auto array = py::reinterpret_borrow<py::array>(value);
    const void* dtype = array.dtype().ptr();
    const int type = array.dtype().num();
    if ((type > py::detail::npy_api::NPY_CLONGDOUBLE_ && type != kHalf) || (array.flags() & py::array::c_style) == 0 ||
        py::reinterpret_steal<py::object>(api_.PyArray_DescrFromType_(type)).ptr() != dtype)
      return -1;
    const auto [at, first] = numbers_.try_emplace(value, seen_);
    if (first) {
      kept_.push_back(array);
      Visit({dtype, array.writeable(), array.data(), static_cast<std::size_t>(array.nbytes()), array.shape(),
             static_cast<std::size_t>(array.ndim())});
    }
    return static_cast<int64_t>(at->second);
  }

  // A buffer that the pickler hands out instead of copying it: other arrays.
  void Note(const py::object& buffer) {
    Py_buffer view;
    if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_ANY_CONTIGUOUS) != 0) throw py::error_already_set();
    const std::unique_ptr<Py_buffer, decltype(&PyBuffer_Release)> release(&view, &PyBuffer_Release);
    Visit({nullptr, view.readonly == 0, view.buf, static_cast<std::size_t>(view.len), nullptr, 0});
  }

  bool compares() const { return recorded_ == nullptr; }
  // Whether it came across all that the earlier visit did.
  bool complete() const { return seen_ == contents_->items().size(); }
  std::shared_ptr<const ArrayContents> contents() const { return contents_; }

 private:
  void Visit(const ArrayContents::Item& item) {
    if (recorded_) {
      if (item.size > left_) throw std::overflow_error("too large for a snapshot");
      left_ -= item.size;
      recorded_->Add(item);
    } else if (seen_ >= contents_->items().size() || !(item == contents_->items()[seen_])) {
      throw py::value_error("an array has changed");
    }
    ++seen_;
  }

  const py::detail::npy_api& api_ = py::detail::npy_api::get();
  std::size_t left_ = 0;                           // bytes that may be recorded
  const std::shared_ptr<ArrayContents> recorded_;  // null: it compares
  const std::shared_ptr<const ArrayContents> contents_;
  std::size_t seen_ = 0;
  std::unordered_map<PyObject*, std::size_t> numbers_;
  std::vector<py::object> kept_;
};

// A pickler asks this for every object. pybind11's dispatcher would take longer than pickle does for a number.
PyObject* PersistentId(PyObject* visit, PyObject* value) noexcept {
  try {
    const int64_t number =
        (*static_cast<std::shared_ptr<ArrayVisit>*>(PyCapsule_GetPointer(visit, nullptr)))->NumberOf(value);
    if (number >= 0) return PyLong_FromLongLong(number);
    Py_RETURN_NONE;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
}

PyMethodDef persistent_id = {"persistent_id", PersistentId, METH_O, nullptr};

}  // namespace

void BindArrayVisit(py::module_& m) {
  const py::class_<ArrayContents, std::shared_ptr<ArrayContents>> contents(
      m, "ArrayContents", "What the arrays contained that a visit came across.");
  py::class_<ArrayVisit, std::shared_ptr<ArrayVisit>>(
      m, "ArrayVisit",
      "Records what the arrays contain that a pickler comes across, or compares it with a record; for one pickle.")
      .def(py::init<std::size_t>(), py::arg("max_bytes"),
           "Records. Errors end the pickle, among them one beyond `max_bytes` in all.")
      .def(py::init<std::shared_ptr<const ArrayContents>>(), py::arg("contents"),
           "Compares. An error ends the pickle at the first difference.")
      .def(
          "persistent_id",
          [](const std::shared_ptr<ArrayVisit>& self) -> py::object {
            if (self->compares() && !self->contents()->has_arrays()) return py::none();
            const py::capsule visit(new std::shared_ptr<ArrayVisit>(self),
                                    [](void* held) { delete static_cast<std::shared_ptr<ArrayVisit>*>(held); });
            return py::reinterpret_steal<py::object>(PyCFunction_New(&persistent_id, visit.ptr()));
          },
          "The pickler's `persistent_id`: numbers plain arrays, which the pickle then does not contain. None if the "
          "record has none, so that one makes the pickle itself differ: it costs something for every object.")
      .def("note", &ArrayVisit::Note, py::arg("buffer"), "The pickler's `buffer_callback`, for other arrays.")
      .def_property_readonly("complete", &ArrayVisit::complete, "Whether it came across all that the record contains.")
      .def_property_readonly("contents", &ArrayVisit::contents);
}

}  // namespace headrace::python
