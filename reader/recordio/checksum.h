// Cyclic redundancy checks of 32 bits, bit-reversed, with all bits inverted before and after.
#pragma once

#include <cstdint>
#include <string_view>

#include "framework/export.h"

namespace headrace {

// CRC-32 (IEEE 802.3, as in zlib).
HEADRACE_API uint32_t Crc32(std::string_view bytes);

// CRC-32C (Castagnoli, as in iSCSI).
HEADRACE_API uint32_t Crc32c(std::string_view bytes);

}  // namespace headrace
