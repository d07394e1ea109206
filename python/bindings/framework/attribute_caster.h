// Attributes ⇄ Python values. The caller holds the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "framework/attribute.h"

namespace headrace::python {

// bool, int (int32 where it fits), float (a double), str, a _core.BlockDesc, NumPy scalars, and lists
// or tuples of one kind; numbers of which some are floats make a list of float32, as far as that can hold them. The
// framework converts further to the type that the operator declares. Throws TypeMismatch otherwise.
Attribute AttributeFromPython(const pybind11::handle& value);

// The value as bool, int, float, str or list; a block as its index.
pybind11::object AttributeToPython(const Attribute& attribute);

}  // namespace headrace::python
