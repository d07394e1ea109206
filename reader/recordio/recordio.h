// RecordIO: files of records, in chunks with checksums. The format is Fluid's:
//
//   chunk   uint32 0x01020304; number of records; CRC-32 of the payload; compressor; bytes of the payload; payload
//   payload of each record: uint32 bytes, and the bytes; as a whole, as the compressor leaves it (snappy_stream.h)
//
// All numbers are uint32, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "framework/export.h"
#include "framework/file_replacement.h"

namespace headrace {

// How payloads are compressed. kGzip is neither written nor read, as in Fluid.
enum class RecordIOCompressor : uint32_t { kNoCompress = 0, kSnappy = 1, kGzip = 2 };

// Writes a file, which appears under its name when it is complete, and on the disk: at Close. Without Close nothing is
// left. Any number of writers may write the same file at the same time; the last Close wins.
//
// Thread-safety: none.
class HEADRACE_API RecordIOWriter {
 public:
  // A chunk is written when it has `max_records` records, or 32 MiB before it is compressed. Throws InvalidArgument if
  // `max_records` is 0, Unimplemented for a compressor that is not written, IoError if the file cannot be made.
  RecordIOWriter(std::string path, RecordIOCompressor compressor, size_t max_records);
  RecordIOWriter(const RecordIOWriter&) = delete;
  RecordIOWriter& operator=(const RecordIOWriter&) = delete;

  // Throws InvalidArgument for a record of 4 GiB or more, which is not written, or one that no chunk can hold; IoError.
  // After the last two, and after Close, it throws FailedPrecondition.
  void Write(std::string_view record);
  // Throws IoError; then the file is as it was before. Nothing if closed.
  void Close();

 private:
  void Flush();
  // An error ends the writer: part of a chunk may be in the file.
  template <typename Step>
  void EndedByErrors(const Step& step);

  const std::string path_;
  const RecordIOCompressor compressor_;
  const size_t max_records_;
  std::optional<FileReplacement> file_;  // none once it is closed
  std::string payload_;
  uint32_t records_ = 0;  // in it
};

// Reads the records of a file, one chunk in memory at a time.
//
// Thread-safety: none.
class HEADRACE_API RecordIOReader {
 public:
  // Throws IoError if the file cannot be opened.
  explicit RecordIOReader(std::string path);

  // The next record, valid until the next call; false at the end of the file. Throws DataLoss naming file, chunk and
  // the first record of it if the chunk is damaged: it is passed over, so that the next call goes on behind it, unless
  // its header is damaged, behind which nothing can be found; Unimplemented for a compressor that is not read.
  bool Next(std::string_view* record);
  // Whether Next, after an error, goes on behind it.
  bool can_continue() const { return can_continue_; }
  // From 0, of the record that Next has given.
  uint64_t record_index() const { return records_before_ + taken_ - 1; }
  const std::string& path() const { return path_; }

  void Rewind();

 private:
  bool ReadChunk();

  const std::string path_;
  std::ifstream file_;
  uint64_t left_ = 0;  // bytes of the file
  bool can_continue_ = true;
  uint64_t chunks_ = 0;  // read so far
  std::string payload_;
  std::string_view rest_;  // of it
  uint32_t records_ = 0;   // in it
  uint32_t taken_ = 0;
  uint64_t records_before_ = 0;  // in the chunks before
};

}  // namespace headrace
