// OpTest: that it finds what is wrong.
#include "framework/testing/op_test.h"

#include <gtest/gtest-spi.h>

#include <functional>
#include <string>
#include <utility>

namespace headrace {
namespace {

// The messages of the checks that fail in `function`.
std::string FailuresOf(const std::function<void()>& function) {
  testing::TestPartResultArray results;
  {
    using Reporter = testing::ScopedFakeTestPartResultReporter;
    const Reporter reporter(Reporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    function();
  }
  std::string messages;
  for (int i = 0; i < results.size(); ++i) {
    messages += results.GetTestPartResult(i).message();
  }
  return messages;
}

OpTest Faulty(const std::string& fault, bool known = false) {
  OpTest test("test_faulty");
  test.In<double>("X", {3, 2}, Numbers(6, -1, 1), {{0, 1, 3}}).Attr("fault", fault).Out("Out");
  if (known) {
    test.Known("X");
  }
  return test;
}

std::string FailuresOfRun(OpTest test) {
  return FailuresOf([&test] { test.Run(); });
}

std::string FailuresOfGradient(OpTest test) {
  return FailuresOf([&test] { test.CheckGradient({"X"}, {"Out"}); });
}

TEST(OpTest, PassesWhatIsRight) {
  EXPECT_EQ(FailuresOfRun(Faulty("")), "");
  EXPECT_EQ(FailuresOfGradient(Faulty("")), "");
}

TEST(OpTest, FindsDimsThatAreInferredWronglyFromUnknownOnes) {
  ExpectContains(FailuresOfRun(Faulty("dims")), {"test_faulty, Out_out_0: inferred [77, 2], actual [3, 2]"});
  EXPECT_EQ(FailuresOfRun(Faulty("gradient dims")), "");
  ExpectContains(FailuresOfGradient(Faulty("gradient dims")),
                 {"test_faulty_grad, X_0@GRAD: inferred [77, 2], actual [3, 2]"});
}

TEST(OpTest, LeavesDimsThatAreKnownAsTheyAre) {
  EXPECT_EQ(FailuresOfRun(Faulty("dims", true)), "");
  EXPECT_EQ(FailuresOfGradient(Faulty("gradient dims", true)), "");
}

TEST(OpTest, FindsLoDsThatAreDeclaredWrongly) {
  ExpectContains(FailuresOfRun(Faulty("LoD")), {"test_faulty, Out_out_0: LoD levels"});
  ExpectContains(FailuresOfGradient(Faulty("gradient LoD")), {"test_faulty_grad, X_0@GRAD: LoD levels"});
}

TEST(OpTest, FindsGradientsThatNeedALoD) {
  ExpectContains(FailuresOfGradient(Faulty("gradient without LoD")), {"test_faulty in float32: d/dX_0[0]"});
}

TEST(OpTest, FindsResultsThatMustNotBeWrittenInPlace) {
  ExpectContains(FailuresOfRun(Faulty("in place")),
                 {"test_faulty: Out_out_0 differs where Out_out_0 has the memory of X_0", "(as one variable)"});
  OpTest random = Faulty("in place");
  random.NotDeterministic();
  EXPECT_EQ(FailuresOfRun(std::move(random)), "");
  EXPECT_EQ(FailuresOfRun(Faulty("gradient in place")), "");
  ExpectContains(FailuresOfGradient(Faulty("gradient in place")),
                 {"test_faulty_grad: X_0@GRAD differs where X_0@GRAD has the memory of Out_out_0@GRAD"});
}

TEST(OpTest, FindsElementsThatAreReadThoughOnlyTheShapeMayBe) {
  EXPECT_EQ(FailuresOfRun(Faulty("gradient shape only")), "");
  ExpectContains(FailuresOfGradient(Faulty("gradient shape only")), {"test_faulty_grad: ", "X_0 has no elements"});
}

}  // namespace
}  // namespace headrace
