// Recognises batches that hang together as one before did, so that Python takes apart only the first of a kind.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace headrace::python {

// The tree of a plain batch, as headrace.data's Flattener makes it: dicts, lists and tuples, each of them once, with
// numbers, strings and whole arrays that share no memory.
//
// Thread-safety: all functions need the GIL.
class PlainTree {
 public:
  // The tree `structure` with leaves of `dtypes`; nothing if it has other parts than those. `whole_array(tensor)` gives
  // (array, form) of a tensor that is all of its memory, in C's order, and None of anything else.
  static std::optional<PlainTree> Of(const pybind11::handle& structure, const pybind11::list& dtypes,
                                     pybind11::object whole_array);

  // The leaves of `batch`, arrays and lists of objects, if the Flattener would make the same tree of it; else None.
  // Throws what whole_array raises.
  pybind11::object Leaves(const pybind11::handle& batch) const;

 private:
  enum class Kind { kArray, kTensor, kObject, kDict, kList, kTuple };
  struct Node {
    Kind kind;
    pybind11::object dtype;              // of kArray and kTensor
    pybind11::object form;               // of kTensor
    std::vector<pybind11::object> keys;  // of kDict: strings
    std::vector<Node> children;
  };
  // What has been found in a batch.
  struct Found {
    pybind11::list leaves;
    std::vector<PyObject*> containers;
    std::vector<std::pair<const char*, size_t>> spans;  // of memory, of the arrays

    bool IsPlain();
  };

  explicit PlainTree(pybind11::object whole_array) : whole_array_(std::move(whole_array)) {}

  static std::optional<Node> Compile(const pybind11::handle& structure, const pybind11::list& dtypes, size_t* leaves);
  bool Match(const Node& node, PyObject* value, Found* found) const;
  bool MatchArray(const Node& node, PyObject* array, Found* found) const;
  bool MatchDict(const Node& node, PyObject* dict, Found* found) const;
  bool MatchItems(const Node& node, PyObject* sequence, Found* found) const;

  pybind11::object whole_array_;
  Node root_{};
};

}  // namespace headrace::python
