#include "python/bindings/shared_memory/place_window.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "framework/errors.h"
#include "reader/shared_memory/arena/system_error.h"

namespace headrace::python {
namespace py = pybind11;
namespace {

struct Mapping {
  Mapping(void* mapped, size_t length) : begin(mapped), bytes(length) {}
  ~Mapping() { munmap(begin, bytes); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void* begin;
  size_t bytes;
};

void* Map(size_t bytes, int flags, int fd, size_t offset) {
  void* begin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, static_cast<off_t>(offset));
  HR_ENFORCE(begin != MAP_FAILED, ResourceExhausted, "cannot map ", bytes,
             " bytes for the places of samples (out): ", shared_memory::SystemError(errno));
  return begin;
}

}  // namespace

void PlaceWindows::Open(uint32_t slot, size_t bytes) {
  const auto found = windows_.find(slot);
  if (found != windows_.end()) {
    if (found->second.bytes >= bytes) {
      return;
    }
    windows_.erase(found);
  }
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t rounded = (bytes + page - 1) / page * page;
  const auto offset =
      static_cast<size_t>(arena_.slot_data(slot) - reinterpret_cast<const std::byte*>(&arena_.control()));
  auto mapping = std::make_unique<Mapping>(Map(rounded, MAP_SHARED, arena_.fd(), offset), rounded);
  auto* begin = static_cast<std::byte*>(mapping->begin);
  py::capsule owner(mapping.get(), [](void* pointer) { delete static_cast<Mapping*>(pointer); });
  static_cast<void>(mapping.release());
  windows_.emplace(slot, Window{std::move(owner), begin, rounded});
}

void PlaceWindows::Close(uint32_t slot) {
  const auto found = windows_.find(slot);
  if (found == windows_.end() || Py_REFCNT(found->second.owner.ptr()) == 1) {
    return;
  }
  const Window window = std::move(found->second);
  windows_.erase(found);
  const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
  void* copy = mmap(nullptr, window.bytes, PROT_READ | PROT_WRITE, anonymous, -1, 0);
  if (copy != MAP_FAILED) {
    std::memcpy(copy, window.begin, window.bytes);
    const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    if (mremap(copy, window.bytes, window.bytes, flags, window.begin) != MAP_FAILED) {
      return;
    }
  }
  const int error = errno;
  if (copy != MAP_FAILED) {
    munmap(copy, window.bytes);
  }
  // In the place of the window, which takes no further address space.
  mmap(window.begin, window.bytes, PROT_READ | PROT_WRITE, anonymous | MAP_FIXED | MAP_NORESERVE, -1, 0);
  Throw<ResourceExhausted>("cannot give a place that was kept (out) memory of its own: ",
                           shared_memory::SystemError(error));
}

}  // namespace headrace::python
