#include "reader/shared_memory/arena/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "tests/reader/shared_memory/transport_test_util.h"

namespace headrace::shared_memory {
namespace {

ArenaOptions Options(uint32_t count, size_t bytes) {
  ArenaOptions options;
  options.slot_count = count;
  options.slot_bytes = bytes;
  return options;
}

// A descriptor that closes itself.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() { close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

TEST(ArenaTest, CannotBeResizedByAnyProcess) {
  const auto arena = Arena::Create(Options(2, size_t{1} << 20));
  EXPECT_EQ(ftruncate(arena->fd(), 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(arena->fd(), off_t{1} << 30), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(ArenaTest, UsesOnlyTheMemoryThatWasTouched) {
  const auto arena = Arena::Create(Options(8, size_t{1} << 30));
  const size_t before = arena->ResidentBytes();
  EXPECT_LT(before, size_t{1} << 20);
  std::memset(arena->slot_data(7) + kDataOffset, 1, size_t{1} << 20);
  EXPECT_GE(arena->ResidentBytes(), before + (size_t{1} << 20));
  // A huge page at each end at most.
  EXPECT_LE(arena->ResidentBytes(), before + (size_t{5} << 20));
}

TEST(ArenaTest, ReleaseGivesTheMemoryOfASlotBack) {
  const auto arena = Arena::Create(Options(2, size_t{16} << 20));
  const size_t before = arena->ResidentBytes();
  std::memset(arena->slot_data(0), 1, size_t{16} << 20);
  std::memset(arena->slot_data(1), 2, 4096);
  arena->Release(0, 0);
  EXPECT_LE(arena->ResidentBytes(), before + (size_t{4} << 20));
  EXPECT_EQ(arena->slot_data(1)[0], std::byte{2});
  EXPECT_EQ(arena->slot_data(0)[0], std::byte{0});
}

TEST(ArenaTest, AttachedArenaIsTheSameMemory) {
  const auto arena = Arena::Create(Options(3, size_t{1} << 20));
  const auto attached = Arena::Attach(arena->fd());
  EXPECT_EQ(attached->slot_count(), 3U);
  EXPECT_EQ(attached->slot_bytes(), arena->slot_bytes());
  arena->slot_data(2)[12345] = std::byte{42};
  EXPECT_EQ(attached->slot_data(2)[12345], std::byte{42});
}

TEST(ArenaTest, OutlivesItsCreator) {
  auto arena = Arena::Create(Options(1, size_t{1} << 20));
  const auto attached = Arena::Attach(arena->fd());
  arena->slot_data(0)[5] = std::byte{7};
  arena.reset();
  EXPECT_EQ(attached->slot_data(0)[5], std::byte{7});
}

TEST(ArenaTest, RefusesSizesOutOfRange) {
  EXPECT_THROW(Arena::Create(Options(0, size_t{1} << 20)), InvalidArgument);
  EXPECT_THROW(Arena::Create(Options(kMaxSlots + 1, size_t{1} << 20)), InvalidArgument);
  EXPECT_THROW(Arena::Create(Options(4, 0)), InvalidArgument);
  EXPECT_THROW(Arena::Create(Options(4, (size_t{1} << 20) - 1)), InvalidArgument);
  // Four of them would have 2^64 bytes, which is 0.
  EXPECT_THROW(Arena::Create(Options(4, size_t{1} << 62)), InvalidArgument);
  EXPECT_THROW(Arena::Create(Options(1, ~size_t{0})), InvalidArgument);
}

TEST(ArenaTest, AttachRefusesWhatIsNoFile) { EXPECT_THROW(Arena::Attach(-1), IoError); }

TEST(ArenaTest, AttachRefusesAPipeAndADirectory) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const File reading(ends[0]);
  const File writing(ends[1]);
  EXPECT_THROW(Arena::Attach(reading.fd()), DataLoss);
  const File directory(open("/", O_RDONLY | O_DIRECTORY));
  EXPECT_THROW(Arena::Attach(directory.fd()), DataLoss);
}

TEST(ArenaTest, AttachRefusesFilesOfOtherContents) {
  const File file(memfd_create("other", MFD_CLOEXEC));
  EXPECT_THROW(Arena::Attach(file.fd()), DataLoss);
  ASSERT_EQ(ftruncate(file.fd(), 1 << 20), 0);
  EXPECT_THROW(Arena::Attach(file.fd()), DataLoss);
}

TEST(ArenaTest, AttachRefusesAFileThatCannotBeWritten) {
  const auto arena = Arena::Create(Options(1, size_t{1} << 20));
  const std::string path = "/proc/self/fd/" + std::to_string(arena->fd());
  const File read_only(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_GE(read_only.fd(), 0);
  EXPECT_THROW(Arena::Attach(read_only.fd()), DataLoss);
}

TEST(ArenaTest, AttachRefusesAHeaderThatDoesNotFitTheFile) {
  // A file of the right size that this process has not mapped as an arena yet.
  const auto arena = Arena::Create(Options(2, size_t{1} << 20));
  struct stat status{};
  ASSERT_EQ(fstat(arena->fd(), &status), 0);
  const auto refuses = [&](const std::function<void(ArenaConstants&)>& change) {
    const File file(memfd_create("other", 0));
    EXPECT_EQ(ftruncate(file.fd(), status.st_size), 0);
    ArenaConstants constants = arena->control().constants;
    change(constants);
    EXPECT_EQ(pwrite(file.fd(), &constants, sizeof(constants), 0), static_cast<ssize_t>(sizeof(constants)));
    try {
      Arena::Attach(file.fd());
      return false;
    } catch (const DataLoss&) {
      return true;
    }
  };
  const auto set_checksum = [](ArenaConstants& constants) { constants.checksum = ChecksumOf(constants, 0); };
  EXPECT_FALSE(refuses([](ArenaConstants&) {}));
  EXPECT_TRUE(refuses([&](ArenaConstants& constants) {
    constants.slot_count = 3;
    set_checksum(constants);
  }));
  EXPECT_TRUE(refuses([&](ArenaConstants& constants) {
    constants.slot_bytes += uint64_t{1} << 63;  // the same product, but for an overflow
    set_checksum(constants);
  }));
  EXPECT_TRUE(refuses([&](ArenaConstants& constants) {
    constants.magic ^= 1;
    set_checksum(constants);
  }));
  EXPECT_TRUE(refuses([](ArenaConstants& constants) { constants.seed ^= 1; })) << "it was written over";
}

TEST(ArenaTest, AProcessMapsAnArenaOnce) {
  const auto arena = Arena::Create(Options(2, size_t{1} << 20));
  const int copy = dup(arena->fd());
  const auto attached = Arena::Attach(copy);
  close(copy);
  EXPECT_EQ(attached->slot_data(1), arena->slot_data(1));
  EXPECT_NE(Arena::Create(Options(2, size_t{1} << 20))->slot_data(1), arena->slot_data(1));
}

TEST(ArenaTest, TheFileIsNotExecutable) {
  const auto arena = Arena::Create(Options(1, size_t{1} << 20));
  const int probe = memfd_create("probe", 8U);  // MFD_NOEXEC_SEAL
  if (probe < 0) {
    GTEST_SKIP() << "the kernel knows no such files";
  }
  close(probe);
  struct stat status{};
  ASSERT_EQ(fstat(arena->fd(), &status), 0);
  EXPECT_EQ(status.st_mode & 0111U, 0U);
}

TEST(ArenaTest, ItsEndGivesTheMemoryBackThoughAChildHasInheritedIt) {
  SKIP_WITHOUT_FORK();
  auto arena = Arena::Create(Options(1, size_t{1} << 20));
  std::memset(arena->slot_data(0), 1, size_t{1} << 20);
  const int fd = dup(arena->fd());
  const ChildProcess child([] { pause(); });
  arena.reset();
  struct stat status{};
  ASSERT_EQ(fstat(fd, &status), 0);
  EXPECT_LT(static_cast<size_t>(status.st_blocks) * 512, size_t{256} << 10) << "but for the control block";
  close(fd);
}

#ifdef HEADRACE_SANITIZED
#define SKIP_WITHOUT_ADDRESS_LIMIT() GTEST_SKIP() << "a sanitizer's shadow memory exceeds any limit of address space"
#else
#define SKIP_WITHOUT_ADDRESS_LIMIT() static_cast<void>(0)
#endif

// In a child.
template <typename Resource>
void Limit(Resource resource, size_t bytes) {
  const rlimit limit{bytes, bytes};
  if (setrlimit(resource, &limit) != 0) {
    _exit(2);
  }
}

// The body of the child ends it, with 0 if all is as expected.
void ExpectSuccess(ChildProcess* child) {
  const int status = child->Join();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ArenaTest, LimitedAddressSpaceGivesSmallerSlotsAndLeavesRoom) {
  SKIP_WITHOUT_ADDRESS_LIMIT();
  ChildProcess child([] {
    Limit(RLIMIT_AS, size_t{2} << 30);
    const auto arena = Arena::Create(Options(8, size_t{4} << 30));
    const size_t bytes = 8 * arena->slot_bytes();
    std::memset(arena->slot_data(7), 1, 4096);
    // Room for as much again, where the process allocates.
    void* other = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    _exit(bytes >= (size_t{256} << 20) && other != MAP_FAILED ? 0 : 3);
  });
  ExpectSuccess(&child);
}

// Many slots that no batch fits into are of no use.
TEST(ArenaTest, LimitedAddressSpaceGivesFewerSlotsRatherThanTinyOnes) {
  SKIP_WITHOUT_ADDRESS_LIMIT();
  ChildProcess child([] {
    Limit(RLIMIT_AS, size_t{4} << 30);
    ArenaOptions options = Options(260, size_t{4} << 30);
    options.fewest_slots = 8;
    const auto arena = Arena::Create(options);
    if (arena->slot_count() < 8 || arena->slot_bytes() < (size_t{128} << 20)) {
      _exit(3);
    }
    options.slot_bytes = size_t{1} << 20;
    _exit(Arena::Create(options)->slot_count() == 260 ? 0 : 4);
  });
  ExpectSuccess(&child);
}

TEST(ArenaTest, ABatchThatDoesNotFitBecauseOfTheLimitSaysSo) {
  SKIP_WITHOUT_ADDRESS_LIMIT();
  EXPECT_EQ(LimitHint(1 << 20), "");
  ChildProcess child([] {
    Limit(RLIMIT_AS, size_t{3000} << 20);
    const bool named = LimitHint(1 << 20).find("3000 MiB of address space (RLIMIT_AS, ulimit -v)") != std::string::npos;
    _exit(named && LimitHint(size_t{4} << 30).empty() ? 0 : 3);
  });
  ExpectSuccess(&child);
}

// The default action for SIGXFSZ would end the child.
TEST(ArenaTest, ALimitOnFilesGivesSmallerSlotsAndIsNamed) {
  ChildProcess child([] {
    constexpr size_t kLimit = size_t{100} << 20;
    Limit(RLIMIT_FSIZE, kLimit);
    const size_t bytes = 8 * Arena::Create(Options(8, size_t{4} << 30))->slot_bytes();
    if (bytes > kLimit || bytes < kLimit / 2) _exit(3);
    if (LimitHint(1 << 20).find("100 MiB for a file (RLIMIT_FSIZE, ulimit -f)") == std::string::npos) _exit(4);
    for (const auto& [limit, words] : {std::pair(size_t{1} << 20, "1 MiB"), std::pair(size_t{4096}, "4096 bytes")}) {
      Limit(RLIMIT_FSIZE, limit);
      try {
        Arena::Create(Options(8, size_t{4} << 30));
        _exit(5);
      } catch (const ResourceExhausted& error) {
        if (error.message().find(StrCat("File too large. The limit of ", words, " for a file")) == std::string::npos) {
          _exit(6);
        }
      }
    }
    _exit(0);
  });
  ExpectSuccess(&child);
}

TEST(ArenaTest, TooLittleAddressSpaceIsAnErrorThatNamesTheBytes) {
  SKIP_WITHOUT_ADDRESS_LIMIT();
  ChildProcess child([] {
    Limit(RLIMIT_AS, size_t{512} << 20);
    try {
      Arena::Create(Options(kMaxSlots, size_t{1} << 30));
    } catch (const ResourceExhausted& error) {
      _exit(error.message().find("cannot get 10") != std::string::npos ? 0 : 3);
    }
    _exit(4);
  });
  ExpectSuccess(&child);
}

}  // namespace
}  // namespace headrace::shared_memory
