#include "reader/recordio/snappy_stream.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "framework/errors.h"
#include "reader/recordio/checksum.h"

namespace headrace {
namespace {

constexpr std::string_view kStreamMagic{"snappy\0", 7};
constexpr size_t kBlockHeaderBytes = 7;
constexpr size_t kMaxBlockBytes = size_t{32} << 10;  // of data

// The two low bits of the byte that an element of a block begins with.
enum ElementKind : uint8_t { kLiteral = 0, kCopy1 = 1, kCopy2 = 2, kCopy4 = 3 };

void AppendBytes(uint64_t value, int bytes, std::string* to) {
  for (int i = 0; i < bytes; ++i) {
    to->push_back(static_cast<char>(value >> (8 * i)));
  }
}

uint64_t Bytes(std::string_view from) {
  uint64_t value = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    value |= uint64_t{static_cast<uint8_t>(from[i])} << (8 * i);
  }
  return value;
}

void AppendBigEndian(uint32_t value, int bytes, std::string* to) {
  while (bytes-- > 0) {
    to->push_back(static_cast<char>(value >> (8 * bytes)));
  }
}

void AppendLiteral(std::string_view literal, std::string* to) {
  if (literal.empty()) {
    return;
  }
  const size_t n = literal.size() - 1;
  if (n < 60) {
    to->push_back(static_cast<char>(n << 2 | kLiteral));
  } else {
    const int bytes = n < 256 ? 1 : 2;
    to->push_back(static_cast<char>((59 + bytes) << 2 | kLiteral));
    AppendBytes(n, bytes, to);
  }
  to->append(literal);
}

// `length` bytes, 4 at least, from `offset` bytes before.
void AppendCopy(size_t offset, size_t length, std::string* to) {
  while (length > 0) {
    // What is left must not be shorter than a copy can be.
    const size_t n = length <= 64 ? length : std::min<size_t>(length - 4, 64);
    if (n <= 11 && offset < 2048) {
      to->push_back(static_cast<char>(offset >> 8 << 5 | (n - 4) << 2 | kCopy1));
      AppendBytes(offset, 1, to);
    } else {
      to->push_back(static_cast<char>((n - 1) << 2 | kCopy2));
      AppendBytes(offset, 2, to);
    }
    length -= n;
  }
}

uint32_t FourBytes(const char* from) {
  uint32_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Copies from the last place that began with the same four bytes, or the same hash of other ones. Where nothing has
// been found for long, it looks at fewer places.
std::string CompressBlock(std::string_view data) {
  constexpr int kHashBits = 12;
  constexpr size_t kPatience = 32;
  std::string compressed;
  for (size_t left = data.size(); left > 0 || compressed.empty(); left >>= 7) {
    compressed.push_back(static_cast<char>((left & 0x7F) | (left > 0x7F ? 0x80 : 0)));
  }
  std::array<uint16_t, 1 << kHashBits> last{};
  size_t begin = 0;  // of what has not been written
  size_t misses = kPatience;
  for (size_t at = 0; at + sizeof(uint32_t) <= data.size();) {
    const uint32_t word = FourBytes(data.data() + at);
    uint16_t& entry = last[word * 0x1E35A7BDU >> (32 - kHashBits)];
    const size_t before = entry;
    entry = static_cast<uint16_t>(at);
    if (before >= at || FourBytes(data.data() + before) != word) {
      at += misses++ / kPatience;
      continue;
    }
    const auto differs = std::mismatch(data.begin() + static_cast<std::ptrdiff_t>(at) + 4, data.end(),
                                       data.begin() + static_cast<std::ptrdiff_t>(before) + 4);
    const auto end = static_cast<size_t>(differs.first - data.begin());
    AppendLiteral(data.substr(begin, at - begin), &compressed);
    AppendCopy(at - before, end - at, &compressed);
    begin = at = end;
    misses = kPatience;
  }
  AppendLiteral(data.substr(begin), &compressed);
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
  uint64_t size = 0;
  std::string_view taken;
  for (int shift = 0;; shift += 7) {
    if (shift > 28 || !Take(&block, 1, &taken)) {
      return false;
    }
    const auto byte = static_cast<uint8_t>(taken[0]);
    size |= uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) {
      break;
    }
  }
  if (size > kMaxBlockBytes) {
    return false;
  }
  const size_t begin = to->size();
  const size_t end = begin + size;
  while (Take(&block, 1, &taken)) {
    const auto tag = static_cast<uint8_t>(taken[0]);
    size_t length = (tag >> 2) + size_t{1};
    if ((tag & 3) == kLiteral) {
      if (length > 60) {
        if (!Take(&block, length - 60, &taken)) {
          return false;
        }
        length = Bytes(taken) + 1;
      }
      if (length > end - to->size() || !Take(&block, length, &taken)) {
        return false;
      }
      to->append(taken);
      continue;
    }
    if (!Take(&block, (tag & 3) == kCopy4 ? 4 : tag & 3, &taken)) {
      return false;
    }
    size_t offset = Bytes(taken);
    if ((tag & 3) == kCopy1) {
      length = 4 + (tag >> 2 & 7);
      offset |= static_cast<size_t>(tag >> 5) << 8;
    }
    if (offset == 0 || offset > to->size() - begin || length > end - to->size()) {
      return false;
    }
    if (offset >= length) {
      to->append(*to, to->size() - offset, length);
    } else {
      for (size_t i = 0; i < length; ++i) {  // it repeats what it copies
        to->push_back((*to)[to->size() - offset]);
      }
    }
  }
  return to->size() == end;
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
  HR_ENFORCE(stream.starts_with(kStreamMagic), DataLoss, name, ": what is compressed is not a Snappy stream");
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
