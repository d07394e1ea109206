#include "reader/shared_memory/arena/arena.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "framework/errors.h"
#include "framework/thread_annotations.h"
#include "reader/shared_memory/arena/process_id.h"
#include "reader/shared_memory/arena/system_error.h"

// Since Linux 6.3 and glibc 2.38.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

namespace headrace::shared_memory {
namespace {

constexpr uint64_t kMagic = 0x4845414452414345;  // "HEADRACE"
constexpr size_t kPage = 4096;
constexpr size_t kSmallestSlot = size_t{1} << 20;
constexpr size_t kLargestSlot = size_t{1} << 40;
// Of this size most batches fit into a slot.
constexpr size_t kRoomySlot = size_t{256} << 20;

constexpr size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
constexpr size_t kTraceOffset = RoundUp(sizeof(ControlBlock), kPage);

size_t SlotsOffset(uint32_t trace_events) {
  return RoundUp(kTraceOffset + (kMaxProducers + 1) * TraceRing::Bytes(trace_events), kPage);
}

bool HasAddressSpace(size_t bytes) {
  void* probe = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return probe != MAP_FAILED && munmap(probe, bytes) == 0;
}

// How much address space the system grants in one piece: `bytes`, or what there is, give or take a mebibyte.
size_t FreeAddressSpace(size_t bytes) {
  if (HasAddressSpace(bytes)) {
    return bytes;
  }
  size_t granted = 0;
  for (size_t refused = bytes; refused - granted > size_t{1} << 20;) {
    const size_t middle = granted + (refused - granted) / 2;
    (HasAddressSpace(middle) ? granted : refused) = middle;
  }
  return granted;
}

// How large a file may be. The whole of an arena counts, although little of it has memory. A file is never made larger:
// SIGXFSZ, which may end the process, would be the answer.
size_t LargestFile() {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ? SIZE_MAX : limit.rlim_cur;
}

// A file without a name. If vm.memfd_noexec is 2, the kernel requires MFD_NOEXEC_SEAL; older kernels reject the flag.
int MakeFile() {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = memfd_create("headrace", flags | MFD_NOEXEC_SEAL);
  return fd >= 0 || errno != EINVAL ? fd : memfd_create("headrace", flags);
}

// The arenas that this process has mapped, by file. After a fork, the child inherits and uses those of its parent.
class MappedArenas {
 public:
  static MappedArenas& Get() {
    static MappedArenas& arenas = *new MappedArenas;  // never destroyed: threads may outlive main()
    return arenas;
  }

  using File = std::pair<dev_t, ino_t>;
  static File FileOf(int fd) {
    struct stat status{};
    HR_ENFORCE(fstat(fd, &status) == 0, IoError, "file descriptor ", fd, " cannot be used: ", SystemError(errno));
    return {status.st_dev, status.st_ino};
  }

  // The arena if it is mapped, else the result of `map`.
  template <typename MapFile>
  std::shared_ptr<Arena> FindOr(const File& file, MapFile map) {
    const MutexLock lock(mutex_);
    std::weak_ptr<Arena>& known = arenas_[file];
    std::shared_ptr<Arena> arena = known.lock();
    if (arena == nullptr) {
      std::erase_if(arenas_, [&](const auto& entry) { return entry.first != file && entry.second.expired(); });
      arena = map();
      known = arena;
    }
    return arena;
  }

 private:
  // A child must not find the mutex locked by a thread that does not exist there.
  MappedArenas() { pthread_atfork(Lock, Unlock, Unlock); }
  // Not analysed: one is called before the fork, the other after it.
  static void Lock() HR_NO_THREAD_SAFETY_ANALYSIS { Get().mutex_.lock(); }
  static void Unlock() HR_NO_THREAD_SAFETY_ANALYSIS { Get().mutex_.unlock(); }

