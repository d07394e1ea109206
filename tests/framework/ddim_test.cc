#include "framework/ddim.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "framework/data_type.h"
#include "framework/errors.h"

namespace headrace {
namespace {

TEST(DDim, ProductOfAScalarIsOne) { EXPECT_EQ(Product({}), 1); }
TEST(DDim, ProductWithAZeroIsZero) { EXPECT_EQ(Product({INT64_MAX, 1, 0}), 0); }
TEST(DDim, ProductRefusesAnOverflowBesideAZero) {
  EXPECT_THROW(Product({INT64_MAX, INT64_MAX, 0}), InvalidArgument);
  EXPECT_THROW(Product({0, INT64_MAX, 2}), InvalidArgument);
}
TEST(DDim, CheckAcceptsUnknownDimensionsAndRefusesOverflow) {
  EXPECT_NO_THROW(CheckDims({-1, INT64_MAX, 0, -1}));
  EXPECT_THROW(CheckDims({-1, INT64_MAX, 2}), InvalidArgument);
  EXPECT_THROW(CheckDims({-2}), InvalidArgument);
}
TEST(DDim, ArithmeticOfExtentsRefusesOverflow) {
  EXPECT_EQ(AddExtents(2, 3), 5);
  EXPECT_EQ(MultiplyExtents(2, 3), 6);
  EXPECT_THROW(AddExtents(INT64_MAX, 1), InvalidArgument);
  EXPECT_THROW(MultiplyExtents(INT64_MAX, 2), InvalidArgument);
}
TEST(DDim, ProductRefusesUnknownDimensions) { EXPECT_THROW(Product({2, -1}), InvalidArgument); }
TEST(DDim, ProductRefusesOverflow) { EXPECT_THROW(Product({INT64_MAX, 2}), InvalidArgument); }
TEST(DDim, ToStringListsDimensions) { EXPECT_EQ(ToString(DDim{32, -1, 28}), "[32, -1, 28]"); }

TEST(DDim, UnknownDimensionMatchesAnyExtent) {
  EXPECT_TRUE(Matches({-1, 3}, {7, 3}));
  EXPECT_FALSE(Matches({-1, 3}, {7, 4}));
}
TEST(DDim, RankMustMatch) { EXPECT_FALSE(Matches({-1}, {7, 1})); }

TEST(DataType, NamesRoundTrip) {
  int known = 0;
  for (int32_t value = -1; value < 200; ++value) {
    if (IsDataType(value)) {
      const auto type = static_cast<DataType>(value);
      EXPECT_EQ(DataTypeFromName(DataTypeName(type)), type);
      ++known;
    }
  }
  EXPECT_EQ(known, 13);
}

TEST(DataType, SizesAreThoseOfTheCppTypes) {
  EXPECT_EQ(SizeOf(DataType::kBool), sizeof(bool));
  EXPECT_EQ(SizeOf(DataTypeOf<bfloat16>::value), sizeof(bfloat16));
  EXPECT_EQ(SizeOf(DataTypeOf<int32_t>::value), sizeof(int32_t));
  EXPECT_EQ(SizeOf(DataTypeOf<uint64_t>::value), sizeof(uint64_t));
  EXPECT_EQ(SizeOf(DataTypeOf<double>::value), sizeof(double));
}

TEST(DataType, UnknownNamesAndValuesAreRefused) {
  EXPECT_THROW(DataTypeFromName("float31"), InvalidArgument);
  EXPECT_THROW(SizeOf(static_cast<DataType>(7)), InvalidArgument);
}

}  // namespace
}  // namespace headrace
