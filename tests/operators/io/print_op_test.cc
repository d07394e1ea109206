#include "framework/errors.h"
#include "framework/testing/op_test.h"

namespace headrace {
namespace {

std::string Printed(OpTest& test) {
  test.NotDeterministic();
  testing::internal::CaptureStderr();
  test.Run();
  return testing::internal::GetCapturedStderr();
}

TEST(Print, ShowsTheTensorAndPassesItOn) {
  OpTest test("print");
  test.In<float>("In", {3, 1}, {1, 2.5f, -3}, {{0, 1, 3}}).Out("Out").Attr("message", std::string("here:"));
  EXPECT_EQ(Printed(test), "here: In_0: float32 [3, 1], LoD [[0, 1, 3]], [1, 2.5, -3]\n");
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{1, 2.5f, -3}));
  EXPECT_EQ(test.Output("Out").lod(), (LoD{{0, 1, 3}}));
}

TEST(Print, ShowsOnlyTheFirstElements) {
  OpTest test("print");
  test.In<int64_t>("In", {4}, {1, 2, 3, 4}).Out("Out").Attr("summarize", 2);
  EXPECT_EQ(Printed(test), "In_0: int64 [4], [1, 2, ...]\n");
  test.Attr("summarize", -1);
  EXPECT_EQ(Printed(test), "In_0: int64 [4], [1, 2, 3, 4]\n");
}

TEST(Print, ShowsBytesAsNumbers) {
  OpTest test("print");
  test.In<uint8_t>("In", {2}, {65, 200}).Out("Out");
  EXPECT_EQ(Printed(test), "In_0: uint8 [2], [65, 200]\n");
}

TEST(Print, PassesTheGradientBack) {
  OpTest test("print");
  test.In<double>("In", {2}, {1, 2}).Out("Out").Attr("summarize", 0);
  testing::internal::CaptureStderr();
  test.CheckGradient({"In"}, {"Out"});
  testing::internal::GetCapturedStderr();
}

TEST(Print, ShowsWhatItsAttributesSay) {
  OpTest test("print");
  test.In<float>("In", {2}, {1, 2}, {{0, 2}}).Out("Out").Attr("print_tensor_name", false);
  EXPECT_EQ(Printed(test), "float32 [2], LoD [[0, 2]], [1, 2]\n");
  test.Attr("print_tensor_type", false).Attr("print_tensor_shape", false).Attr("print_tensor_lod", false);
  EXPECT_EQ(Printed(test), "[1, 2]\n");
  test.Attr("print_phase", std::string("BACKWARD"));
  EXPECT_EQ(Printed(test), "");
  EXPECT_EQ(test.Get<float>("Out"), (std::vector<float>{1, 2}));
  test.Attr("print_phase", std::string("backward"));
  ExpectRunThrows<InvalidArgument>(test, "print_phase", "'backward'");
}

}  // namespace
}  // namespace headrace
