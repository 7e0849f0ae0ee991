// The native sender against a server in the same process.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bench/sender.h"
#include "tests/client/fake_server.h"

namespace recsys::bench {
namespace {

constexpr char kPredict[] = "/recsys.v1.PredictionService/Predict";

/// Requests of 1, 2, ... rows; the number of rows is the kind, too.
Requests RequestsOf(int count, bool is_recording = false) {
  Requests requests;
  for (int i = 0; i < count; ++i) {
    v1::PredictRequest message;
    message.set_num_rows(i + 1);
    const grpc::Slice slice(message.SerializeAsString());
    requests.prepared.push_back({grpc::ByteBuffer(&slice, 1), i + 1, i, 0});
    requests.offsets_s.push_back(0.02 * i);
  }
  requests.num_kinds = static_cast<std::size_t>(count);
  requests.is_recording = is_recording;
  return requests;
}

Step Closed(int num_in_flight) {
  Step step;
  step.warm_up_s = 0.05;
  step.duration_s = 0.3;
  step.num_in_flight = num_in_flight;
  return step;
}

Step Open(double rate_per_s, int max_in_flight = 10'000) {
  Step step = Closed(0);
  step.rate_per_s = rate_per_s;
  step.max_in_flight = max_in_flight;
  return step;
}

class SenderTest : public testing::Test {
 protected:
  Measured Run(Step step, Requests requests, int num_lanes = 1, double timeout_s = 30) {
    Sender sender({server_.address(), kPredict, std::nullopt, 2 * num_lanes, timeout_s},
                  std::move(requests), num_lanes, 1);
    EXPECT_TRUE(sender.Connect(10));
    step.start_s = MonotonicSeconds() + 0.02;
    sender.Start(step);
    while (!sender.Wait(0.1)) {
    }
    return sender.Take();
  }

  FakeServer server_;
};

TEST_F(SenderTest, AClosedLoopKeepsSoManyRequestsUnanswered) {
  std::atomic<int> num_open{0}, most_open{0};
  server_.service.on_predict = [&](auto*, const auto& request, auto* response) {
    const int open = ++num_open;
    for (int most = most_open; open > most && !most_open.compare_exchange_weak(most, open);) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    --num_open;
    return FakeService::Score(request, response);
  };
  const Measured measured = Run(Closed(6), RequestsOf(3), 2);
  EXPECT_EQ(most_open, 6);
  EXPECT_GT(measured.num_in_time, 20);
  EXPECT_GE(measured.latencies.sum_ns(), measured.latencies.count() * 2'000'000);
  EXPECT_EQ(measured.cpu_shares.size(), 2U);
  for (const Measured::Kind& kind : measured.kinds) EXPECT_GT(kind.latencies.count(), 0);
  const auto peers = server_.service.peers();
  EXPECT_EQ(std::set<std::string>(peers.begin(), peers.end()).size(), 4U);
}

TEST_F(SenderTest, AnOpenLoopSendsWhateverBecomesOfEarlierRequests) {
  // The server pauses for the first 200 ms: what is due meanwhile waits, and that is counted.
  const double opens_s = MonotonicSeconds() + 0.25;
  server_.service.on_predict = [&](auto*, const auto& request, auto* response) {
    const double wait_s = opens_s - MonotonicSeconds();
    if (wait_s > 0) std::this_thread::sleep_for(std::chrono::duration<double>(wait_s));
    return FakeService::Score(request, response);
  };
  const Measured measured = Run(Open(200), RequestsOf(1));
  EXPECT_GT(measured.latencies.count(), 20);
  EXPECT_GT(measured.latencies.max_ns(), 50'000'000) << "requests waited for the server";
  EXPECT_EQ(measured.lags.count(), measured.latencies.count());
  EXPECT_LT(measured.lags.sum_ns() / measured.lags.count(), 50'000'000)
      << "and were sent all the same";
  EXPECT_EQ(measured.cpu_shares.size(), 2U) << "of the thread that sends and the one that receives";
}

TEST_F(SenderTest, RequestsBeyondMaxInFlightFailUnsent) {
  server_.service.on_predict = [&](auto*, const auto& request, auto* response) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return FakeService::Score(request, response);
  };
  const Measured measured = Run(Open(500, 4), RequestsOf(1));
  EXPECT_GT(measured.errors.at(kNotSent).count, 50);
  EXPECT_EQ(measured.errors.at(kNotSent).text, "4 earlier requests were unanswered");
}

TEST_F(SenderTest, FailedRequestsAreCountedByTheirCodes) {
  std::atomic<int> count{0};
  server_.service.on_predict = [&](auto*, const auto& request, auto* response) {
    if (count++ % 2 == 0) return FakeService::Score(request, response);
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full");
  };
  const Measured measured = Run(Closed(4), RequestsOf(1));
  EXPECT_GT(measured.errors.at(grpc::StatusCode::RESOURCE_EXHAUSTED).count, 0);
  EXPECT_EQ(measured.errors.at(grpc::StatusCode::RESOURCE_EXHAUSTED).text, "the queue is full");
}

TEST_F(SenderTest, ADeadlineOfARequestTakesThePlaceOfTheTimeout) {
  server_.service.on_predict = [&](auto*, const auto& request, auto* response) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return FakeService::Score(request, response);
  };
  Requests requests = RequestsOf(1);
  requests.prepared[0].deadline_s = 0.02;
  const Measured measured = Run(Closed(2), std::move(requests));
  EXPECT_EQ(measured.latencies.count(), 0);
  EXPECT_GT(measured.errors.at(grpc::StatusCode::DEADLINE_EXCEEDED).count, 0);
}

