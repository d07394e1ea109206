#include "framework/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "german_locale.h"

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

TEST(Errors, NumbersInMessagesDoNotDependOnTheLocaleOfTheProgram) {
  const GermanLocale locale;
  EXPECT_EQ(StrCat("batch ", 12345, ": ", 0.5), "batch 12345: 0.5");
}

TEST(Errors, ContextIsAppendedToWhatAndLeavesTheMessage) {
  NotFound error("gone");
  error.SetOpType("conv2d");
  error.SetVariable("img");
  error.SetSampleIndex(7);
  EXPECT_STREQ(error.what(), "gone [operator 'conv2d', variable 'img', sample 7]");
  EXPECT_EQ(error.message(), "gone");
}

TEST(Errors, ANoteBelongsToTheMessage) {
  NotFound error("gone");
  error.SetOpType("conv2d");
  error.AddNote("it was here yesterday");
  EXPECT_EQ(error.message(), "gone; it was here yesterday");
  EXPECT_STREQ(error.what(), "gone; it was here yesterday [operator 'conv2d']");
}

TEST(Errors, OperandsTellWhichOperatorItIsUnlessAVariableDoes) {
  InvalidArgument error("bad");
  error.SetOpType("scale", "X=[image]");
  EXPECT_STREQ(error.what(), "bad [operator 'scale' (X=[image])]");
  error.SetOpType("outer", "X=[other]");
  EXPECT_STREQ(error.what(), "bad [operator 'scale' (X=[image])]");
  error.SetVariable("image");
  EXPECT_STREQ(error.what(), "bad [operator 'scale', variable 'image']");
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

TEST(Errors, ContextAddedToACopyDoesNotReachTheOriginal) {
  const DataLoss original("torn");
  DataLoss copy = original;
  copy.SetOpType("read");
  EXPECT_EQ(original.op_type(), "");
  EXPECT_STREQ(original.what(), "torn");
}

static_assert(std::is_nothrow_copy_constructible_v<InvalidArgument>, "an exception in flight is copied");

TEST(Errors, AKeptErrorIsThrownAnewEachTime) {
  const std::exception_ptr kept = std::make_exception_ptr(NotFound("gone"));
  for (const char* op : {"first", "second"}) {
    try {
      RethrowCopy(kept);
    } catch (NotFound& error) {
      error.SetOpType(op);
      EXPECT_EQ(error.op_type(), op);
    }
  }
}

}  // namespace
}  // namespace headrace
