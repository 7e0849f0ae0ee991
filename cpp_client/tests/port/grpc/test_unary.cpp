// Calls with one request and one answer, over real sockets.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "echo.h"
#include "tests/port/threads.h"

namespace recsys {
namespace {

using grpc::StatusCode;

class Unary : public testing::Test {
 protected:
  void Serve(RpcOptions options = {}) {
    options.num_threads = std::max(options.num_threads, TestThreads());
    options.balance = RestlessBalance();
    server_ = std::make_unique<RpcServer>(options, std::vector{echo_.Made()});
  }
  void SetUp() override { Serve(); }
  std::shared_ptr<grpc::Channel> NewChannel() { return ChannelTo(server_->port()); }

  EchoService echo_;
  std::unique_ptr<RpcServer> server_;
};

TEST_F(Unary, AnswersWhatItWasSentHoweverLarge) {
  const auto channel = NewChannel();
  for (const std::size_t size : {0UL, 1UL, 23UL, 24UL, 4096UL, 4097UL, 100000UL, 4194304UL}) {
    const std::string text(size, 'x');
    ClientCall call(channel, "/test.Echo/Echo", text);
    EXPECT_TRUE(call.Wait().ok()) << call.Wait().error_message();
    EXPECT_EQ(call.Text(), text);
  }
}

TEST_F(Unary, AMessageBeyondTheLimitIsRefusedAndTheConnectionGoesOn) {
  const auto channel = NewChannel();
  ClientCall large(channel, "/test.Echo/Echo", std::string((4 << 20) + 1, 'x'));
  EXPECT_EQ(large.Wait().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(large.Wait().error_message().find("4194304"), std::string::npos)
      << large.Wait().error_message();
  EXPECT_EQ(ClientCall(channel, "/test.Echo/Echo", "next").Text(), "next");
}

TEST_F(Unary, AnUnknownMethodIsUnimplemented) {
  const auto channel = NewChannel();
  for (const char* method : {"/test.Echo/Other", "/other.Echo/Echo", "/", "/test.Echo"}) {
    EXPECT_EQ(ClientCall(channel, method, "x").Wait().error_code(), StatusCode::UNIMPLEMENTED)
        << method;
  }
}

TEST_F(Unary, AFailureHasItsCodeItsTextAndTheTimeToComeAgain) {
  ClientCall call(NewChannel(), "/test.Echo/Hold", "x");
  echo_.held.Take()->call->Fail(
      {recsys::StatusCode::kResourceExhausted, "the queue is \"full\", ümläut", 17});
  EXPECT_EQ(call.Wait().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(call.Wait().error_message(), "the queue is \"full\", ümläut");
  const auto& trailers = call.context().GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(found, trailers.end());
  EXPECT_EQ(std::string(found->second.data(), found->second.size()), "17");
}

TEST_F(Unary, WhatThrowsEndsTheCallWithoutItsText) {
  ClientCall call(NewChannel(), "/test.Echo/Throw", "x");
  EXPECT_EQ(call.Wait().error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(call.Wait().error_message().find("secret"), std::string::npos);
}

TEST_F(Unary, TheFirstOfSeveralEndsCounts) {
  ClientCall call(NewChannel(), "/test.Echo/Hold", "x");
  const auto held = echo_.held.Take();
  held->call->Answer(Message::Of("first"));
  held->call->Answer(Message::Of("second"));
  held->call->Fail({recsys::StatusCode::kInternal, "third", 0});
  EXPECT_TRUE(call.Wait().ok());
  EXPECT_EQ(call.Text(), "first");
}

TEST_F(Unary, TheAnswerMayComeFromAnotherThreadInParts) {
  ClientCall call(NewChannel(), "/test.Echo/Hold", "request");
  auto held = echo_.held.Take();
  std::thread([&] {
    Message answer = Message::Of(std::string(10000, 'a'));
    answer.parts.push_back(held->request);
    answer.parts.push_back(Bytes::Of(std::string()));
    answer.parts.push_back(Bytes::Of(std::string(5000, 'b')));
    held->call->Answer(std::move(answer));
  }).join();
  EXPECT_EQ(call.Text(), std::string(10000, 'a') + "request" + std::string(5000, 'b'));
}

TEST_F(Unary, OwnersOfLargePartsAreLetGoOfOnceTheAnswerHasLeft) {
  auto call = std::make_unique<ClientCall>(NewChannel(), "/test.Echo/Hold", "x");
  const auto owner = std::make_shared<const std::string>(100000, 'x');
  Message answer;
  answer.parts.push_back({*owner, owner});
  echo_.held.Take()->call->Answer(std::move(answer));
  EXPECT_EQ(call->Text(), *owner);
  call = nullptr;
  server_ = nullptr;
  EXPECT_EQ(owner.use_count(), 1);
}

TEST_F(Unary, AClientThatGivesUpIsHeardOfOnceAndALateAnswerIsDropped) {
  ClientCall call(NewChannel(), "/test.Echo/Hold", "x");
  const auto held = echo_.held.Take();
  call.context().TryCancel();
  EXPECT_TRUE(echo_.cancelled.Take());
  held->call->Answer(Message::Of("too late"));
  held->call->Fail({recsys::StatusCode::kInternal, "too late", 0});
  EXPECT_EQ(call.Wait().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(server_->WaitUntilIdle(MonotonicSeconds() + kPatienceS));
  EXPECT_EQ(echo_.cancelled.size(), 0U);
  EXPECT_EQ(held->request.view, "x");
}

TEST_F(Unary, ADeadlineThatPassesIsHeardOf) {
  ClientCall call(NewChannel(), "/test.Echo/Hold", "x", {}, 0.05);
  const auto held = echo_.held.Take();
  EXPECT_TRUE(echo_.cancelled.Take());
  EXPECT_EQ(call.Wait().error_code(), StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(Unary, NobodyHearsOfTheEndOfAnAnsweredCall) {
  ClientCall call(NewChannel(), "/test.Echo/Hold", "x");
  echo_.held.Take()->call->Answer(Message::Of("y"));
  call.Wait();
  EXPECT_TRUE(server_->WaitUntilIdle(MonotonicSeconds() + kPatienceS));
  EXPECT_EQ(echo_.cancelled.size(), 0U);
}

TEST_F(Unary, ACallKnowsItsMetadataDeadlinePeerAndMethodAlsoWhenItIsOver) {
  const double before_s = MonotonicSeconds();
  auto call = std::make_unique<ClientCall>(
      NewChannel(), "/test.Echo/Hold", "x",
      std::map<std::string, std::string>{{"traceparent", "00-ab"}}, 30.0);
  const std::shared_ptr<UnaryCall> held = echo_.held.Take()->call;
  EXPECT_EQ(held->peer().rfind("ipv4:127.0.0.1:", 0), 0U) << held->peer();
  EXPECT_NEAR(held->deadline_s() - before_s, 30.0, 5.0);
  call = nullptr;
  EXPECT_TRUE(server_->WaitUntilIdle(MonotonicSeconds() + kPatienceS));
  EXPECT_EQ(held->Metadata("traceparent"), "00-ab");
  EXPECT_EQ(held->Metadata("missing"), "");
  EXPECT_EQ(held->CountMetadata("traceparent"), 1);
  EXPECT_EQ(held->method(), "/test.Echo/Hold");
  EXPECT_EQ(held->peer(), "");
}

TEST_F(Unary, ACallWithoutDeadlineHasAnInfiniteOne) {
  ClientCall call(NewChannel(), "/test.Echo/Hold", "x", {},
                  std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isinf(echo_.held.Take()->call->deadline_s()));
}

TEST_F(Unary, AnswersOfOtherThreadsArrive) {
  RpcOptions options;
  options.num_threads = 2;
  Serve(options);
  const auto channel = NewChannel();
  std::vector<std::unique_ptr<ClientCall>> calls;
  for (int i = 0; i < 399; ++i) {
    calls.push_back(std::make_unique<ClientCall>(channel, "/test.Echo/Hold", std::to_string(i)));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 133; ++i) {
        const auto held = echo_.held.Take();
        held->call->Answer(Message::Of(std::string(held->request.view)));
      }
    });
  }
  for (int i = 0; i < 399; ++i) {
    EXPECT_EQ(calls[static_cast<std::size_t>(i)]->Text(), std::to_string(i));
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Unary, ManyCallsAtOnceFromManyConnectionsOverSeveralThreads) {
  RpcOptions options;
  options.num_threads = 3;
  Serve(options);
  std::vector<std::unique_ptr<ClientCall>> calls;
  for (int c = 0; c < 4; ++c) {
    const auto channel = NewChannel();
    for (int i = 0; i < 500; ++i) {
      calls.push_back(std::make_unique<ClientCall>(channel, "/test.Echo/Echo", std::to_string(i)));
    }
  }
  for (std::size_t i = 0; i < calls.size(); ++i)
    EXPECT_EQ(calls[i]->Text(), std::to_string(i % 500));
}

}  // namespace
}  // namespace recsys
