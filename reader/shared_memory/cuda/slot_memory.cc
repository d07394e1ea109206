#include "reader/shared_memory/cuda/slot_memory.h"

namespace headrace::shared_memory {

SlotMemory::SlotMemory(Arena& arena, bool pin, bool fence)
    : arena_(arena),
      pinned_(pin ? std::make_unique<PinnedMemory>() : nullptr),
      fence_(pin && fence ? std::make_unique<DeviceFence>() : nullptr) {}

size_t SlotMemory::Pin(uint32_t slot, size_t end) {
  if (!pins()) {
    return 0;
  }
  std::byte* begin = PinnedBegin(slot);
  pinned_->Pin(begin, end - kDataOffset, arena_.slot_bytes() - kDataOffset);
  return kDataOffset + pinned_->PinnedBytes(begin);
}

void SlotMemory::Release(const std::vector<uint32_t>& slots) {
  for (const uint32_t slot : slots) {
    if (pins()) {
      pinned_->Unpin(PinnedBegin(slot));  // a locked range keeps its old pages
    }
    arena_.Release(slot, 0);
  }
}

bool SlotMemory::Fence(uint32_t slot) {
  if (fence_ == nullptr || pinned_->PinnedBytes(PinnedBegin(slot)) == 0) {
    return false;
  }
  fence_->Hold(slot);
  return true;
}

std::vector<uint32_t> SlotMemory::TakeEnded(bool urgent) {
  return fenced() == 0 ? std::vector<uint32_t>{} : fence_->TakeEnded(urgent);
}

}  // namespace headrace::shared_memory
