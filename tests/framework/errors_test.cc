#include "framework/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(Errors, MessageIsTheConcatenationOfTheArguments) {
  try {
    Throw<InvalidArgument>("capacity must be positive, got ", -3);
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "capacity must be positive, got -3");
    EXPECT_STREQ(error.what(), "capacity must be positive, got -3");
    return;
  }
  FAIL() << "nothing was thrown";
}

TEST(Errors, ContextIsAppendedToWhatAndLeavesTheMessage) {
  NotFound error("gone");
  error.SetOpType("conv2d");
  error.SetVariable("img");
  error.SetSampleIndex(7);
  EXPECT_STREQ(error.what(), "gone [operator 'conv2d', variable 'img', sample 7]");
  EXPECT_EQ(error.message(), "gone");
}

TEST(Errors, InnermostContextIsKept) {
  InvalidArgument error("bad");
  error.SetOpType("inner");
  error.SetOpType("outer");
  error.SetSampleIndex(1);
  error.SetSampleIndex(2);
  EXPECT_EQ(error.op_type(), "inner");
  EXPECT_EQ(error.sample_index(), 1);
}

TEST(Errors, EachMemberIsCaughtAsItsOwnClass) {
  EXPECT_THROW(Throw<EndOfData>("end"), EndOfData);
  EXPECT_THROW(Throw<TypeMismatch>("type"), TypeMismatch);
  EXPECT_THROW(Throw<Unimplemented>("none"), Error);
}

TEST(Errors, EnforceThrowsOnlyIfTheConditionFails) {
  EXPECT_NO_THROW(HR_ENFORCE(true, InvalidArgument, "fine"));
  EXPECT_THROW(HR_ENFORCE(false, OutOfRange, "not fine"), OutOfRange);
}

TEST(Errors, CopyKeepsContext) {
  DataLoss error("torn");
  error.SetVariable("x");
  const DataLoss copy = error;
  EXPECT_STREQ(copy.what(), error.what());
  EXPECT_THAT(copy.what(), testing::HasSubstr("'x'"));
}

}  // namespace
}  // namespace headrace
