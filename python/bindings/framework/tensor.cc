// headrace._core.LoDTensor.
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/errors.h"
#include "framework/lod_tensor.h"
#include "python/bindings/bindings.h"
#include "python/bindings/framework/ddim_caster.h"
#include "python/bindings/numpy_interop.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

using SignedLoD = std::vector<std::vector<int64_t>>;

// Python's integers may be negative; a size_t may not.
LoD ToLoD(const SignedLoD& levels) {
  LoD lod;
  for (const auto& level : levels) {
    auto& out = lod.emplace_back();
    for (const int64_t value : level) {
      HR_ENFORCE(value >= 0, InvalidArgument, "a LoD holds no negative numbers, got ", value, " in level ",
                 lod.size() - 1);
      out.push_back(static_cast<size_t>(value));
    }
  }
  return lod;
}

int64_t Rows(const LoDTensor& tensor) {
  HR_ENFORCE(tensor.initialized(), FailedPrecondition,
             "set the tensor's data before its LoD, which is checked against the data");
  return tensor.dims().empty() ? 1 : tensor.dims()[0];
}

// A tensor without data takes any well-formed LoD: that it fits the data is checked where the two are used.
void SetLoD(LoDTensor& tensor, LoD lod) {
  const bool has_end = !lod.empty() && !lod.back().empty();
  const int64_t end = has_end ? static_cast<int64_t>(lod.back().back()) : 0;
  CheckLoD(lod, tensor.initialized() ? Rows(tensor) : end);
  tensor.set_lod(std::move(lod));
}

// A list has no dtype; as in Fluid, its floats become float32.
void SetTensor(const py::object& array, Tensor* tensor) {
  if (py::isinstance<py::list>(array) || py::isinstance<py::tuple>(array)) {
    const py::array values = py::module_::import("numpy").attr("asarray")(array);
    if (values.dtype().kind() == 'f') {
      return CopyFromNumpy(values.attr("astype")("float32"), tensor);
    }
  }
  CopyFromNumpy(array, tensor);
}

template <typename T>
void Allocate(LoDTensor* tensor) {
  std::fill_n(tensor->mutable_data<T>(), tensor->numel(), T(0));
}

int64_t CheckedOffset(const LoDTensor& tensor, int64_t offset) {
  HR_ENFORCE(offset >= 0 && offset < tensor.numel(), OutOfRange, "element ", offset, " of a tensor of ",
             tensor.numel());
  return offset;
}

template <typename T>
T Element(const LoDTensor& tensor, int64_t offset) {
  return tensor.data<T>()[CheckedOffset(tensor, offset)];
}

template <typename T>
void SetElement(LoDTensor& tensor, int64_t offset, T value) {
  (void)tensor.data<T>();  // checks that it has such elements
  const int64_t at = CheckedOffset(tensor, offset);
  tensor.Unshare();
  tensor.mutable_data<T>()[at] = value;
}

