#include "reader/shared_memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "framework/errors.h"

namespace headrace::shared_memory {
namespace {

constexpr uint64_t kMagic = 0x4845414452414345;  // "HEADRACE"
constexpr size_t kPage = 4096;
constexpr size_t kSmallestSlot = size_t{1} << 20;
constexpr size_t kLargestSlot = size_t{1} << 40;

constexpr size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
constexpr size_t kTraceOffset = RoundUp(sizeof(ControlBlock), kPage);

size_t SlotsOffset(uint32_t trace_events) {
  return RoundUp(kTraceOffset + (kMaxProducers + 1) * TraceRing::Bytes(trace_events), kPage);
}

bool HasAddressSpace(size_t bytes) {
  void* probe = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return probe != MAP_FAILED && munmap(probe, bytes) == 0;
}

}  // namespace

const char* NameOf(ClaimKind kind) {
  switch (kind) {
    case ClaimKind::kRows:
      return "rows";
    case ClaimKind::kWhole:
      return "whole";
    case ClaimKind::kItems:
      return "items";
    case ClaimKind::kCollate:
      return "collate";
    case ClaimKind::kStream:
      break;
  }
  return "stream";
}

std::shared_ptr<Arena> Arena::Create(const ArenaOptions& options) {
  HR_ENFORCE(options.slot_count >= 1 && options.slot_count <= kMaxSlots, InvalidArgument,
             "the number of slots must be 1 to ", kMaxSlots, ", got ", options.slot_count);
  HR_ENFORCE(options.slot_bytes >= kSmallestSlot && options.slot_bytes <= kLargestSlot, InvalidArgument,
             "a slot must have ", kSmallestSlot, " to ", kLargestSlot, " bytes, got ", options.slot_bytes);
  HR_ENFORCE(options.trace_events <= kMaxTraceEvents, InvalidArgument, "a trace has at most ", kMaxTraceEvents,
             " events, got ", options.trace_events);
  std::shared_ptr<Arena> arena(new Arena);
  arena->fd_ = memfd_create("headrace", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  HR_ENFORCE(arena->fd_ >= 0, IoError, "memfd_create failed: ", std::strerror(errno));
  arena->slots_offset_ = SlotsOffset(options.trace_events);
  arena->slot_count_ = options.slot_count;
  arena->slot_bytes_ = RoundUp(options.slot_bytes, kPage);
  // Address space may be limited (ulimit -v, a sanitizer); the wish for sparse slots is not worth failing for. As much
  // again must be left, or the rest of the process would have nothing to go on with.
  for (;; arena->slot_bytes_ = RoundUp(arena->slot_bytes_ / 2, kPage)) {
    const size_t bytes = arena->slots_offset_ + arena->slot_bytes_ * arena->slot_count_;
    if (ftruncate(arena->fd_, static_cast<off_t>(bytes)) == 0 && HasAddressSpace(2 * bytes) && arena->Map(bytes)) {
      break;
    }
    HR_ENFORCE(arena->slot_bytes_ / 2 >= kSmallestSlot, ResourceExhausted, "cannot get ", bytes,
               " bytes of shared memory: ", std::strerror(errno));
  }
  // Sealing is a safeguard; a system without it still works.
  fcntl(arena->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  auto* control = new (arena->base_) ControlBlock{};
  control->slot_bytes = arena->slot_bytes_;
  control->slot_count = arena->slot_count_;
  control->order = static_cast<uint32_t>(options.order);
  control->dataset_length = options.dataset_length;
  control->seed = options.seed;
  control->trace_events = options.trace_events;
  control->magic = kMagic;
  return arena;
}

std::shared_ptr<Arena> Arena::Attach(int fd) {
  std::shared_ptr<Arena> arena(new Arena);
  arena->fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  HR_ENFORCE(arena->fd_ >= 0, IoError, "cannot duplicate file descriptor ", fd, ": ", std::strerror(errno));
  struct stat status{};
  HR_ENFORCE(fstat(arena->fd_, &status) == 0, IoError, "fstat failed: ", std::strerror(errno));
  const auto bytes = static_cast<size_t>(status.st_size);
  HR_ENFORCE(S_ISREG(status.st_mode) && bytes >= kTraceOffset && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR, DataLoss,
             "file descriptor ", fd, " of ", bytes, " bytes is not an arena");
  HR_ENFORCE(arena->Map(bytes), ResourceExhausted, "cannot map ", bytes,
             " bytes of shared memory: ", std::strerror(errno));
  const ControlBlock& control = arena->control();
  HR_ENFORCE(control.magic == kMagic && control.slot_count >= 1 && control.slot_count <= kMaxSlots &&
                 control.slot_bytes >= kSmallestSlot && control.slot_bytes <= kLargestSlot &&
                 control.trace_events <= kMaxTraceEvents &&
                 SlotsOffset(control.trace_events) + control.slot_bytes * control.slot_count == bytes,
             DataLoss, "the file of ", bytes, " bytes is not an arena of this version");
  arena->slots_offset_ = SlotsOffset(control.trace_events);
  arena->slot_count_ = control.slot_count;
  arena->slot_bytes_ = control.slot_bytes;
  return arena;
}

bool Arena::Map(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (base == MAP_FAILED) {
    return false;
  }
  base_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
  // A core dump of a sparse mapping would be as large as its address space.
  madvise(base_, bytes_, MADV_DONTDUMP);
  return true;
}

Arena::~Arena() {
  if (base_ != nullptr) {
    munmap(base_, bytes_);
  }
  if (fd_ >= 0) {
    close(fd_);
  }
}

TraceRing Arena::trace(uint32_t producer) const {
  const uint32_t events = control().trace_events;
  return {base_ + kTraceOffset + producer * TraceRing::Bytes(events), events};
}

size_t Arena::ResidentBytes() const {
  struct stat status{};
  HR_ENFORCE(fstat(fd_, &status) == 0, IoError, "fstat failed: ", std::strerror(errno));
  return static_cast<size_t>(status.st_blocks) * 512;
}

void Arena::Release(uint32_t index, size_t offset) {
  const size_t begin = RoundUp(offset, kPage);
  if (begin < slot_bytes_) {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(slots_offset_ + static_cast<size_t>(index) * slot_bytes_ + begin),
              static_cast<off_t>(slot_bytes_ - begin));
  }
}

}  // namespace headrace::shared_memory
