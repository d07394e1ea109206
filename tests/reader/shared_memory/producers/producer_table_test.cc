#include "reader/shared_memory/producers/producer_table.h"

#include <memory>
#include <vector>

#include "framework/errors.h"
#include "gtest/gtest.h"
#include "reader/shared_memory/arena/arena.h"
#include "tests/reader/shared_memory/transport_test_util.h"

namespace headrace::shared_memory {
namespace {

class ProducerTableTest : public ::testing::Test {
 protected:
  static ProducerDeath DeathOf(uint32_t id) {
    ProducerDeath death;
    death.producer = id;
    return death;
  }
  std::vector<uint32_t> TakeDeaths() {
    std::vector<uint32_t> ids;
    for (const ProducerDeath& death : table_.TakeDeaths()) {
      ids.push_back(death.producer);
    }
    return ids;
  }

  const std::shared_ptr<Arena> arena_ = Arena::Create(SmallOptions(8, 4).arena);
  ControlBlock& control_ = arena_->control();
  ProducerTable table_{control_};
};

TEST_F(ProducerTableTest, TellsOfDeathsOnceAndKeepsThem) {
  table_.Report(DeathOf(2));
  table_.Report(DeathOf(5));
  EXPECT_TRUE(table_.TellOfDeaths());
  EXPECT_FALSE(table_.TellOfDeaths());
  EXPECT_TRUE(table_.has_deaths());
  EXPECT_EQ(TakeDeaths(), (std::vector<uint32_t>{2, 5}));
  EXPECT_FALSE(table_.has_deaths());
}

TEST_F(ProducerTableTest, TakenDeathsAreNotToldOf) {
  table_.Report(DeathOf(2));
  EXPECT_EQ(TakeDeaths(), std::vector<uint32_t>{2});
  EXPECT_FALSE(table_.TellOfDeaths());
}

TEST_F(ProducerTableTest, RetiringForgetsADeath) {
  table_.Report(DeathOf(2));
  table_.Report(DeathOf(5));
  table_.Retire(2);
  EXPECT_TRUE(table_.IsRetired(2));
  EXPECT_FALSE(table_.HasRetired(2));  // it has not said so
  EXPECT_TRUE(table_.TellOfDeaths());
  table_.Report(DeathOf(5));
  table_.Retire(5);
  EXPECT_FALSE(table_.TellOfDeaths());
  EXPECT_TRUE(TakeDeaths().empty());
}

TEST_F(ProducerTableTest, AClearedNumberStartsAnew) {
  ProducerRecord& record = control_.producers[70];
  record.busy = 1;
  control_.sleepers[70 / 64] = uint64_t{1} << 70 % 64 | 1;
  table_.Retire(70);
  EXPECT_FALSE(table_.Clear(70));
  EXPECT_FALSE(table_.IsRetired(70));
  EXPECT_EQ(record.busy, 0);
  EXPECT_EQ(record.retirement, Retirement::kServes);
  EXPECT_EQ(control_.sleepers[70 / 64], 1U) << "the other sleepers";
}

TEST_F(ProducerTableTest, ItIsKnownOnceThatOneWasKilledForWhatItWrote) {
  SKIP_WITHOUT_FORK();
  ChildProcess child([] { pause(); });
  table_.Watch(3, child.pidfd(), 2);
  EXPECT_EQ(table_.end(), 5U);
  EXPECT_THROW(table_.Watch(4, child.pidfd(), 1), AlreadyExists);
  table_.KillCorrupt(9);  // nobody
  table_.KillCorrupt(4);
  child.Join();
  EXPECT_EQ(table_.TakeEnded(), (std::vector<uint32_t>{3, 4}));
  EXPECT_FALSE(table_.Clear(3));
  EXPECT_TRUE(table_.Clear(4));
  EXPECT_FALSE(table_.Clear(4));
}

TEST_F(ProducerTableTest, NumbersHaveALimit) {
  EXPECT_NO_THROW(ProducerTable::CheckId(kMaxProducers - 1));
  EXPECT_THROW(ProducerTable::CheckId(kMaxProducers), OutOfRange);
}

}  // namespace
}  // namespace headrace::shared_memory
