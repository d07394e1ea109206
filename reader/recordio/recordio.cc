#include "reader/recordio/recordio.h"

#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "framework/errors.h"
#include "reader/recordio/checksum.h"
#include "reader/recordio/snappy_stream.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kChunkMagic = 0x01020304;
constexpr size_t kMaxChunkBytes = size_t{32} << 20;

struct ChunkHeader {
  uint32_t magic;
  uint32_t records;
  uint32_t checksum;
  uint32_t compressor;
  uint32_t bytes;
};
static_assert(sizeof(ChunkHeader) == 20);

void CheckCompressor(uint32_t compressor, const std::string& path) {
  HR_ENFORCE(compressor <= static_cast<uint32_t>(RecordIOCompressor::kSnappy), Unimplemented, "'", path,
             "': RecordIO is written and read with Snappy or without compression, not with compressor ", compressor,
             compressor == static_cast<uint32_t>(RecordIOCompressor::kGzip) ? " (gzip)" : "");
}

}  // namespace

RecordIOWriter::RecordIOWriter(std::string path, RecordIOCompressor compressor, size_t max_records)
    : path_(std::move(path)), compressor_(compressor), max_records_(max_records) {
  HR_ENFORCE(max_records > 0, InvalidArgument, "'", path_, "': a chunk holds at least 1 record, got 0");
  CheckCompressor(static_cast<uint32_t>(compressor), path_);
  file_.emplace(path_);
}

void RecordIOWriter::Write(std::string_view record) {
  HR_ENFORCE(file_, FailedPrecondition, "'", path_, "' has been closed");
  HR_ENFORCE(record.size() <= std::numeric_limits<uint32_t>::max() - sizeof(uint32_t), InvalidArgument, "'", path_,
             "': a record has less than 4 GiB, got ", record.size(), " bytes");
  if (!payload_.empty() && payload_.size() + record.size() > kMaxChunkBytes) {
    Flush();
  }
  const auto size = static_cast<uint32_t>(record.size());
  payload_.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(record);
  ++records_;
  if (records_ >= max_records_) {
    Flush();
  }
}

template <typename Step>
void RecordIOWriter::EndedByErrors(const Step& step) {
  try {
    step();
  } catch (...) {
    file_.reset();
    throw;
  }
}

void RecordIOWriter::Flush() {
  if (records_ == 0) return;
  EndedByErrors([&] {
    if (compressor_ == RecordIOCompressor::kSnappy) {
      payload_ = ToSnappyStream(payload_);
    }
    HR_ENFORCE(payload_.size() <= std::numeric_limits<uint32_t>::max(), InvalidArgument, "'", path_,
               "': a chunk has less than 4 GiB, got ", payload_.size(), " bytes");
    const ChunkHeader header{.magic = kChunkMagic,
                             .records = records_,
                             .checksum = Crc32(payload_),
                             .compressor = static_cast<uint32_t>(compressor_),
                             .bytes = static_cast<uint32_t>(payload_.size())};
    file_->Write(&header, sizeof(header));
    file_->Write(payload_);
  });
  payload_.clear();
  records_ = 0;
}

void RecordIOWriter::Close() {
  if (!file_) return;
  Flush();
  EndedByErrors([&] { file_->Commit(); });
  file_.reset();
}

RecordIOReader::RecordIOReader(std::string path) : path_(std::move(path)), file_(path_, std::ios::binary) {
  HR_ENFORCE(file_.is_open(), IoError, "cannot open '", path_, "' for reading");
  Rewind();
}

void RecordIOReader::Rewind() {
  file_.clear();
  file_.seekg(0, std::ios::end);
  left_ = static_cast<uint64_t>(file_.tellg());
  file_.seekg(0);
  HR_ENFORCE(file_.good(), IoError, "reading '", path_, "' failed");
  rest_ = {};
  can_continue_ = true;
  chunks_ = records_before_ = 0;
  records_ = taken_ = 0;
}

bool RecordIOReader::Next(std::string_view* record) {
  while (taken_ == records_) {
    if (!rest_.empty()) {
      const size_t bytes = std::exchange(rest_, {}).size();
      Throw<DataLoss>("'", path_, "', chunk ", chunks_ - 1, ", from record ", records_before_, ": its header says ",
                      records_, records_ == 1 ? " record" : " records", ", but ", bytes,
                      bytes == 1 ? " byte follows" : " bytes follow");
    }
    if (!ReadChunk()) return false;
  }
  uint32_t size = 0;
  const bool has_size = rest_.size() >= sizeof(size);
  if (has_size) {
    std::memcpy(&size, rest_.data(), sizeof(size));
    rest_.remove_prefix(sizeof(size));
  }
  if (!has_size || size > rest_.size()) {
    const uint64_t record_number = records_before_ + taken_;
    taken_ = records_;
    rest_ = {};
    Throw<DataLoss>("'", path_, "', chunk ", chunks_ - 1, ", record ", record_number, ": it is cut off");
  }
  *record = rest_.substr(0, size);
  rest_.remove_prefix(size);
  ++taken_;
  return true;
}

// On an error the chunk counts as taken.
bool RecordIOReader::ReadChunk() {
  records_before_ += records_;
  records_ = taken_ = 0;
  rest_ = {};
  if (left_ == 0) return false;
  can_continue_ = false;  // until the end of the chunk is known
  const auto describe = [this] { return StrCat("'", path_, "', chunk ", chunks_, ", from record ", records_before_); };
  ChunkHeader header{};
  HR_ENFORCE(left_ >= sizeof(header), DataLoss, describe(), ": the file ends within its header");
  file_.read(reinterpret_cast<char*>(&header), sizeof(header));
  HR_ENFORCE(file_.good(), IoError, "reading '", path_, "' failed");
  const bool is_header = header.magic == kChunkMagic && header.bytes <= left_ - sizeof(header);
  if (!is_header) {
    file_.seekg(-static_cast<std::streamoff>(sizeof(header)), std::ios::cur);  // found again by the next call
    HR_ENFORCE(header.magic == kChunkMagic, DataLoss, describe(), ": its header is damaged");
    Throw<DataLoss>(describe(), ": ", header.bytes, " bytes are expected, ", left_ - sizeof(header), " are left");
  }
  left_ -= sizeof(header);
  payload_.resize(header.bytes);
  file_.read(payload_.data(), header.bytes);
  HR_ENFORCE(file_.good(), IoError, "reading '", path_, "' failed");
  left_ -= header.bytes;
  can_continue_ = true;
  const std::string description = describe();
  ++chunks_;
  const uint32_t checksum = Crc32(payload_);
  if (checksum != header.checksum) {
    records_before_ += header.records;
    Throw<DataLoss>(description, ": the checksum of its ", header.records, " records is ", checksum, ", expected ",
                    header.checksum);
  }
  try {
    CheckCompressor(header.compressor, path_);
    if (header.compressor == static_cast<uint32_t>(RecordIOCompressor::kSnappy)) {
      payload_ = FromSnappyStream(payload_, description);
    }
  } catch (const Error&) {
    records_before_ += header.records;
    throw;
  }
  records_ = header.records;
  rest_ = payload_;
  return true;
}

}  // namespace headrace
