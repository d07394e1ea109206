#include "reader/recordio/snappy_stream.h"

#include <snappy-c.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "framework/errors.h"
#include "reader/recordio/checksum.h"

namespace headrace {
namespace {

constexpr std::string_view kStreamMagic{"snappy\0", 7};
constexpr size_t kBlockHeaderBytes = 7;
constexpr size_t kMaxBlockBytes = size_t{32} << 10;  // of data

void AppendBigEndian(uint32_t value, int bytes, std::string* to) {
  while (bytes-- > 0) {
    to->push_back(static_cast<char>(value >> (8 * bytes)));
  }
}

std::string CompressBlock(std::string_view data) {
  std::string compressed(snappy_max_compressed_length(data.size()), '\0');
  size_t size = compressed.size();
  snappy_compress(data.data(), data.size(), compressed.data(), &size);  // fails only where there is too little room
  compressed.resize(size);
  return compressed;
}

// Takes `n` bytes off `*from`; returns whether it had them.
bool Take(std::string_view* from, size_t n, std::string_view* taken) {
  if (n > from->size()) {
    return false;
  }
  *taken = from->substr(0, n);
  from->remove_prefix(n);
  return true;
}

// Appends the data of a block; returns whether it is sound.
bool UncompressBlock(std::string_view block, std::string* to) {
  size_t size = 0;
  if (snappy_uncompressed_length(block.data(), block.size(), &size) != SNAPPY_OK || size > kMaxBlockBytes) {
    return false;
  }
  const size_t begin = to->size();
  to->resize(begin + size);
  return snappy_uncompress(block.data(), block.size(), to->data() + begin, &size) == SNAPPY_OK;
}

}  // namespace

std::string ToSnappyStream(std::string_view data) {
  std::string stream(kStreamMagic);
  for (; !data.empty(); data.remove_prefix(std::min(kMaxBlockBytes, data.size()))) {
    const std::string_view block = data.substr(0, kMaxBlockBytes);
    const std::string compressed = CompressBlock(block);
    const bool is_compressed = compressed.size() < block.size() - block.size() / 8;
    const std::string_view written = is_compressed ? compressed : block;
    stream.push_back(is_compressed ? 1 : 0);
    AppendBigEndian(static_cast<uint32_t>(written.size()), 2, &stream);
    AppendBigEndian(std::rotr(Crc32c(block), 15) + 0xA282EAD8, 4, &stream);
    stream.append(written);
  }
  return stream;
}

std::string FromSnappyStream(std::string_view stream, std::string_view name) {
  HR_ENFORCE(stream.starts_with(kStreamMagic), DataLoss, name, ": the compressed data is not a Snappy stream");
  stream.remove_prefix(kStreamMagic.size());
  std::string data;
  for (size_t number = 0; !stream.empty(); ++number) {
    std::string_view header;
    std::string_view block;
    HR_ENFORCE(Take(&stream, kBlockHeaderBytes, &header), DataLoss, name, ": Snappy block ", number,
               " ends within its header");
    const size_t size = static_cast<size_t>(static_cast<uint8_t>(header[1])) << 8 | static_cast<uint8_t>(header[2]);
    HR_ENFORCE(Take(&stream, size, &block), DataLoss, name, ": Snappy block ", number, " has ", size, " bytes, ",
               stream.size(), " are left");
    const bool is_sound = header[0] == 1   ? UncompressBlock(block, &data)
                          : header[0] == 0 ? size <= kMaxBlockBytes
                                           : false;
    HR_ENFORCE(is_sound, DataLoss, name, ": Snappy block ", number, " is damaged");
    if (header[0] == 0) {
      data.append(block);
    }
  }
  return data;
}

}  // namespace headrace
