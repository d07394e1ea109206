#include "reader/recordio/checksum.h"

#include <array>

namespace headrace {
namespace {

using CrcTable = std::array<uint32_t, 256>;

// What each byte adds. `polynomial` has its bits reversed.
constexpr CrcTable MakeCrcTable(uint32_t polynomial) {
  CrcTable table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t remainder = i;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder & 1) != 0 ? (remainder >> 1) ^ polynomial : remainder >> 1;
    }
    table[i] = remainder;
  }
  return table;
}

constexpr CrcTable kCrc32Table = MakeCrcTable(0xEDB88320);
constexpr CrcTable kCrc32cTable = MakeCrcTable(0x82F63B78);

uint32_t Crc(const CrcTable& table, std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc = table[(crc ^ static_cast<uint8_t>(byte)) & 0xFF] ^ (crc >> 8);
  }
  return ~crc;
}

}  // namespace

uint32_t Crc32(std::string_view bytes) { return Crc(kCrc32Table, bytes); }
uint32_t Crc32c(std::string_view bytes) { return Crc(kCrc32cTable, bytes); }

}  // namespace headrace
