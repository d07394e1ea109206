#include "reader/recordio/checksum.h"

#include <gtest/gtest.h>

#include <string>

namespace headrace {
namespace {

// The check values of the catalogue of parametrised CRC algorithms, and RFC 3720, B.4.
TEST(Checksum, HasItsCheckValues) {
  EXPECT_EQ(Crc32("123456789"), 0xCBF43926U);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(Crc32(""), 0U);
  EXPECT_EQ(Crc32c(""), 0U);
}

}  // namespace
}  // namespace headrace
