#include "framework/profiler.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace headrace {
namespace {

using Kind = ProfiledSpan::Kind;

TEST(Profiler, RecordsFromStartToStop) {
  Profiler::Record(Kind::kOperator, "before", Profiler::Now(), 1);
  EXPECT_FALSE(Profiler::is_on());
  Profiler::Start();
  EXPECT_TRUE(Profiler::is_on());
  const uint64_t begin = Profiler::Now();
  Profiler::Record(Kind::kReader, "read", begin, 12);
  std::thread([] { Profiler::Record(Kind::kOperator, "elsewhere", Profiler::Now(), 0); }).join();
  const std::vector<ProfiledSpan> spans = Profiler::Stop();
  Profiler::Record(Kind::kOperator, "after", Profiler::Now(), 1);
  EXPECT_FALSE(Profiler::is_on());
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].kind, Kind::kReader);
  EXPECT_EQ(spans[0].name, "read");
  EXPECT_EQ(spans[0].bytes, 12U);
  EXPECT_EQ(spans[0].begin_ns, begin);
  EXPECT_GE(spans[0].end_ns, begin);
  EXPECT_EQ(spans[1].name, "elsewhere");
  EXPECT_NE(spans[0].thread, spans[1].thread);
  EXPECT_TRUE(Profiler::Stop().empty());
}

TEST(Profiler, StartForgets) {
  Profiler::Start();
  Profiler::Record(Kind::kOperator, "old", Profiler::Now(), 0);
  Profiler::Start();
  Profiler::Record(Kind::kOperator, "new", Profiler::Now(), 0);
  const std::vector<ProfiledSpan> spans = Profiler::Stop();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].name, "new");
}

}  // namespace
}  // namespace headrace
