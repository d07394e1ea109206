// Fuzz target: RecordIO files.
//
// The input is a file as it is, the payload of a chunk with a checksum that is right, for each compressor, and data to
// be written. Whatever it is: reading it ends, with records or with a typed error; a batch in a record is a batch or a
// DataLoss; and what is written is read as it was.
#include "reader/recordio/recordio.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <new>
#include <string>
#include <string_view>

#include "framework/errors.h"
#include "memory_limit.h"
#include "reader/recordio/checksum.h"
#include "reader/recordio/snappy_stream.h"
#include "reader/recordio_reader.h"

namespace headrace {
namespace {

// A file in memory, which has a path as long as it lives.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(memfd_create("fuzz_recordio", 0)) {
    if (fd_ < 0 || write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      std::abort();
    }
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

// A chunk is in error once; a damaged header, behind which nothing is found, each time.
void ReadFile(std::string_view bytes) {
  const MemoryFile file(bytes);
  RecordIOReader reader(file.path());
  std::string_view record;
  for (size_t errors = 0; errors <= bytes.size();) {
    try {
      if (!reader.Next(&record)) {
        return;
      }
      (void)BatchOfRecord("record", record);
    } catch (const DataLoss&) {
      ++errors;
    } catch (const Unimplemented&) {
      ++errors;
    } catch (const ResourceExhausted&) {  // see MemoryLimit
      ++errors;
    } catch (const std::bad_alloc&) {
      ++errors;
    }
  }
}

std::string Number(uint32_t value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }

}  // namespace
}  // namespace headrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headrace;  // NOLINT(google-build-using-namespace)
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (FromSnappyStream(ToSnappyStream(input), "it") != input) {
    std::cerr << "fuzz_recordio: the data have changed" << std::endl;
    std::abort();
  }
  const MemoryLimit limit;
  ReadFile(input);
  for (const uint32_t compressor : {0, 1}) {
    const std::string payload = (compressor == 1 ? std::string("snappy\0", 7) : "") + std::string(input);
    ReadFile(Number(0x01020304) + Number(3) + Number(Crc32(payload)) + Number(compressor) +
             Number(static_cast<uint32_t>(payload.size())) + payload);
  }
  return 0;
}
