// Stands in for two objects of libprotobuf-lite.a, so that the rest of it can be linked into a shared library.
//
// Protocol Buffers is linked statically and hidden, so that no other library's Protocol Buffers can meet ours. Debian's
// static archive is made for executables (-fPIE), and what it does in these places the linker refuses in a shared
// library:
//
//   arena.o   addresses a thread-local variable in the local-exec model. Its functions are called for messages on an
//   arena only, and no
//             message of ours is ever put on one.
//   common.o  (with int128.o behind it) refers to vtables and to stderr of other libraries. It holds the log.
//   repeated_field.o, repeated_ptr_field.o refer to the type_info of char, for arenas. They are needed; the linker is
//   told
//             (--wrap=_ZTIc) to take the equal type_info at the end of this file instead.
//
// What the other objects need of the first two is defined here; the linker finds it before it looks into the archive,
// so they stay out. With an archive that is position independent throughout, this does no harm. It follows Protocol
// Buffers 3.21, the last release of that design.
#include <google/protobuf/arena.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/stubs/port.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "framework/errors.h"

namespace google::protobuf {
namespace {

[[noreturn]] void NoArena() {
  std::fputs("headrace: a Protocol Buffers arena was used, but none is linked (framework/protobuf_runtime.cc)\n",
             stderr);
  std::abort();
}

}  // namespace

void* Arena::AllocateAlignedWithHook(size_t, const std::type_info*) { NoArena(); }
void* Arena::AllocateAlignedWithHookForArray(size_t, const std::type_info*) { NoArena(); }
std::pair<void*, internal::SerialArena::CleanupNode*> Arena::AllocateAlignedWithCleanup(size_t, const std::type_info*) {
  NoArena();
}

uint32_t ghtonl(uint32_t x) { return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap32(x) : x; }

namespace internal {

// An id that no arena has, so that a look at the cache would miss.
__thread ThreadSafeArena::ThreadCache ThreadSafeArena::thread_cache_ = {0, ~uint64_t{0}, nullptr};

void ThreadSafeArena::AddCleanup(void*, void (*)(void*)) { NoArena(); }
ThreadSafeArena::~ThreadSafeArena() { NoArena(); }
uint64_t ThreadSafeArena::SpaceAllocated() const { NoArena(); }

LogMessage::LogMessage(LogLevel level, const char* filename, int line)
    : level_(level), filename_(filename), line_(line) {}
LogMessage::~LogMessage() = default;

LogMessage& LogMessage::operator<<(const std::string& value) {
  message_ += value;
  return *this;
}
LogMessage& LogMessage::operator<<(const char* value) { return *this << std::string(value); }
LogMessage& LogMessage::operator<<(int value) { return *this << std::to_string(value); }
LogMessage& LogMessage::operator<<(uint value) { return *this << std::to_string(value); }
LogMessage& LogMessage::operator<<(unsigned long value) { return *this << std::to_string(value); }

// A violated precondition inside of Protocol Buffers is an error as any other. The lesser messages are dropped: what
// they report reaches the caller as a result.
void LogMessage::Finish() {
  HR_ENFORCE(level_ != LOGLEVEL_FATAL, FailedPrecondition, "Protocol Buffers, ", filename_, ":", line_, ": ", message_);
}
void LogFinisher::operator=(LogMessage& message) { message.Finish(); }

}  // namespace internal
}  // namespace google::protobuf

// A std::type_info as the C++ ABI lays it out.
// NOLINTBEGIN(bugprone-reserved-identifier): names of the C++ ABI and of the linker.
extern "C" {
struct HeadraceTypeInfo {
  const void* vtable;
  const char* name;
};
extern const void* const _ZTVN10__cxxabiv123__fundamental_type_infoE[];
extern const HeadraceTypeInfo __wrap__ZTIc;
const HeadraceTypeInfo __wrap__ZTIc = {static_cast<const void*>(_ZTVN10__cxxabiv123__fundamental_type_infoE + 2), "c"};
}
// NOLINTEND(bugprone-reserved-identifier)
