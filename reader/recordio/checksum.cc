#include "reader/recordio/checksum.h"

#include <zlib.h>

#include <array>

namespace headrace {
namespace {

// zlib has no CRC-32C. Only what writes compressed chunks needs it, and Snappy takes far longer.
constexpr std::array<uint32_t, 256> MakeCrc32cTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78 : 0);
    }
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrc32cTable = MakeCrc32cTable();

}  // namespace

uint32_t Crc32(std::string_view bytes) {
  uLong crc = 0;
  do {  // zlib counts in 32 bits
    const std::string_view part = bytes.substr(0, size_t{1} << 30);
    crc = crc32(crc, reinterpret_cast<const Bytef*>(part.data()), static_cast<uInt>(part.size()));
    bytes.remove_prefix(part.size());
  } while (!bytes.empty());
  return static_cast<uint32_t>(crc);
}

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc = kCrc32cTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF] ^ (crc >> 8);
  }
  return ~crc;
}

}  // namespace headrace
