// How long the consumer sleeps unasked.
#include "reader/shared_memory/waiting/nap.h"

#include "gtest/gtest.h"

namespace headrace::shared_memory {
namespace {

// Waits that begin without such a sleep.
int Skipped(NapLength& nap) {
  int skipped = 0;
  while (nap.Start() == 0) {
    ++skipped;
  }
  return skipped;
}

TEST(NapLengthTest, IsAsLongAsAllowedWhileProducersAreBusy) {
  NapLength nap;
  for (int wait = 0; wait < 100; ++wait) {
    EXPECT_EQ(nap.Start(), NapLength::kLongestNs);
    nap.Finish(/*came=*/true, /*idle=*/false);
  }
}

TEST(NapLengthTest, IsHalvedWhenAProducerHasNoWork) {
  NapLength nap;
  nap.Finish(/*came=*/true, /*idle=*/true);
  EXPECT_EQ(nap.Start(), NapLength::kLongestNs / 2);
  nap.Finish(/*came=*/true, /*idle=*/true);
  EXPECT_EQ(nap.Start(), NapLength::kLongestNs / 4);
  nap.Finish(/*came=*/true, /*idle=*/false);
  EXPECT_EQ(nap.Start(), NapLength::kLongestNs / 4 + NapLength::kLongestNs / 64);
}

TEST(NapLengthTest, IsDoubledWhenNoBatchCame) {
  NapLength nap;
  for (int wait = 0; wait < 3; ++wait) {
    nap.Finish(/*came=*/true, /*idle=*/true);
  }
  nap.Finish(/*came=*/false, /*idle=*/false);
  EXPECT_EQ(nap.Start(), NapLength::kLongestNs / 4);
}

TEST(NapLengthTest, SlowBatchesEndIt) {
  NapLength nap;
  for (const int skipped : {1, 3, 7, 15}) {
    nap.Finish(/*came=*/false, /*idle=*/false);
    EXPECT_EQ(Skipped(nap), skipped);
  }
  for (int wait = 0; wait < 100; ++wait) {
    nap.Finish(/*came=*/false, /*idle=*/false);
    EXPECT_LE(Skipped(nap), 1000);
  }
  nap.Finish(/*came=*/true, /*idle=*/false);
  EXPECT_EQ(Skipped(nap), 0);
}

TEST(NapLengthTest, ProducersThatAlwaysRunOutEndIt) {
  NapLength nap;
  int skipped = 0;
  for (int wait = 0; wait < 20; ++wait) {
    nap.Finish(/*came=*/true, /*idle=*/true);
    skipped += Skipped(nap);
  }
  EXPECT_EQ(nap.Start(), NapLength::kShortestNs);
  EXPECT_GT(skipped, 1000);
}

}  // namespace
}  // namespace headrace::shared_memory
