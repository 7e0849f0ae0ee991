// Connections take turns at having their answers delivered.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "port/polling/posted_calls.h"

namespace recsys::http2 {
namespace {

using Delivered = std::vector<std::uint64_t>;

class FakeCall {
 public:
  FakeCall(std::uint64_t connection, Delivered* delivered)
      : connection_(connection), delivered_(delivered) {}
  std::uint64_t connection_number() const { return connection_; }
  void Deliver() { delivered_->push_back(connection_); }

 private:
  const std::uint64_t connection_;
  Delivered* const delivered_;
};

class PostedCallsTest : public testing::Test {
 protected:
  void Post(std::uint64_t connection, int num = 1) {
    for (int i = 0; i < num; ++i) {
      posted_.push_back(std::make_shared<FakeCall>(connection, &delivered_));
    }
  }
  Delivered Deliver(std::size_t at_most) {
    delivered_.clear();
    calls_.Deliver(&posted_, at_most);
    EXPECT_TRUE(posted_.empty());
    return delivered_;
  }

  PostedCalls<FakeCall> calls_;
  PostedCalls<FakeCall>::Calls posted_;
  Delivered delivered_;
};

TEST_F(PostedCallsTest, FewAreDeliveredInOrder) {
  Post(1), Post(2), Post(1);
  EXPECT_EQ(Deliver(4), (Delivered{1, 2, 1}));
  EXPECT_TRUE(calls_.is_empty());
}

TEST_F(PostedCallsTest, ANeighbourDoesNotWaitForAllOfAnother) {
  Post(1, 1'000);
  Post(2);
  EXPECT_EQ(Deliver(4), (Delivered{1, 1, 2}));
  EXPECT_FALSE(calls_.is_empty());
  EXPECT_EQ(Deliver(4), (Delivered{1, 1, 1, 1}));
  // It comes behind 994 others, and is delivered with the next.
  Post(2);
  EXPECT_EQ(Deliver(4), (Delivered{1, 1, 2}));
}

TEST_F(PostedCallsTest, EachConnectionHasOneDeliveredHoweverManyThereAre) {
  for (std::uint64_t connection = 1; connection <= 400; ++connection) Post(connection, 10);
  Post(401);
  const Delivered delivered = Deliver(64);
  EXPECT_EQ(delivered.size(), 401);
  EXPECT_EQ(delivered.back(), 401);
}

TEST_F(PostedCallsTest, AllAreDeliveredInTheEnd) {
  Post(1, 100);
  Post(2, 10);
  std::size_t num = 0;
  do {
    num += Deliver(8).size();
  } while (!calls_.is_empty());
  EXPECT_EQ(num, 110);
}

}  // namespace
}  // namespace recsys::http2
