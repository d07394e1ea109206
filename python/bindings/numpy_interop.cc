#include "python/bindings/numpy_interop.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "framework/errors.h"
#include "python/bindings/gil.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// Whether the elements lie as a tensor's do. The array's dtype is in native byte order.
bool LiesLikeATensor(const py::array& array) {
  constexpr int kNeeded = py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  return (array.flags() & kNeeded) == kNeeded;
}

bool IsNative(const py::dtype& dtype) { return dtype.byteorder() == '=' || dtype.byteorder() == '|'; }

// `object` as a C-contiguous, aligned array in native byte order: itself if it is one already.
py::array Normalised(const py::handle& object) {
  if (py::isinstance<py::array>(object)) {
    auto array = py::reinterpret_borrow<py::array>(object);
    if (IsNative(array.dtype()) && LiesLikeATensor(array)) {
      return array;
    }
  }
  HR_ENFORCE(!object.is_none(), TypeMismatch, "expected an array, got None");
  const py::module_ numpy = py::module_::import("numpy");
  const py::array array = numpy.attr("asarray")(object);
  DataTypeOfNumpy(array.dtype());  // refuse before converting anything
  return numpy.attr("require")(array, array.dtype().attr("newbyteorder")("="), py::make_tuple("C", "A"));
}

DDim Dims(const py::array& array) { return DDim(array.shape(), array.shape() + array.ndim()); }

}  // namespace

DataType DataTypeOfNumpy(const py::dtype& dtype) {
  switch (dtype.char_()) {  // the usual ones, without asking Python
    case 'f':
      return DataType::kFloat32;
    case 'd':
      return DataType::kFloat64;
    case 'l':
      static_assert(sizeof(long) == sizeof(int64_t));  // NOLINT(google-runtime-int): NumPy's 'l' is C's long
      return DataType::kInt64;
    case 'i':
      return DataType::kInt32;
    case 'B':
      return DataType::kUInt8;
    case '?':
      return DataType::kBool;
    default:
      break;
  }
  HR_ENFORCE(dtype.kind() != 'U' && dtype.kind() != 'S', TypeMismatch, "a tensor cannot hold strings (NumPy's dtype ",
             py::str(dtype).cast<std::string>(), ")");
  const auto name = py::str(dtype.attr("name")).cast<std::string>();
  try {
    return DataTypeFromName(name);
  } catch (const InvalidArgument&) {
    Throw<TypeMismatch>("a tensor cannot hold NumPy's dtype ", name,
                        "; it holds bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32 and float64",
                        name == "object" ? " (an object array often comes from rows of unequal length)" : "");
  }
}

py::dtype NumpyDtype(DataType type) {
  if (type == DataType::kBFloat16) {
    try {
      return py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16"));
    } catch (const py::error_already_set&) {
      return py::dtype("uint16");
    }
  }
  return py::dtype(std::string(DataTypeName(type)));
}

Tensor TensorFromNumpy(const py::handle& object, bool copy) {
  py::array array = Normalised(object);
  if (copy || !array.writeable()) {
    Tensor tensor;
    CopyFromNumpy(array, &tensor);
    return tensor;
  }
  const DataType dtype = DataTypeOfNumpy(array.dtype());
  DDim dims = Dims(array);
  void* data = array.mutable_data();
  const auto size = static_cast<size_t>(array.nbytes());
  SharedObject owner = ShareObject(std::move(array));
  auto allocation = Allocation::Foreign(data, size, [owner](void* /*data*/) mutable { owner.reset(); });
  return Tensor(std::move(allocation), dtype, std::move(dims));
}

void CopyFromNumpy(const py::handle& object, Tensor* tensor) {
  const py::array array = Normalised(object);
  const DataType dtype = DataTypeOfNumpy(array.dtype());
  tensor->Resize(Dims(array));
  void* data = tensor->mutable_data(dtype);
  if (array.nbytes() > 0) {
    std::memcpy(data, array.data(), static_cast<size_t>(array.nbytes()));
  }
}

py::array NumpyView(const Tensor& tensor) {
  const void* data = tensor.raw_data();
  auto owner = std::make_unique<std::shared_ptr<Allocation>>(tensor.allocation());
  const py::capsule base(owner.get(), [](void* pointer) { delete static_cast<std::shared_ptr<Allocation>*>(pointer); });
  owner.release();
  return py::array(NumpyDtype(tensor.dtype()), tensor.dims(), data, base);
}

LoDTensor TensorFromPython(const py::handle& object, bool copy) {
  if (py::isinstance<LoDTensor>(object)) {
    return object.cast<const LoDTensor&>();
  }
  if (!py::isinstance<py::array>(object)) {
    if (const py::object convert = py::getattr(object, "to_lod_tensor", py::none()); !convert.is_none()) {
      return convert().cast<LoDTensor>();
    }
  }
  return LoDTensor(TensorFromNumpy(object, copy));
}

}  // namespace headrace::python