TEST_F(SenderTest, ARecordingIsSentOnceInItsOrder) {
  for (const bool has_pace : {true, false}) {
    Step step = has_pace ? Open(0) : Closed(1);
    step.warm_up_s = 0;
    step.duration_s = std::numeric_limits<double>::infinity();
    const std::size_t before = server_.service.requests().size();
    const double began_s = MonotonicSeconds();
    const Measured measured = Run(step, RequestsOf(10, true));
    EXPECT_EQ(measured.num_in_time, 10);
    EXPECT_EQ(measured.num_rows, 55);
    if (has_pace) {
      EXPECT_GE(measured.ended_s - began_s, 0.18);
    } else {
      const auto requests = server_.service.requests();
      ASSERT_EQ(requests.size(), before + 10);
      for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(requests[before + static_cast<std::size_t>(i)].num_rows(), i + 1);
      }
    }
  }
}

TEST_F(SenderTest, LanesShareARecording) {
  Step step = Closed(4);
  step.warm_up_s = 0;
  const Measured measured = Run(step, RequestsOf(11, true), 3);
  EXPECT_EQ(measured.num_rows, 66);
}

TEST_F(SenderTest, ASenderThatIsDestroyedCancelsWhatIsUnderWay) {
  server_.service.on_predict = [](auto* context, const auto&, auto*) {
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return grpc::Status::CANCELLED;
  };
  for (Step step : {Closed(2), Open(100), Open(0.001)}) {
    const double began_s = MonotonicSeconds();
    {
      Sender sender({server_.address(), kPredict, std::nullopt, 1, 3600}, RequestsOf(1), 1, 1);
      ASSERT_TRUE(sender.Connect(10));
      step.start_s = MonotonicSeconds();
      step.duration_s = 3600;
      sender.Start(step);
      EXPECT_FALSE(sender.Wait(0.2));
    }
    EXPECT_LT(MonotonicSeconds() - began_s, 60);
  }
}

TEST_F(SenderTest, RefusesWhatItCannotShareOrPace) {
  EXPECT_THROW(Sender({server_.address(), kPredict, std::nullopt, 1, 30}, RequestsOf(1), 2, 1),
               std::invalid_argument);
  Sender sender({server_.address(), kPredict, std::nullopt, 1, 30}, RequestsOf(1), 1, 1);
  EXPECT_THROW(sender.Start(Open(0)), std::invalid_argument);
}

TEST(Sender, WithoutAServerThereIsNoConnection) {
  std::string address;
  {
    FakeServer server;
    address = server.address();
  }
  Sender sender({address, kPredict, std::nullopt, 1, 30}, RequestsOf(1), 1, 1);
  EXPECT_FALSE(sender.Connect(0.3));
}

}  // namespace
}  // namespace recsys::bench
