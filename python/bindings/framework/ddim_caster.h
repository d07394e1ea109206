// Shapes are sequences of integers in Python.
#pragma once

#include <pybind11/stl.h>

#include "framework/ddim.h"

namespace pybind11::detail {

template <>
struct type_caster<headrace::DDim> : list_caster<headrace::DDim, int64_t> {};

}  // namespace pybind11::detail
