// How the processors are shared by all models.

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "engine/core/executor/executor_threads.h"

namespace recsys {
namespace {

class Noting : public Slots::Waiter {
 public:
  Noting(std::vector<std::string>* granted, std::string name)
      : granted_(granted), name_(std::move(name)) {}
  void Granted() override { granted_->push_back(name_); }

 private:
  std::vector<std::string>* granted_;
  const std::string name_;
};

using Names = std::vector<std::string>;

class SlotsTest : public testing::Test {
 protected:
  Slots slots_{2};
  Names granted_;
  Noting a_{&granted_, "a"}, b_{&granted_, "b"};
};

TEST_F(SlotsTest, AreTakenUntilNoneIsLeft) {
  EXPECT_TRUE(slots_.Take(&a_));
  EXPECT_TRUE(slots_.Take(&a_));
  EXPECT_EQ(slots_.num_free(), 0);
  EXPECT_FALSE(slots_.Take(&b_));
  slots_.Release();
  EXPECT_EQ(granted_, Names{"b"});
  EXPECT_EQ(slots_.num_taken(), 2);
  slots_.Release();
  slots_.Release();
  EXPECT_EQ(slots_.num_taken(), 0);
}

TEST_F(SlotsTest, GoToThoseWhoWaitInTurn) {
  slots_.Take(&a_);
  slots_.Take(&a_);
  EXPECT_FALSE(slots_.Take(&b_));
  EXPECT_FALSE(slots_.Take(&a_));
  EXPECT_FALSE(slots_.Take(&b_));
  EXPECT_FALSE(slots_.Keep());
  EXPECT_FALSE(slots_.Keep());
  EXPECT_TRUE(slots_.Keep());
  EXPECT_EQ(granted_, (Names{"b", "a"}));
}

TEST_F(SlotsTest, AreKeptWhileOthersWait) {
  slots_.Take(&a_);
  slots_.Take(&a_);
  slots_.Take(&b_);
  EXPECT_FALSE(slots_.ReleaseUnlessWaiting());
  EXPECT_EQ(slots_.num_taken(), 2);
  slots_.Release();
  EXPECT_EQ(granted_, Names{"b"});
  EXPECT_TRUE(slots_.ReleaseUnlessWaiting());
  EXPECT_EQ(slots_.num_taken(), 1);
}

TEST_F(SlotsTest, AreIdleOnlyWhereNoneIsTaken) {
  EXPECT_TRUE(slots_.TakeIfIdle());
  EXPECT_FALSE(slots_.TakeIfIdle());
  slots_.Release();
  EXPECT_TRUE(slots_.TakeIfIdle());
}

TEST_F(SlotsTest, MoreOfThemGoToThoseWhoWait) {
  slots_.Take(&a_);
  slots_.Take(&a_);
  slots_.Take(&a_);
  slots_.Take(&b_);
  slots_.SetAtLeast(1);
  EXPECT_EQ(granted_, Names());
  slots_.SetAtLeast(4);
  EXPECT_EQ(granted_, (Names{"a", "b"}));
  EXPECT_EQ(slots_.num_taken(), 4);
}

TEST_F(SlotsTest, FewerOfThemAreGivenBackFirst) {
  slots_.Take(&a_);
  slots_.Take(&a_);
  slots_.Set(1);
  slots_.Take(&b_);
  slots_.Release();
  EXPECT_EQ(granted_, Names());
  slots_.Release();
  EXPECT_EQ(granted_, Names{"b"});
}

TEST_F(SlotsTest, WhoIsForgottenGetsNone) {
  slots_.Take(&a_);
  slots_.Take(&a_);
  slots_.Take(&b_);
  slots_.Forget(&b_);
  EXPECT_FALSE(slots_.has_waiting());
  slots_.Release();
  EXPECT_EQ(granted_, Names());
  EXPECT_EQ(slots_.num_taken(), 1);
}

TEST_F(SlotsTest, AreNeverMoreThanThereAre) {
  class Waiting : public Slots::Waiter {
   public:
    void Granted() override { has_slot = true; }
    std::atomic<bool> has_slot{false};
  };
  std::atomic<int> num_at_work{0}, most{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      Waiting waiter;
      for (int round = 0; round < 2'000; ++round) {
        waiter.has_slot = false;
        if (!slots_.Take(&waiter)) {
          while (!waiter.has_slot) std::this_thread::yield();
        }
        const int now = ++num_at_work;
        if (now > most) most = now;
        --num_at_work;
        if (round % 2 == 0 || !slots_.ReleaseUnlessWaiting()) slots_.Release();
      }
      slots_.Forget(&waiter);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, 2);
  EXPECT_EQ(slots_.num_taken(), 0);
}

}  // namespace
}  // namespace recsys
