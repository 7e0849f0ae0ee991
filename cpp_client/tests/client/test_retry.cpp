#include <gtest/gtest.h>

#include "client/calls/retry.h"

namespace recsys::client {
namespace {

FailedAttempt Unavailable(int num_attempts = 1, double remaining_s = 10) {
  FailedAttempt failed;
  failed.code = StatusCode::kUnavailable;
  failed.num_attempts = num_attempts;
  failed.remaining_s = remaining_s;
  return failed;
}

FailedAttempt Full(std::string_view pushback) {
  FailedAttempt failed = Unavailable();
  failed.code = StatusCode::kResourceExhausted;
  failed.pushback = Pushback::Of(pushback);
  return failed;
}

TEST(RetryWait, DoublesFromAttemptToAttemptUpToABound) {
  ClientRetries retries;
  retries.max_attempts = 10;
  retries.first_backoff_s = 0.1;
  retries.max_backoff_s = 0.5;
  EXPECT_DOUBLE_EQ(*RetryWait(retries, Unavailable(1), 1), 0.1);
  EXPECT_DOUBLE_EQ(*RetryWait(retries, Unavailable(2), 1), 0.2);
  EXPECT_DOUBLE_EQ(*RetryWait(retries, Unavailable(3), 1), 0.4);
  EXPECT_DOUBLE_EQ(*RetryWait(retries, Unavailable(4), 1), 0.5);
  EXPECT_DOUBLE_EQ(*RetryWait(retries, Unavailable(4), 0), 0.25) << "a draw of 0 halves it";
}

TEST(RetryWait, EndsWithTheLastAttempt) {
  ClientRetries retries;
  retries.max_attempts = 3;
  EXPECT_TRUE(RetryWait(retries, Unavailable(2), 0));
  EXPECT_FALSE(RetryWait(retries, Unavailable(3), 0));
  retries.max_attempts = 1;
  EXPECT_FALSE(RetryWait(retries, Unavailable(1), 0));
}

TEST(RetryWait, TriesNothingElseAgain) {
  for (int number = 1; number <= 16; ++number) {
    FailedAttempt failed = Unavailable();
    failed.code = static_cast<StatusCode>(number);
    const bool expected = failed.code == StatusCode::kUnavailable;
    EXPECT_EQ(RetryWait({}, failed, 0).has_value(), expected) << StatusName(failed.code);
  }
}

TEST(RetryWait, AFullQueueIsAskedAgainAfterTheTimeThatItNames) {
  EXPECT_DOUBLE_EQ(*RetryWait({}, Full("250"), 0), 0.25);
  EXPECT_DOUBLE_EQ(*RetryWait({}, Full("250"), 1), 0.275) << "clients do not come back all at once";
  EXPECT_DOUBLE_EQ(*RetryWait({}, Full("0"), 0), 0);
}

TEST(RetryWait, AMessageThatIsTooLargeIsNotSentAgain) {
  FailedAttempt failed = Unavailable();
  failed.code = StatusCode::kResourceExhausted;
  EXPECT_FALSE(RetryWait({}, failed, 0));
}

TEST(RetryWait, AServerMayForbidIt) {
  for (const char* text : {"-1", "", "soon", "1.5", "99999999999999999999", "10 "}) {
    FailedAttempt failed = Unavailable();
    failed.pushback = Pushback::Of(text);
    EXPECT_FALSE(RetryWait({}, failed, 0)) << text;
  }
}

TEST(RetryWait, NeverWaitsUntilTheDeadline) {
  FailedAttempt failed = Full("250");
  failed.remaining_s = 0.25;
  EXPECT_FALSE(RetryWait({}, failed, 0));
  failed.remaining_s = 0.26;
  EXPECT_TRUE(RetryWait({}, failed, 0));
}

TEST(RetryBudget, BoundsRetriesToAShareOfTheCallsAndABurst) {
  ClientRetries retries;
  retries.budget_share = 0.1;
  retries.budget_burst = 3;
  RetryBudget budget(retries);
  int num_spent = 0;
  for (int call = 0; call < 500; ++call) {
    budget.Earn();
    while (budget.Spend()) ++num_spent;
  }
  EXPECT_EQ(num_spent, 3 + 50);
}

TEST(RetryBudget, AQuietTimeSavesUpForNoStorm) {
  ClientRetries retries;
  retries.budget_share = 0.1;
  retries.budget_burst = 0;
  RetryBudget budget(retries);
  for (int call = 0; call < 100'000; ++call) budget.Earn();
  int num_spent = 0;
  while (budget.Spend()) ++num_spent;
  EXPECT_EQ(num_spent, 100);
}

}  // namespace
}  // namespace recsys::client
