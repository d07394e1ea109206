#include "framework/attribute.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "framework/errors.h"
#include "german_locale.h"

namespace headrace {
namespace {

TEST(Attribute, TypeNamesFollowTheAlternatives) {
  EXPECT_EQ(AttributeTypeName(Attribute(true)), "bool");
  EXPECT_EQ(AttributeTypeName(Attribute(int64_t{1})), "int64");
  EXPECT_EQ(AttributeTypeName(Attribute(std::vector<std::string>{})), "list of strings");
  EXPECT_EQ(AttributeTypeName(Attribute(BlockRef{})), "block");
}

TEST(Attribute, ToStringShowsTheValue) {
  EXPECT_EQ(ToString(Attribute(0.5F)), "0.5");
  EXPECT_EQ(ToString(Attribute(true)), "true");
  EXPECT_EQ(ToString(Attribute(std::string("same"))), "'same'");
  EXPECT_EQ(ToString(Attribute(std::vector<int32_t>{1, 2})), "[1, 2]");
  EXPECT_EQ(ToString(Attribute(std::vector<bool>{true, false})), "[true, false]");
  EXPECT_EQ(ToString(Attribute(std::vector<std::string>{"a"})), "['a']");
}

TEST(Attribute, ToStringDoesNotDependOnTheLocaleOfTheProgram) {
  const GermanLocale locale;
  EXPECT_EQ(ToString(Attribute(0.5F)), "0.5");
  EXPECT_EQ(ToString(Attribute(std::vector<int64_t>{1000, -1})), "[1000, -1]");
}

TEST(Coerce, KeepsWhatFitsAlready) { EXPECT_EQ(Coerce(std::string("x"), std::string()), Attribute(std::string("x"))); }

TEST(Coerce, ConvertsIntegersInRange) {
  EXPECT_EQ(Coerce(int64_t{7}, int32_t{}), Attribute(int32_t{7}));
  EXPECT_EQ(Coerce(int32_t{7}, int64_t{}), Attribute(int64_t{7}));
  EXPECT_THROW(Coerce(int64_t{1} << 40, int32_t{}), TypeMismatch);
}

TEST(Coerce, ConvertsIntegersToFloatingPoint) {
  EXPECT_EQ(Coerce(int64_t{3}, float{}), Attribute(3.0F));
  EXPECT_EQ(Coerce(int32_t{3}, double{}), Attribute(3.0));
}

TEST(Coerce, RefusesFloatingPointForIntegers) { EXPECT_THROW(Coerce(3.0, int32_t{}), TypeMismatch); }

TEST(Coerce, RoundsDoubleToFloatButNotToInfinity) {
  EXPECT_EQ(Coerce(0.1, float{}), Attribute(0.1F));
  EXPECT_THROW(Coerce(1e300, float{}), TypeMismatch);
  EXPECT_EQ(Coerce(std::numeric_limits<double>::infinity(), float{}),
            Attribute(std::numeric_limits<float>::infinity()));
  EXPECT_TRUE(std::isnan(std::get<float>(Coerce(std::nan(""), float{}))));
}

TEST(Coerce, ConvertsListsElementByElement) {
  EXPECT_EQ(Coerce(std::vector<int64_t>{1, 2}, std::vector<int32_t>{}), Attribute(std::vector<int32_t>{1, 2}));
  EXPECT_EQ(Coerce(std::vector<int64_t>{1, 2}, std::vector<float>{}), Attribute(std::vector<float>{1, 2}));
  EXPECT_THROW(Coerce(std::vector<int64_t>{1, INT64_MAX}, std::vector<int32_t>{}), TypeMismatch);
}

TEST(Coerce, EmptyListFitsEveryList) {
  EXPECT_EQ(Coerce(std::vector<int64_t>{}, std::vector<std::string>{}), Attribute(std::vector<std::string>{}));
  EXPECT_THROW(Coerce(std::vector<int64_t>{1}, std::vector<std::string>{}), TypeMismatch);
}

TEST(Coerce, TakesAnIntegerForWhetherItIsNotZero) {
  EXPECT_EQ(Coerce(int32_t{1}, bool{}), Attribute(true));
  EXPECT_EQ(Coerce(int64_t{-2}, bool{}), Attribute(true));
  EXPECT_EQ(Coerce(int32_t{0}, bool{}), Attribute(false));
  EXPECT_THROW(Coerce(1.0, bool{}), TypeMismatch);
}

TEST(Coerce, RefusesBoolForInteger) {
  EXPECT_THROW(Coerce(true, int32_t{}), TypeMismatch);
  EXPECT_THROW(Coerce(std::string("1"), int32_t{}), TypeMismatch);
}

}  // namespace
}  // namespace headrace
