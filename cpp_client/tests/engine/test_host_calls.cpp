// Calls that the engine's owner answers.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/calls/host_calls.h"
#include "tests/protocols/fake_calls.h"

namespace recsys {
namespace {

class HostCallsTest : public testing::Test {
 protected:
  std::vector<CallEvent> events_;
  bool has_room_ = true;
  const std::shared_ptr<HostCalls> calls_ = std::make_shared<HostCalls>([this](CallEvent event) {
    if (has_room_) events_.push_back(std::move(event));
    return has_room_;
  });
};

TEST_F(HostCallsTest, AUnaryCallIsAnsweredByItsIdOnce) {
  CallFacts facts;
  facts.deadline_s = 7;
  const auto first = std::make_shared<FakeUnaryCall>(facts),
             second = std::make_shared<FakeUnaryCall>();
  const Method method = calls_->UnaryMethod();
  method.unary(first, Bytes::Of("one"));
  method.unary(second, Bytes::Of("two"));
  ASSERT_EQ(events_.size(), 2U);
  EXPECT_EQ(events_[0].message, "one");
  EXPECT_EQ(events_[0].deadline_s, 7);
  EXPECT_EQ(events_[0].peer, "fake");
  EXPECT_TRUE(events_[0].is_last);
  EXPECT_FALSE(events_[1].deadline_s.has_value());
  calls_->Answer(events_[1].id, "second");
  calls_->Answer(events_[1].id, "again");
  calls_->Fail(events_[0].id, {StatusCode::kNotFound, "none", 0});
  EXPECT_EQ(second->Wait().second, "second");
  EXPECT_EQ(first->Wait().first.code, StatusCode::kNotFound);
  EXPECT_EQ(first->num_ends() + second->num_ends(), 2);
  EXPECT_EQ(calls_->num_open(), 0);
}

TEST_F(HostCallsTest, AnAnswerToACallWhoseClientHasGoneIsDropped) {
  const auto call = std::make_shared<FakeUnaryCall>();
  calls_->UnaryMethod().unary(call, Bytes::Of(""))->Cancelled();
  calls_->Answer(events_[0].id, "late");
  EXPECT_EQ(call->num_ends(), 0);
  EXPECT_EQ(calls_->num_open(), 0);
}

TEST_F(HostCallsTest, WhereThereIsNoRoomTheCallIsRefused) {
  has_room_ = false;
  const auto call = std::make_shared<FakeUnaryCall>();
  EXPECT_EQ(calls_->UnaryMethod().unary(call, Bytes::Of("")), nullptr);
  EXPECT_EQ(call->Wait().first.code, StatusCode::kResourceExhausted);
  const auto stream = std::make_shared<FakeStreamCall>();
  calls_->StreamMethod().stream(stream)->OnMessage(Bytes::Of(""));
  EXPECT_EQ(stream->WaitForEnd().code, StatusCode::kResourceExhausted);
  EXPECT_EQ(calls_->num_open(), 0);
}

TEST_F(HostCallsTest, AStreamIsReadOnAfterEachAnswerAndEndsWithItsClient) {
  const auto call = std::make_shared<FakeStreamCall>();
  const auto stream = calls_->StreamMethod().stream(call);
  EXPECT_EQ(call->num_reads(), 1);
  for (int i = 0; i < 3; ++i) {
    stream->OnMessage(Bytes::Of(std::to_string(i)));
    EXPECT_EQ(call->num_reads(), i + 1);
    EXPECT_EQ(events_.back().message, std::to_string(i));
    EXPECT_FALSE(events_.back().is_last);
    calls_->Answer(events_[0].id, "to " + std::to_string(i));
    EXPECT_EQ(call->num_reads(), i + 2);
  }
  stream->OnHalfClose();
  EXPECT_TRUE(call->WaitForEnd().ok());
  EXPECT_EQ(call->WaitForAnswers(3), (std::vector<std::string>{"to 0", "to 1", "to 2"}));
  calls_->Answer(events_[0].id, "late");
  EXPECT_EQ(call->num_ends(), 1);
}

TEST_F(HostCallsTest, AStreamCanBeFailed) {
  const auto call = std::make_shared<FakeStreamCall>();
  const auto stream = calls_->StreamMethod().stream(call);
  stream->OnMessage(Bytes::Of(""));
  calls_->Fail(events_[0].id, {StatusCode::kPermissionDenied, "no", 0});
  EXPECT_EQ(call->WaitForEnd().code, StatusCode::kPermissionDenied);
  EXPECT_EQ(calls_->num_open(), 0);
}

CallFacts FactsOf(std::uint64_t connection_number) {
  CallFacts facts;
  facts.connection_number = connection_number;
  return facts;
}

TEST_F(HostCallsTest, ConnectionsTakeTurns) {
  const Method method = calls_->UnaryMethod();
  std::vector<std::shared_ptr<FakeUnaryCall>> many;
  for (int i = 0; i < 100; ++i) {
    many.push_back(std::make_shared<FakeUnaryCall>(FactsOf(1)));
    method.unary(many.back(), Bytes::Of(std::to_string(i)));
  }
  const auto one = std::make_shared<FakeUnaryCall>(FactsOf(2));
  method.unary(one, Bytes::Of("one"));
  // The neighbour's call is forwarded beside the first of the others.
  ASSERT_EQ(events_.size(), HostCalls::kAtOnce + 1);
  EXPECT_EQ(events_.back().message, "one");
  for (std::size_t i = 0; i < events_.size(); ++i) calls_->Answer(events_[i].id, "yes");
  // All were forwarded once, in order, each once an earlier one was answered.
  ASSERT_EQ(events_.size(), 101U);
  for (const auto& call : many) EXPECT_EQ(call->Wait().second, "yes");
  EXPECT_EQ(events_.back().message, "99");
  EXPECT_EQ(calls_->num_open(), 0);
}

TEST_F(HostCallsTest, AWaitingCallWhoseClientHasGoneIsPassedOver) {
  const Method method = calls_->UnaryMethod();
  std::vector<std::shared_ptr<UnaryHandler>> handlers;
  for (int i = 0; i < 10; ++i) {
    handlers.push_back(
        method.unary(std::make_shared<FakeUnaryCall>(FactsOf(1)), Bytes::Of(std::to_string(i))));
  }
  handlers[HostCalls::kAtOnce]->Cancelled();
  calls_->Answer(events_[0].id, "yes");
  EXPECT_EQ(events_.back().message, std::to_string(HostCalls::kAtOnce + 1));
  for (const auto& handler : handlers) handler->Cancelled();
  EXPECT_EQ(calls_->num_open(), 0);
  method.unary(std::make_shared<FakeUnaryCall>(FactsOf(1)), Bytes::Of("again"));
  EXPECT_EQ(events_.back().message, "again");
}

TEST_F(HostCallsTest, AFullRoomRefusesThoseWhoHaveMoreThanTheirShare) {
  const auto calls = std::make_shared<HostCalls>(
      [this](CallEvent event) {
        events_.push_back(std::move(event));
        return true;
      },
      RingLimits{20, 1 << 20});
  const Method method = calls->UnaryMethod();
  std::vector<std::shared_ptr<FakeUnaryCall>> many;
  for (int i = 0; i < 50; ++i) {
    many.push_back(std::make_shared<FakeUnaryCall>(FactsOf(1)));
    method.unary(many.back(), Bytes::Of("many"));
  }
  EXPECT_EQ(many.back()->Wait().first.code, StatusCode::kResourceExhausted);
  std::vector<std::shared_ptr<FakeUnaryCall>> few;
  for (int i = 0; i < 8; ++i) {
    few.push_back(std::make_shared<FakeUnaryCall>(FactsOf(2)));
    method.unary(few.back(), Bytes::Of("few"));
  }
  for (const auto& call : few) EXPECT_EQ(call->num_ends(), 0);
}

}  // namespace
}  // namespace recsys
