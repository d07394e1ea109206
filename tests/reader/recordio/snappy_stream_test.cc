#include "reader/recordio/snappy_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "framework/errors.h"
#include "reader/index_permutation.h"

namespace headrace {
namespace {

using testing::HasSubstr;

std::string Noise(size_t size) {
  std::string noise;
  for (size_t i = 0; i < size; ++i) {
    noise.push_back(static_cast<char>(MixBits(i)));
  }
  return noise;
}

std::string Stream(const std::string& blocks) { return std::string("snappy\0", 7) + blocks; }

// A compressed block; nothing looks at its checksum.
std::string Block(const std::string& bytes) {
  std::string block = {1, static_cast<char>(bytes.size() >> 8), static_cast<char>(bytes.size()), 0, 0, 0, 0};
  return block + bytes;
}

void ExpectDataLoss(const std::string& stream, const std::string& text) {
  try {
    (void)FromSnappyStream(stream, "'file', chunk 3");
    ADD_FAILURE() << "nothing was thrown; expected " << text;
  } catch (const DataLoss& error) {
    EXPECT_THAT(error.what(), HasSubstr("'file', chunk 3: "));
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(SnappyStream, GivesBackWhatWentIn) {
  std::vector<std::string> all = {"", "a", "abc", "abcd", std::string(7, 'x'), std::string(100'000, '\0'), Noise(70)};
  for (const size_t size : {59, 60, 61, 255, 256, 257, 32767, 32768, 32769, 65536, 100'000}) {
    all.push_back(Noise(size));
    std::string text;
    for (uint64_t i = 0; text.size() < size; ++i) {
      text += "word " + std::to_string(MixBits(i) % 97) + std::string(MixBits(i + size) % 80, '-');
    }
    all.push_back(text);
  }
  for (const std::string& data : all) {
    EXPECT_EQ(FromSnappyStream(ToSnappyStream(data), "it"), data) << data.size();
  }
}

TEST(SnappyStream, IsSmallWhereThereIsSomethingToSave) {
  const std::string zeros(100'000, '\0');
  EXPECT_LT(ToSnappyStream(zeros).size(), zeros.size() / 15);
  // Otherwise blocks are kept as they are.
  const std::string noise = Noise(100'000);
  EXPECT_EQ(ToSnappyStream(noise).size(), 7 + 4 * 7 + noise.size());
}

TEST(SnappyStream, HasTheChecksumsOfItsData) {
  // From the framing format: ((crc >> 15) | (crc << 17)) + 0xa282ead8; the CRC-32C of "123456789" is 0xE3069283.
  EXPECT_EQ(ToSnappyStream("123456789"), Stream(std::string("\0\0\x09\xC7\x8A\xB0\xE5", 7) + "123456789"));
}

TEST(SnappyStream, ReadsAllKindsOfElements) {
  const auto read = [](const std::string& block) { return FromSnappyStream(Stream(Block(block)), "it"); };
  EXPECT_EQ(read(std::string("\0", 1)), "");
  EXPECT_EQ(read(std::string("\x03\x08") + "abc"), "abc");
  EXPECT_EQ(read(std::string("\x03\xF0\x02") + "abc"), "abc");               // length in a byte
  EXPECT_EQ(read(std::string("\x03\xF4\x02\0", 4) + "abc"), "abc");          // in two
  EXPECT_EQ(read(std::string("\x03\xF8\x02\0\0", 5) + "abc"), "abc");        // in three
  EXPECT_EQ(read(std::string("\x03\xFC\x02\0\0\0", 6) + "abc"), "abc");      // in four
  EXPECT_EQ(read(std::string("\x07\x08") + "abc" + "\x01\x03"), "abcabca");  // a copy that overlaps itself
  EXPECT_EQ(read(std::string("\x05\x08") + "abc" + std::string("\x06\x03\0", 3)), "abcab");
  EXPECT_EQ(read(std::string("\x05\x08") + "abc" + std::string("\x07\x02\0\0\0", 5)), "abcbc");
  std::string far(300, 'z');  // an offset of more than a byte
  far[0] = 'a';
  EXPECT_EQ(read(std::string("\xB0\x02\xF4\x2B\x01", 5) + far + "\x21\x2C").substr(300), "azzz");
}

TEST(SnappyStream, RefusesWhatIsDamaged) {
  ExpectDataLoss("", "not a Snappy stream");
  ExpectDataLoss("snappy", "not a Snappy stream");
  ExpectDataLoss("sNaPpY!", "not a Snappy stream");
  const std::string good = Block(std::string("\x03\x08") + "abc");
  ExpectDataLoss(Stream(good + good.substr(0, 6)), "block 1 ends within its header");
  ExpectDataLoss(Stream(good + good.substr(0, good.size() - 1)), "block 1 has 5 bytes, 4 are left");
  std::string unknown = good;
  unknown[0] = 2;
  ExpectDataLoss(Stream(unknown), "block 0 is damaged");
  ExpectDataLoss(Stream(good + Block(std::string("\x04\x01\x03"))), "block 1 is damaged");  // it copies from block 0
  std::string large(7 + 32769, 'x');
  large[0] = 0;
  large[1] = static_cast<char>(0x80);
  large[2] = 1;
  ExpectDataLoss(Stream(large), "block 0 is damaged");
  const std::vector<std::string> bad = {
      "",                                               // no size
      "\x80",                                           // one that is cut off
      "\xFF\xFF\xFF\xFF\xFF\x01",                       // one of too many bytes
      std::string("\x80\x80\x80\x80\x80\0", 6),         // likewise, of nothing
      "\x81\x80\x02",                                   // one of more than 32 KiB
      "\x03",                                           // no elements
      std::string("\x03\x08") + "ab",                   // a literal that is cut off
      std::string("\x03\xF0", 2),                       // its length, likewise
      std::string("\x03\xFC\xFF\xFF\xFF\xFF") + "abc",  // longer than anything
      std::string("\x02\x08") + "abc",                  // more than the size
      std::string("\x04\x08") + "abc",                  // less than it
      std::string("\x07\x08") + "abc" + "\x01",         // a copy that is cut off
      std::string("\x07\x08") + "abc" + "\x01\x04",     // of what was never there
      std::string("\x07\x08") + "abc" + std::string("\x01\0", 2),
      std::string("\x06\x08") + "abc" + "\x01\x03",  // of more than the size
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectDataLoss(Stream(Block(bad[i])), "block 0 is damaged");
  }
}

TEST(SnappyStream, IsNeverReadBeyondItsEnd) {
  const std::string stream = ToSnappyStream(std::string(1000, 'a') + Noise(50) + std::string(3000, 'b'));
  for (size_t size = 0; size < stream.size(); ++size) {
    try {
      EXPECT_LT(FromSnappyStream(stream.substr(0, size), "it").size(), 4051U);
    } catch (const DataLoss&) {
    }
  }
  for (size_t at = 0; at < stream.size(); ++at) {
    std::string damaged = stream;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
    try {
      (void)FromSnappyStream(damaged, "it");
    } catch (const DataLoss&) {
    }
  }
}

}  // namespace
}  // namespace headrace
