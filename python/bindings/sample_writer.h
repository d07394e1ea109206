// Writes Python samples into the rows of a batch in the arena.
//
// What a sample looks like is described once by Python (headrace.data.collation.describe) as a tree of nodes; the
// writer compiles it and then only checks that the next sample looks the same while it copies. All methods need the
// GIL.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reader/shared_memory/batch_layout.h"
#include "reader/shared_memory/batch_producer.h"

namespace headrace::python {

// The kinds of nodes, as Python names them.
enum class NodeKind : int {
  kSequence = 0,  // a list or tuple, or a subclass: (kind, type, children)
  kMapping = 1,   // a mapping: (kind, type, keys, children)
  kArray = 2,     // a NumPy array: (kind, type, dtype, shape)
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
  kWhole = 10,  // what Python has to collate: no sample fits
};

// A compiled description. Immutable.
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
    std::vector<pybind11::ssize_t> shape;
    size_t row_bytes = 0;
    size_t leaf = 0;
    bool flexible = false;  // scalars of one type may differ in dtype: records, dates
  };

  const Node& root() const { return root_; }
  // The place of row `row` in a batch of that layout at `data`: a sample's structure of arrays over it, or None if rows
  // are not written by themselves. Objects, which have no such place, are None in it.
  pybind11::object Place(const shared_memory::BatchLayout& layout, std::byte* data, uint32_t row) const;
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

// The number by which a tensor of a program would know the dtype, or, if that is not empty, the type named `meaning`;
// -1 if no such tensor can hold it (NumPy consumers still can). The caller holds the GIL.
int32_t TensorDtype(const pybind11::dtype& dtype, const std::string& meaning = {});

// An array over memory that it neither owns nor keeps alive. The caller holds the GIL.
pybind11::array UnownedArray(const pybind11::dtype& dtype, std::vector<pybind11::ssize_t> shape, std::byte* data);

// Whether `sample` looks as described; nothing is written.
bool Fits(const SampleTemplate::Node& node, PyObject* sample);

class SampleWriter {
 public:
  // `describe(sample)` gives a sample's description; `pickle(object)` its bytes.
  SampleWriter(shared_memory::BatchProducer* producer, pybind11::object describe, pybind11::object pickle)
      : producer_(producer), describe_(std::move(describe)), pickle_(std::move(pickle)) {}

  // Begins the rows of a claim.
  void Begin(const shared_memory::Claim& claim) {
    claim_ = claim;
    layout_ = nullptr;
  }
  // Samples look like `prototype`, until others come.
  void Expect(const pybind11::object& prototype) { template_ = std::make_unique<SampleTemplate>(describe_(prototype)); }
  // What Expect or a sample has said is no longer so.
  void Forget() { template_.reset(); }
  // Where one row of the claim goes; None if it is not known yet what samples look like. False in `fits` if this batch
  // looks different already.
  pybind11::object Place(uint32_t row, bool* fits);
  // The row was made in its place. Throws TypeError if that cannot be all of it.
  void RequireFilled() const;
  // Writes one row of the claim. False if the sample does not look like the others of its batch. Throws what Python
  // throws.
  bool Write(PyObject* sample, uint32_t row);

 private:
  bool Publish();
  std::byte* RowOf(const SampleTemplate::Node& node, uint32_t row) const {
    return producer_->Data(claim_) + layout_->leaf(node.leaf).offset + row * node.row_bytes;
  }
  bool WriteNode(const SampleTemplate::Node& node, PyObject* sample, uint32_t row);
  bool WriteArray(const SampleTemplate::Node& node, PyObject* array, std::byte* place);
  void WriteObject(const SampleTemplate::Node& node, PyObject* object, std::byte* place);

  shared_memory::BatchProducer* producer_;
  pybind11::object describe_;
  pybind11::object pickle_;
  std::unique_ptr<SampleTemplate> template_;
  shared_memory::Claim claim_{};
  const shared_memory::BatchLayout* layout_ = nullptr;  // set once the batch has it
};

}  // namespace headrace::python
