#include "framework/selected_rows.h"

#include <gtest/gtest.h>

#include <limits>

#include "framework/errors.h"

namespace headrace {
namespace {

SelectedRows Sample() {
  SelectedRows x;
  *x.mutable_rows() = {3, 0, 3};
  x.set_height(4);
  x.mutable_value()->Resize({3, 2, 5}).mutable_data<float>();
  return x;
}

TEST(SelectedRows, StandForAWholeTensor) {
  const SelectedRows x = Sample();
  EXPECT_EQ(x.complete_dims(), (DDim{4, 2, 5}));
  EXPECT_NO_THROW(x.Check());
}

TEST(SelectedRows, WithoutAHeightAreAsTallAsTheirRows) {
  SelectedRows x = Sample();
  x.set_height(0);
  EXPECT_NO_THROW(x.Check());
  EXPECT_EQ(x.complete_dims(), (DDim{4, 2, 5}));
  for (const int64_t row : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    (*x.mutable_rows())[1] = row;
    EXPECT_THROW(x.Check(), OutOfRange);
  }
  EXPECT_EQ(SelectedRows().complete_dims(), DDim{0});
}

TEST(SelectedRows, NoRowsStandForZero) {
  SelectedRows x;
  x.set_height(4);
  x.mutable_value()->Resize({0, 2}).mutable_data<float>();
  EXPECT_NO_THROW(x.Check());
}

TEST(SelectedRows, NeedAValue) { EXPECT_THROW(SelectedRows().Check(), FailedPrecondition); }

TEST(SelectedRows, NeedAValueForEachRow) {
  SelectedRows x = Sample();
  x.mutable_rows()->push_back(1);
  EXPECT_THROW(x.Check(), InvalidArgument);
  x.mutable_value()->Resize({});
  EXPECT_THROW(x.Check(), InvalidArgument);
}

TEST(SelectedRows, RowsAreThoseOfTheTensor) {
  for (const int64_t row : {int64_t{4}, int64_t{-1}}) {
    SelectedRows x = Sample();
    (*x.mutable_rows())[1] = row;
    EXPECT_THROW(x.Check(), OutOfRange);
  }
}

}  // namespace
}  // namespace headrace