  Mutex mutex_;
  std::map<File, std::weak_ptr<Arena>> arenas_ HR_GUARDED_BY(mutex_);
};

std::string SizeInWords(size_t bytes) {
  return bytes < size_t{1} << 20 ? StrCat(bytes, " bytes") : StrCat(bytes >> 20, " MiB");
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

std::string LimitHint(size_t slot_bytes) {
  if (slot_bytes >= ArenaOptions().slot_bytes) {
    return {};
  }
  std::string hint;
  if (rlimit limit{}; getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    hint = StrCat(SizeInWords(limit.rlim_cur), " of address space (RLIMIT_AS, ulimit -v)");
  }
  if (const size_t largest = LargestFile(); largest != SIZE_MAX) {
    hint += StrCat(hint.empty() ? "" : ", or that of ", SizeInWords(largest), " for a file (RLIMIT_FSIZE, ulimit -f)");
  }
  return hint.empty() ? hint : StrCat(". The limit of ", hint, " leaves no more: raise it, or make smaller batches");
}

std::shared_ptr<Arena> Arena::Create(const ArenaOptions& options) {
  HR_ENFORCE(options.slot_count >= 1 && options.slot_count <= kMaxSlots, InvalidArgument,
             "the number of slots must be 1 to ", kMaxSlots, ", got ", options.slot_count);
  HR_ENFORCE(options.slot_bytes >= kSmallestSlot && options.slot_bytes <= kLargestSlot, InvalidArgument,
             "a slot must have ", kSmallestSlot, " to ", kLargestSlot, " bytes, got ", options.slot_bytes);
  HR_ENFORCE(options.fewest_slots <= options.slot_count, InvalidArgument, "there are ", options.slot_count,
             " slots, of which at least ", options.fewest_slots, " cannot remain");
  HR_ENFORCE(options.trace_events <= kMaxTraceEvents, InvalidArgument, "a trace has at most ", kMaxTraceEvents,
             " events, got ", options.trace_events);
  std::shared_ptr<Arena> arena(new Arena);
  arena->creator_ = ProcessId();
  arena->fd_ = MakeFile();
  HR_ENFORCE(arena->fd_ >= 0, IoError, "memfd_create failed: ", SystemError(errno));
  arena->slots_offset_ = SlotsOffset(options.trace_events);
  arena->trace_events_ = options.trace_events;
  // Address space may be limited (ulimit -v, a sanitizer). As much again must stay free for the rest of the process.
  const uint32_t fewest = options.fewest_slots == 0 ? options.slot_count : options.fewest_slots;
  const size_t largest = RoundUp(options.slot_bytes, kPage);
  const size_t roomy = std::min(largest, kRoomySlot);
  const size_t wanted = arena->slots_offset_ + largest * options.slot_count;
  for (size_t room = std::min(FreeAddressSpace(2 * wanted) / 2, LargestFile());; room /= 2) {
    const size_t budget = room - std::min(room, arena->slots_offset_);
    arena->slot_count_ = static_cast<uint32_t>(std::clamp<size_t>(budget / roomy, fewest, options.slot_count));
    arena->slot_bytes_ = std::min(largest, budget / arena->slot_count_ / kPage * kPage);
    const size_t bytes = arena->slots_offset_ + std::max(arena->slot_bytes_, kSmallestSlot) * arena->slot_count_;
    HR_ENFORCE(arena->slot_bytes_ >= kSmallestSlot, ResourceExhausted, "cannot get ", bytes,
               " bytes of shared memory: ", std::strerror(bytes > LargestFile() ? EFBIG : errno),
               LimitHint(arena->slot_bytes_));
    if (ftruncate(arena->fd_, static_cast<off_t>(bytes)) == 0 && arena->Map(bytes)) {
      break;
    }
  }
  // Sealing is a safeguard; a system without it still works.
  fcntl(arena->fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  auto* control = new (arena->base_) ControlBlock{};
  ArenaConstants& constants = control->constants;
  constants.magic = kMagic;
  constants.slot_bytes = arena->slot_bytes_;
  constants.slot_count = arena->slot_count_;
  constants.order = options.order;
  constants.dataset_length = options.dataset_length;
  constants.seed = options.seed;
  constants.trace_events = options.trace_events;
  constants.recheck_ms = options.recheck_ms;
  constants.checksum = ChecksumOf(constants, 0);
  return MappedArenas::Get().FindOr(MappedArenas::FileOf(arena->fd_), [&] { return arena; });
}

std::shared_ptr<Arena> Arena::Attach(int fd) {
  const MappedArenas::File file = MappedArenas::FileOf(fd);
  HR_ENFORCE((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR, DataLoss, "file descriptor ", fd,
             " is not an arena: it cannot be read and written");
  return MappedArenas::Get().FindOr(file, [fd] { return MapExisting(fd); });
}

std::shared_ptr<Arena> Arena::MapExisting(int fd) {
  std::shared_ptr<Arena> arena(new Arena);
  arena->fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  HR_ENFORCE(arena->fd_ >= 0, IoError, "cannot duplicate file descriptor ", fd, ": ", SystemError(errno));
  struct stat status{};
  HR_ENFORCE(fstat(arena->fd_, &status) == 0, IoError, "fstat failed: ", SystemError(errno));
  const auto bytes = static_cast<size_t>(status.st_size);
  HR_ENFORCE(S_ISREG(status.st_mode) && bytes >= kTraceOffset, DataLoss, "file descriptor ", fd, " of ", bytes,
             " bytes is not an arena");
  HR_ENFORCE(arena->Map(bytes), ResourceExhausted, "cannot map ", bytes,
             " bytes of shared memory: ", std::strerror(errno), LimitHint(0));
  const ArenaConstants constants = CopyShared(arena->control().constants);
  HR_ENFORCE(constants.magic == kMagic && constants.checksum == ChecksumOf(constants, 0) && constants.slot_count >= 1 &&
                 constants.slot_count <= kMaxSlots && constants.slot_bytes >= kSmallestSlot &&
                 constants.slot_bytes <= kLargestSlot && constants.trace_events <= kMaxTraceEvents &&
                 SlotsOffset(constants.trace_events) + constants.slot_bytes * constants.slot_count == bytes,
             DataLoss, "the file of ", bytes, " bytes is not an arena of this version");
  arena->slots_offset_ = SlotsOffset(constants.trace_events);
  arena->slot_count_ = constants.slot_count;
  arena->slot_bytes_ = constants.slot_bytes;
  arena->trace_events_ = constants.trace_events;
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
  if (base_ != nullptr && creator_ == ProcessId()) {
    // The slots only: producers must still be able to read that they are to stop.
    for (uint32_t index = 0; index < slot_count_; ++index) {
      if (std::find(kept_.begin(), kept_.end(), index) == kept_.end()) {
        Release(index, 0);
      }
    }
  }
  if (base_ != nullptr) {
    munmap(base_, bytes_);
  }
  if (fd_ >= 0) {
    close(fd_);
  }
}

TraceRing Arena::trace(uint32_t producer) const {
  return {base_ + kTraceOffset + producer * TraceRing::Bytes(trace_events_), trace_events_};
}

size_t Arena::ResidentBytes() const {
  struct stat status{};
  HR_ENFORCE(fstat(fd_, &status) == 0, IoError, "fstat failed: ", SystemError(errno));
  return static_cast<size_t>(status.st_blocks) * 512;
}

void Arena::Release(uint32_t index, size_t begin, size_t end) {
  const size_t first = RoundUp(begin, kPage);
  const size_t last = std::min(end, slot_bytes_) / kPage * kPage;
  if (first < last) {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(slots_offset_ + static_cast<size_t>(index) * slot_bytes_ + first),
              static_cast<off_t>(last - first));
  }
}

}  // namespace headrace::shared_memory