bool HasValidLoD(const LoDTensor& tensor) {
  try {
    CheckLoD(tensor.lod(), Rows(tensor));
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Implements the buffer protocol by hand: a view must own the Allocation, since the tensor may release it while the
// view lives, and pybind11's own support cannot express that.
struct BufferState {
  std::shared_ptr<Allocation> allocation;
  std::string format;
  std::vector<Py_ssize_t> shape;
  std::vector<Py_ssize_t> strides;
};

int GetBuffer(PyObject* self, Py_buffer* view, int flags) {
  try {
    const auto& tensor = py::handle(self).cast<const LoDTensor&>();
    auto state = std::make_unique<BufferState>();
    const py::dtype dtype = NumpyDtype(tensor.dtype());
    HR_ENFORCE(tensor.dtype() != DataType::kBFloat16, TypeMismatch, "the buffer protocol has no format for bfloat16");
    const void* data = tensor.raw_data();
    state->allocation = tensor.allocation();
    state->format = std::string(1, dtype.char_());
    const auto item = static_cast<Py_ssize_t>(SizeOf(tensor.dtype()));
    state->shape.assign(tensor.dims().begin(), tensor.dims().end());
    state->strides.resize(state->shape.size());
    Py_ssize_t stride = item;
    for (size_t i = state->shape.size(); i-- > 0;) {
      state->strides[i] = stride;
      stride *= state->shape[i];
    }
    *view = Py_buffer{};
    view->buf = const_cast<void*>(data);
    view->len = static_cast<Py_ssize_t>(tensor.nbytes());
    view->itemsize = item;
    view->ndim = static_cast<int>(state->shape.size());
    view->format = (flags & PyBUF_FORMAT) != 0 ? state->format.data() : nullptr;
    view->shape = (flags & PyBUF_ND) != 0 ? state->shape.data() : nullptr;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? state->strides.data() : nullptr;
    view->internal = state.release();
    view->obj = self;
    Py_INCREF(self);
    return 0;
  } catch (const std::exception& error) {
    view->obj = nullptr;
    PyErr_SetString(PyExc_BufferError, error.what());
    return -1;
  }
}

void ReleaseBuffer(PyObject* /*self*/, Py_buffer* view) { delete static_cast<BufferState*>(view->internal); }

void InstallBufferProtocol(PyHeapTypeObject* heap_type) {
  heap_type->as_buffer.bf_getbuffer = &GetBuffer;
  heap_type->as_buffer.bf_releasebuffer = &ReleaseBuffer;
  heap_type->ht_type.tp_as_buffer = &heap_type->as_buffer;
}

py::object ToArray(const LoDTensor& tensor, const py::object& dtype, const py::object& copy) {
  py::array view = NumpyView(tensor);
  const bool converts = !dtype.is_none() && !py::dtype::from_args(dtype).equal(view.dtype());
  if (!copy.is_none() && !copy.cast<bool>()) {
    HR_ENFORCE(!converts, InvalidArgument, "an array of another dtype cannot be made without a copy");
    return view;
  }
  if (converts) {
    return view.attr("astype")(dtype);
  }
  return copy.is_none() ? py::object(view) : view.attr("copy")();
}

std::string Repr(const LoDTensor& tensor) {
  if (!tensor.initialized()) {
    return "LoDTensor(uninitialised)";
  }
  std::string text = StrCat("LoDTensor(shape=", ToString(tensor.dims()), ", dtype=", DataTypeName(tensor.dtype()));
  if (!tensor.lod().empty()) {
    text += ", lod=" + ToString(tensor.lod());
  }
  return text + ")";
}

}  // namespace

void BindTensor(py::module_& m) {
  py::class_<LoDTensor>(
      m, "LoDTensor", py::custom_type_setup(&InstallBufferProtocol),
      "A dense array with a level of detail: sequences of variable length, packed along the first dimension.\n\n"
      "Not thread-safe: concurrent reads are fine, a write needs the tensor for itself.")
      .def(py::init<>())
      .def(py::init([](const SignedLoD& lengths) {
             LoDTensor tensor;
             SetLoD(tensor, LengthsToOffsets(ToLoD(lengths)));
             return tensor;
           }),
           py::arg("recursive_sequence_lengths"), "Without data yet, with the LoD that has these lengths of sequences.")
      .def_static(
          "from_numpy", [](const py::object& array, bool copy) { return LoDTensor(TensorFromNumpy(array, copy)); },
          py::arg("array"), py::arg("copy") = true,
          "A tensor of the array's elements. With ``copy=False`` it shares the array's memory where that is possible "
          "(C-contiguous,\n"
          "aligned, writable) and keeps the array alive. TypeMismatch for dtypes that no tensor holds.")
      .def(
          "set", [](LoDTensor& self, const py::object& array, const py::object& /*place*/) { SetTensor(array, &self); },
          py::arg("array"), py::arg("place") = py::none(),
          "Becomes a copy of the array; floats of a list become float32, as in Fluid. The LoD stays; see set_lod.")
      .def(
          "shape", [](const LoDTensor& self) { return self.dims(); }, "The dimensions, a list of int.")
      .def(
          "dtype", [](const LoDTensor& self) { return std::string(DataTypeName(self.dtype())); },
          "NumPy's name of the element type.")
      .def(
          "_assign", [](LoDTensor& self, const LoDTensor& other) { self = other; }, py::arg("other"),
          "Becomes the other one, LoD included, and shares its memory.")
      .def(
          "_set_dims", [](LoDTensor& self, const DDim& dims) { self.Resize(dims); }, py::arg("dims"),
          "Gives it dims; its elements have to be allocated or set then.")
      .def(
          "_get_dims", [](const LoDTensor& self) { return self.dims(); }, "Its dims.")
      .def("_get_float_element", &Element<float>, py::arg("offset"), "An element of float32, by its place in memory.")
      .def("_get_double_element", &Element<double>, py::arg("offset"), "The same of float64.")
      .def("_set_float_element", &SetElement<float>, py::arg("offset"), py::arg("value"), "Sets an element of float32.")
      .def("_set_double_element", &SetElement<double>, py::arg("offset"), py::arg("value"), "The same of float64.")
      .def(
          "_alloc_float", [](LoDTensor& self, const py::object& /*place*/) { Allocate<float>(&self); },
          py::arg("place") = py::none(), "Gives it zeros of float32.")
      .def(
          "_alloc_double", [](LoDTensor& self, const py::object& /*place*/) { Allocate<double>(&self); },
          py::arg("place") = py::none(), "Gives it zeros of float64.")
      .def(
          "_alloc_int", [](LoDTensor& self, const py::object& /*place*/) { Allocate<int32_t>(&self); },
          py::arg("place") = py::none(), "Gives it zeros of int32.")
      .def("_is_initialized", &LoDTensor::initialized, "Whether the tensor holds data.")
      .def(
          "lod", [](const LoDTensor& self) { return self.lod(); }, "The LoD as offsets, a list of lists.")
      .def(
          "set_lod", [](LoDTensor& self, const SignedLoD& lod) { SetLoD(self, ToLoD(lod)); }, py::arg("lod"),
          "Sets the LoD, given as offsets. ValueError unless it is well formed and fits the data, if there are any "
          "yet.")
      .def(
          "recursive_sequence_lengths", [](const LoDTensor& self) { return OffsetsToLengths(self.lod()); },
          "The LoD as lengths of sequences, a list of lists.")
      .def(
          "set_recursive_sequence_lengths",
          [](LoDTensor& self, const SignedLoD& lengths) { SetLoD(self, LengthsToOffsets(ToLoD(lengths))); },
          py::arg("recursive_sequence_lengths"), "As set_lod, given as lengths of sequences.")
      .def("has_valid_recursive_sequence_lengths", &HasValidLoD, "Whether the LoD fits the data.")
      .def("__array__", &ToArray, py::arg("dtype") = py::none(), py::kw_only(), py::arg("copy") = py::none(),
           "An array over the tensor's memory, which it keeps alive: no copy unless one is asked for.")
      .def(
          "__dlpack__",
          [](const LoDTensor& self, const py::kwargs& kwargs) { return NumpyView(self).attr("__dlpack__")(**kwargs); },
          "A DLPack capsule over the tensor's memory, as numpy.ndarray.__dlpack__ makes it.")
      .def("__dlpack_device__", [](const LoDTensor& self) { return NumpyView(self).attr("__dlpack_device__")(); })
      .def("__len__",
           [](const LoDTensor& self) {
             HR_ENFORCE(!self.dims().empty(), TypeMismatch, "a tensor without dimensions has no length");
             return self.dims()[0];
           })
      .def(
          "__getitem__",
          [](const LoDTensor& self, const py::object& item) {
            return LoDTensor(
                TensorFromNumpy(py::module_::import("numpy").attr("asarray")(NumpyView(self)[item]), true));
          },
          py::arg("item"), "A copy of a part, which NumPy's rules of indexing choose, without LoD.")
      .def("__repr__", &Repr);
}

}  // namespace headrace::python
