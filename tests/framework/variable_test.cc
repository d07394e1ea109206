#include "framework/variable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(Variable, HoldsWhateverIsAskedOfItFirst) {
  Variable variable("v");
  EXPECT_FALSE(variable.initialized());
  *variable.GetMutable<std::string>() = "text";
  EXPECT_TRUE(variable.IsType<std::string>());
  EXPECT_FALSE(variable.IsType<int>());
  EXPECT_EQ(variable.Get<std::string>(), "text");
}

TEST(Variable, AnotherTypeIsRefusedNamingBothAndTheVariable) {
  Variable variable("counter");
  *variable.GetMutable<int>() = 3;
  try {
    variable.GetMutable<std::string>();
    FAIL() << "nothing was thrown";
  } catch (const TypeMismatch& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("counter"), testing::HasSubstr("int"), testing::HasSubstr("string")));
  }
  EXPECT_EQ(variable.Get<int>(), 3);
}

TEST(Variable, ReadingAnEmptyOneNamesIt) {
  try {
    Variable("nothing").Get<int>();
    FAIL() << "nothing was thrown";
  } catch (const FailedPrecondition& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("nothing"));
  }
}

TEST(Variable, CanHoldAnotherTypeAfterClear) {
  Variable variable("v");
  variable.GetMutable<int>();
  variable.Clear();
  EXPECT_NO_THROW(variable.GetMutable<double>());
}

TEST(Variable, ValuesNeedNotBeCopyable) {
  Variable variable("v");
  *variable.GetMutable<std::unique_ptr<int>>() = std::make_unique<int>(5);
  EXPECT_EQ(*variable.Get<std::unique_ptr<int>>(), 5);
}

}  // namespace
}  // namespace headrace
