#include "reader/shared_memory/batch_layout.h"

#include <algorithm>
#include <cstring>

#include "framework/errors.h"

namespace headrace::shared_memory {

static_assert(sizeof(LayoutHeader) == 16 && sizeof(LeafRecord) == 24 + 8 * kMaxDims);

uint64_t LeafSpec::bytes() const {
  const uint64_t item = kind == LeafKind::kObject ? sizeof(SideRecord) : item_bytes;
  uint64_t product = 0;
  // A broadcast array may claim more bytes than any memory has.
  HR_ENFORCE(!__builtin_mul_overflow(static_cast<uint64_t>(Product(dims)), item, &product), ResourceExhausted,
             "an array of shape ", ToString(dims), " with elements of ", item, " bytes is too large");
  return product;
}

BatchLayout::BatchLayout(const std::vector<LeafSpec>& leaves, std::string_view tree, size_t data_offset,
                         size_t slot_bytes)
    : leaf_count_(leaves.size()) {
  const size_t size = sizeof(LayoutHeader) + leaves.size() * sizeof(LeafRecord) + tree.size();
  HR_ENFORCE(size <= kDataOffset - kLayoutOffset, ResourceExhausted, "a sample with ", leaves.size(), " arrays needs ",
             size, " bytes to describe, more than the ", kDataOffset - kLayoutOffset, " that a batch has room for");
  bytes_.resize(size);
  LayoutHeader header{};
  header.leaf_count = static_cast<uint32_t>(leaves.size());
  header.tree_bytes = static_cast<uint32_t>(tree.size());
  uint64_t end = data_offset;
  char* out = bytes_.data() + sizeof(LayoutHeader);
  for (const LeafSpec& leaf : leaves) {
    HR_ENFORCE(leaf.dims.size() <= kMaxDims, InvalidArgument, "an array of shape ", ToString(leaf.dims),
               " has more than ", kMaxDims, " dimensions, the batch dimension included");
    LeafRecord record{};
    record.kind = static_cast<uint32_t>(leaf.kind);
    record.dtype = leaf.dtype;
    record.item_bytes = leaf.item_bytes;
    record.ndim = static_cast<uint32_t>(leaf.dims.size());
    std::copy(leaf.dims.begin(), leaf.dims.end(), record.dims);
    end = (end + kLeafAlignment - 1) / kLeafAlignment * kLeafAlignment;
    record.offset = end;
    const uint64_t leaf_bytes = leaf.bytes();
    HR_ENFORCE(end <= slot_bytes && leaf_bytes <= slot_bytes - end, ResourceExhausted, "an array of shape ",
               ToString(leaf.dims), " needs ", leaf_bytes, " bytes of a batch, of which ",
               slot_bytes - std::min<uint64_t>(end, slot_bytes), " of ", slot_bytes - kDataOffset, " are left");
    end += leaf_bytes;
    std::memcpy(out, &record, sizeof(record));
    out += sizeof(record);
  }
  header.end = end;
  std::memcpy(bytes_.data(), &header, sizeof(header));
  std::copy(tree.begin(), tree.end(), out);
}

}  // namespace headrace::shared_memory
