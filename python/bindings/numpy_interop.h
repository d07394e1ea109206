// Tensors ⇄ NumPy arrays. The caller holds the GIL.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "framework/lod_tensor.h"

namespace headrace::python {

// The element type of a NumPy dtype (ml_dtypes' bfloat16 included). Throws TypeMismatch if no tensor can hold it.
DataType DataTypeOfNumpy(const pybind11::dtype& dtype);

// NumPy's dtype of an element type; bfloat16 is ml_dtypes' where that is installed, else its bits as uint16.
pybind11::dtype NumpyDtype(DataType type);

// `array`, or what numpy.asarray makes of it, as a tensor without LoD: a copy, or with `copy` false the array's own
// memory where that is possible (C-contiguous, aligned, writable); then the tensor keeps the array alive. Throws
// TypeMismatch for dtypes that no tensor holds.
Tensor TensorFromNumpy(const pybind11::handle& array, bool copy);

// Copies `array` into `tensor`, whose memory is reused where nobody else shares it.
void CopyFromNumpy(const pybind11::handle& array, Tensor* tensor);

// A writable array over the tensor's memory, which it keeps alive. Throws FailedPrecondition if the tensor holds no
// data.
pybind11::array NumpyView(const Tensor& tensor);

// A LoDTensor as it is (sharing its memory), what has to_lod_tensor() as that says, a Ragged for one, or anything
// array-like as TensorFromNumpy makes it.
LoDTensor TensorFromPython(const pybind11::handle& object, bool copy);

}  // namespace headrace::python
