// Streams of Snappy blocks, as Fluid keeps compressed chunks: those of the library snappystream 0.2. This is not
// Snappy's own framing format.
//
//   stream  "snappy\0"; blocks
//   block   uint8 1 if it is compressed, else 0; uint16 bytes that it holds; uint32 checksum; the bytes
//
// Numbers are big-endian. The checksum is the CRC-32C of the block's data, masked as in the framing format. A block has
// at most 32 KiB of data, which are compressed by Snappy if that saves more than an eighth.
#pragma once

#include <string>
#include <string_view>

#include "framework/export.h"

namespace headrace {

HEADRACE_API std::string ToSnappyStream(std::string_view data);

// The data of a stream. The blocks' checksums are not looked at: the chunk around them has one. Throws DataLoss, which
// begins with `name`, if the stream is damaged; a number in it never makes it take more memory than its size explains.
HEADRACE_API std::string FromSnappyStream(std::string_view stream, std::string_view name);

}  // namespace headrace
