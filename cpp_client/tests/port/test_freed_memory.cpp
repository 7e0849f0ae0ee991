// When memory that connections have freed goes back to the system.

#include <gtest/gtest.h>

#include <cstdint>

#include "port/polling/freed_memory.h"

namespace recsys::http2 {
namespace {

constexpr std::int64_t kMuch = 400 << 20;

class FreedMemoryTest : public testing::Test {
 protected:
  /// One period with so much held at first, and then; returns how often memory was returned.
  int Period(std::int64_t first_bytes, std::int64_t last_bytes) {
    num_returned_ = 0;
    memory_.Note(first_bytes, now_s_);
    memory_.Note(last_bytes, now_s_);
    now_s_ += FreedMemory::kPeriodS;
    timers_.Fire(now_s_);
    return num_returned_;
  }

  double now_s_ = 0;
  int num_returned_ = 0;
  Timers timers_;
  FreedMemory memory_{&timers_, [this] { ++num_returned_; }};
};

TEST_F(FreedMemoryTest, IsReturnedOnceAfterAFlood) {
  EXPECT_EQ(Period(kMuch, kMuch), 0);
  EXPECT_EQ(Period(kMuch, 0), 0);
  EXPECT_EQ(Period(0, 0), 1);
  EXPECT_EQ(Period(0, 0), 0);
  // Nothing is left to look for: the thread may sleep.
  EXPECT_EQ(timers_.next_s(), kNever);
}

TEST_F(FreedMemoryTest, IsKeptByALoadThatComesAndGoes) {
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Period(kMuch, 0), 0);
  EXPECT_EQ(Period(0, 0), 1);
}

TEST_F(FreedMemoryTest, IsReturnedAgainAfterTheNextFlood) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Period(kMuch, 0), 0);
    EXPECT_EQ(Period(0, 0), 1);
  }
}

TEST_F(FreedMemoryTest, IsReturnedInStepsByAFloodThatFades) {
  EXPECT_EQ(Period(kMuch, kMuch / 2), 0);
  EXPECT_EQ(Period(kMuch / 2, kMuch / 2), 1);
  EXPECT_EQ(Period(kMuch / 2, 0), 0);
  EXPECT_EQ(Period(0, 0), 1);
}

TEST_F(FreedMemoryTest, OfLittleIsKept) {
  EXPECT_EQ(Period(FreedMemory::kLeastBytes - 1, 0), 0);
  EXPECT_EQ(timers_.next_s(), kNever);
}

}  // namespace
}  // namespace recsys::http2
