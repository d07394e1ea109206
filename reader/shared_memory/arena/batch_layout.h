// The structure of a batch: a table of leaves (arrays, or pickled objects) and the tree that holds them together.
//
// Stored in the slot at kLayoutOffset: a LayoutHeader, `leaf_count` LeafRecords, then `tree_bytes` bytes that only the
// language that wrote them understands (Python's description of the nesting). Producers compare layouts byte by byte.
// The position of a leaf follows from the leaves before it, so an overwritten layout is detected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "framework/ddim.h"
#include "framework/export.h"
#include "reader/shared_memory/arena/slot.h"

namespace headrace::shared_memory {

inline constexpr uint32_t kMaxDims = 12;

enum class LeafKind : uint32_t {
  kArray = 0,
  // One SideRecord per element of its one dimension, each naming bytes in the slot.
  kObject = 1,
  // int64 offsets, a level of detail, of the rows of the leaf before it.
  kOffsets = 2,
};

struct LeafRecord {
  LeafKind kind;
  int32_t dtype;  // DataType, or -1 for an element type that only the tree describes
  uint32_t item_bytes;
  uint32_t ndim;
  uint64_t offset;  // of the elements in the slot
  uint64_t dims[kMaxDims];
};
static_assert(sizeof(LeafRecord) == 24 + 8 * kMaxDims && std::has_unique_object_representations_v<LeafRecord>);

struct LayoutHeader {
  uint32_t leaf_count;
  uint32_t tree_bytes;
  uint64_t end;       // offset past the last leaf
  uint64_t checksum;  // of what follows, salted with `end`
};
static_assert(sizeof(LayoutHeader) == 24 && std::has_unique_object_representations_v<LayoutHeader>);

// A leaf that has no place yet.
struct LeafSpec {
  LeafKind kind = LeafKind::kArray;
  int32_t dtype = -1;
  uint32_t item_bytes = 0;
  DDim dims;  // including the batch dimension

  // Throws ResourceExhausted if the number does not fit in 64 bits.
  uint64_t bytes() const;
};

// A layout in private memory, in the form that it has in a slot. Immutable.
class HEADRACE_API BatchLayout {
 public:
  // Places the leaves one after another from `data_offset`. Throws InvalidArgument for more than kMaxDims dimensions,
  // ResourceExhausted with both numbers if the leaves need more than `slot_bytes`, or the description more than its
  // room.
  BatchLayout(const std::vector<LeafSpec>& leaves, std::string_view tree, size_t data_offset, size_t slot_bytes);

  // Copies the layout in `slot`, which other processes may be changing. Throws DataLoss that says what is wrong, unless
  // the copy is one that the constructor could have made with these numbers.
  static BatchLayout CopyFrom(const std::byte* slot, size_t data_offset, size_t slot_bytes);

  const std::string& bytes() const { return bytes_; }
  const LeafRecord& leaf(size_t i) const { return records()[i]; }
  size_t leaf_count() const { return leaf_count_; }
  std::string_view tree() const {
    return std::string_view(bytes_).substr(sizeof(LayoutHeader) + leaf_count_ * sizeof(LeafRecord));
  }
  // Offset past the last leaf.
  uint64_t end() const { return reinterpret_cast<const LayoutHeader*>(bytes_.data())->end; }

 private:
  explicit BatchLayout(std::string bytes);
  const LeafRecord* records() const {
    return reinterpret_cast<const LeafRecord*>(bytes_.data() + sizeof(LayoutHeader));
  }
  void Check(size_t data_offset, size_t slot_bytes) const;

  std::string bytes_;
  size_t leaf_count_;
};

// The layout in a slot, unchecked, for producers.
class LayoutView {
 public:
  explicit LayoutView(const std::byte* slot) : base_(slot + kLayoutOffset) {}
  uint32_t leaf_count() const { return header().leaf_count; }
  const LeafRecord& leaf(size_t i) const {
    return reinterpret_cast<const LeafRecord*>(base_ + sizeof(LayoutHeader))[i];
  }
  std::string_view tree() const {
    return {reinterpret_cast<const char*>(base_ + sizeof(LayoutHeader) + leaf_count() * sizeof(LeafRecord)),
            header().tree_bytes};
  }
  uint64_t end() const { return header().end; }

 private:
  const LayoutHeader& header() const { return *reinterpret_cast<const LayoutHeader*>(base_); }
  const std::byte* base_;
};

}  // namespace headrace::shared_memory
