#include "reader/shared_memory/arena/batch_layout.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "framework/errors.h"
#include "reader/shared_memory/arena/arena.h"

namespace headrace::shared_memory {

namespace {

constexpr size_t kRoom = kDataOffset - kLayoutOffset;

constexpr uint64_t ElementBytes(LeafKind kind, uint32_t item_bytes) {
  return kind == LeafKind::kObject ? sizeof(SideRecord) : item_bytes;
}

constexpr uint64_t AlignedLeaf(uint64_t offset) {
  return (offset + kLeafAlignment - 1) / kLeafAlignment * kLeafAlignment;
}

uint64_t ChecksumOf(const std::string& layout, uint64_t end) {
  return Checksum(layout.data() + sizeof(LayoutHeader), layout.size() - sizeof(LayoutHeader), end);
}

}  // namespace

uint64_t LeafSpec::bytes() const {
  const uint64_t item = ElementBytes(kind, item_bytes);
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
  HR_ENFORCE(size <= kRoom, ResourceExhausted, "a sample with ", leaves.size(), " arrays needs ", size,
             " bytes to describe, more than the ", kRoom, " that a batch has room for");
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
    record.kind = leaf.kind;
    record.dtype = leaf.dtype;
    record.item_bytes = leaf.item_bytes;
    record.ndim = static_cast<uint32_t>(leaf.dims.size());
    std::copy(leaf.dims.begin(), leaf.dims.end(), record.dims);
    end = AlignedLeaf(end);
    record.offset = end;
    const uint64_t leaf_bytes = leaf.bytes();
    HR_ENFORCE(end <= slot_bytes && leaf_bytes <= slot_bytes - end, ResourceExhausted, "an array of shape ",
               ToString(leaf.dims), " needs ", leaf_bytes, " bytes of a batch, of which ",
               slot_bytes - std::min<uint64_t>(end, slot_bytes), " of ", slot_bytes - kDataOffset, " are left",
               LimitHint(slot_bytes));
    end += leaf_bytes;
    std::memcpy(out, &record, sizeof(record));
    out += sizeof(record);
  }
  std::copy(tree.begin(), tree.end(), out);
  header.end = end;
  header.checksum = ChecksumOf(bytes_, end);
  std::memcpy(bytes_.data(), &header, sizeof(header));
}

BatchLayout::BatchLayout(std::string bytes)
    : bytes_(std::move(bytes)), leaf_count_(reinterpret_cast<const LayoutHeader*>(bytes_.data())->leaf_count) {}

BatchLayout BatchLayout::CopyFrom(const std::byte* slot, size_t data_offset, size_t slot_bytes) {
  LayoutHeader header;
  CopyShared(&header, slot + kLayoutOffset, sizeof(header));
  const uint64_t size = sizeof(header) + uint64_t{header.leaf_count} * sizeof(LeafRecord) + header.tree_bytes;
  HR_ENFORCE(size <= kRoom, DataLoss, "its layout has ", header.leaf_count, " leaves and a tree of ", header.tree_bytes,
             " bytes, for which there is no room");
  std::string bytes(size, '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  CopyShared(bytes.data() + sizeof(header), slot + kLayoutOffset + sizeof(header), size - sizeof(header));
  BatchLayout layout(std::move(bytes));
  layout.Check(data_offset, slot_bytes);
  return layout;
}

void BatchLayout::Check(size_t data_offset, size_t slot_bytes) const {
  const auto& header = *reinterpret_cast<const LayoutHeader*>(bytes_.data());
  HR_ENFORCE(header.checksum == ChecksumOf(bytes_, header.end), DataLoss,
             "the checksum of its layout is not that of its bytes");
  uint64_t end = data_offset;
  for (size_t i = 0; i < leaf_count_; ++i) {
    const LeafRecord& record = leaf(i);
    const bool known =
        record.kind == LeafKind::kArray || record.kind == LeafKind::kObject || record.kind == LeafKind::kOffsets;
    HR_ENFORCE(known && record.ndim <= kMaxDims && (record.kind != LeafKind::kObject || record.ndim == 1), DataLoss,
               "leaf ", i, " of its layout has kind ", static_cast<uint32_t>(record.kind), " and ", record.ndim,
               " dimensions");
    uint64_t leaf_bytes = ElementBytes(record.kind, record.item_bytes);
    bool overflow = false;
    for (uint32_t dim = 0; dim < record.ndim; ++dim) {
      overflow = overflow || __builtin_mul_overflow(leaf_bytes, record.dims[dim], &leaf_bytes);
    }
    end = AlignedLeaf(end);
    HR_ENFORCE(!overflow && record.offset == end && end <= slot_bytes && leaf_bytes <= slot_bytes - end, DataLoss,
               "leaf ", i, " of its layout is at offset ", record.offset, " with ", leaf_bytes, " bytes, where ", end,
               " to ", slot_bytes, " is free");
    end += leaf_bytes;
  }
  HR_ENFORCE(header.end == end, DataLoss, "its layout says that it ends at ", header.end, ", but it ends at ", end);
}

}  // namespace headrace::shared_memory
