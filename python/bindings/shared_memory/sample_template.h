// A compiled description of a dataset's samples: the layout of a batch of them, and where each part of a sample goes.
//
// Python describes a sample once, as a tree of nodes (headrace.data.collation.describe). Thread-safety: all functions
// need the GIL.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "python/bindings/dlpack.h"
#include "reader/shared_memory/arena/batch_layout.h"

namespace headrace::python {

// The kinds of nodes, as Python names them.
enum class NodeKind : int {
  kSequence = 0,  // a list or tuple, or a subclass: (kind, type, children)
  kMapping = 1,   // a mapping: (kind, type, keys, children)
  kArray = 2,     // a NumPy array: (kind, type, dtype, shape, whether only strides that torch knows will do)
  kFloat = 3,     // a Python float, stored as float64
  kInt = 4,       // a Python int, stored as int64
  kBool = 5,
  kScalar = 6,  // a NumPy scalar: (kind, type, dtype)
  // Anything whose numpy() gives an array: (kind, type, dtype, shape, meaning, converters). The meaning names an
  // element type that NumPy does not know, else it is empty; the converters are None, or what to use instead of
  // numpy(): what makes an array of a tensor (None: it is of another type), and what makes a tensor of an array.
  kTensor = 7,
  kObject = 8,  // anything else of that type, pickled
  kFields = 9,  // an object with attributes: (kind, type, names, children)
  kWhole = 10,  // only Python can collate it: no sample fits
};

// A compiled description, and the layouts of the batches made with it.
class SampleTemplate {
 public:
  // `description` is (tree bytes, root node, place function). Throws Python's TypeError or ValueError for a malformed
  // one.
  explicit SampleTemplate(const pybind11::handle& description);

  struct Node {
    NodeKind kind;
    pybind11::object type;
    std::vector<pybind11::object> keys;  // kFields: the names
    std::vector<Node> children;
    pybind11::dtype dtype;
    pybind11::object to_array;  // kTensor: null unless there is a converter
    // kTensor: how to see its memory without making an array; null where its type does not say.
    const dlpack::ExchangeApi* exchange = nullptr;
    dlpack::DataType element{};  // kTensor, with `exchange`
    std::vector<pybind11::ssize_t> shape;
    size_t row_bytes = 0;
    size_t leaf = 0;
    bool torch_strides = false;  // kArray: neither negative nor between two elements
    bool flexible = false;       // scalars of one type may differ in dtype: records, dates
  };

  const Node& root() const { return root_; }
  // The place of row `row` in a batch of that layout in the slot at `data`: a sample's structure of arrays over it, or
  // None if rows are not written one by one. Objects have no place and are None in it. `owner` keeps the memory alive.
  pybind11::object Place(const shared_memory::BatchLayout& layout, std::byte* data, uint32_t row,
                         const pybind11::object& owner) const;
  // Whether there are such objects.
  bool has_objects() const { return has_objects_; }
  // The layout of a batch of `rows` such samples. Throws as BatchLayout does.
  const shared_memory::BatchLayout& LayoutFor(uint32_t rows, size_t data_offset, size_t slot_bytes);

 private:
  Node Compile(const pybind11::handle& node);

  struct CachedLayout {
    uint32_t rows;
    size_t data_offset;
    shared_memory::BatchLayout layout;
  };

  std::string tree_;
  std::vector<shared_memory::LeafSpec> leaves_;  // without the batch dimension
  std::vector<pybind11::dtype> dtypes_;          // of the leaves
  std::vector<size_t> row_bytes_;
  pybind11::object place_;
  bool has_objects_ = false;
  bool whole_ = false;
  Node root_;
  std::vector<CachedLayout> layouts_;
};

// The DataType number of the dtype or, if `meaning` is not empty, of the type that it names; -1 if no tensor of a
// program can hold it (NumPy consumers still can). The caller holds the GIL.
int32_t TensorDtype(const pybind11::dtype& dtype, const std::string& meaning = {});

// An array over memory that it neither owns nor keeps alive, so not for code that may keep it. The caller holds the
// GIL.
pybind11::array UnownedArray(const pybind11::dtype& dtype, std::vector<pybind11::ssize_t> shape, std::byte* data);

// The elements of a tensor of the node's type that are in memory as the row of a batch is to be; null for any other,
// and where its type has no exchange interface: its numpy() then says what it is. Valid while the tensor is.
const char* TensorData(const SampleTemplate::Node& node, PyObject* tensor);

// Whether `sample` matches the description; writes nothing.
bool Fits(const SampleTemplate::Node& node, PyObject* sample);

}  // namespace headrace::python
