// Several polling threads, and several ports on them.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "echo_method.h"
#include "port/polling/loops.h"
#include "port/rpc_server.h"
#include "raw_client.h"

namespace recsys::http2 {
namespace {

const std::string kWho = "/test.Echo/Who";
const std::string kEcho = "/test.Echo/Echo";
const std::string kHang = "/test.Echo/Hang";

std::string NameOfThisThread() {
  std::ostringstream name;
  name << std::this_thread::get_id();
  return name.str();
}

/// Test.Echo with Who, which answers the name of the polling thread, and Hang, which never answers.
Service ServiceWithWho() {
  Service service = ServiceWithEcho();
  service.methods["Who"].unary = [](std::shared_ptr<UnaryCall> call, Bytes) {
    call->Answer(Message::Of(NameOfThisThread()));
    return nullptr;
  };
  service.methods["Hang"].unary = [](std::shared_ptr<UnaryCall>, Bytes) { return nullptr; };
  return service;
}

RpcOptions OptionsOf(std::shared_ptr<Loops> loops) {
  RpcOptions options;
  options.loops = std::move(loops);
  return options;
}

/// A connection that asks which thread polls it.
class Asking {
 public:
  explicit Asking(int port) : client_(std::make_unique<RawClient>(port)) { client_->Send(Hello()); }

  /// Returns the thread's name; empty if the connection has ended.
  std::string Ask() {
    stream_ += 2;
    client_->Send(Opened(kWho, stream_) + MessageFrame("x", stream_));
    const auto data = client_->Await(kData);
    return data ? data->payload.substr(5) : "";
  }
  /// Leaves out the streams up to this one.
  void Skip(std::uint32_t stream) { stream_ = stream; }
  RawClient& client() { return *client_; }

 private:
  std::unique_ptr<RawClient> client_;
  std::uint32_t stream_ = 0xffffffff;  // The first stream is 1.
};

template <typename Condition>
bool Becomes(Condition condition) {
  const double until_s = MonotonicSeconds() + kPatienceS;
  while (!condition() && MonotonicSeconds() < until_s) std::this_thread::yield();
  return condition();
}

/// New connections go to the loop that has the fewest, and stay there.
BalanceLimits Even() {
  BalanceLimits limits;
  limits.window_s = kNever;
  limits.take_below = 0;
  return limits;
}

RpcOptions EvenOptions(int num_threads) {
  RpcOptions options;
  options.num_threads = num_threads;
  options.balance = Even();
  return options;
}

TEST(Loops, ConnectionsWithLittleToDoShareOneThread) {
  RpcOptions options;
  options.num_threads = 3;
  RpcServer server(options, {ServiceWithWho()});
  std::vector<Asking> clients;
  std::set<std::string> threads;
  for (int i = 0; i < 12; ++i) {
    clients.emplace_back(server.port());
    threads.insert(clients.back().Ask());
  }
  EXPECT_EQ(threads.size(), 1U);
}

TEST(Loops, ANewConnectionBesideBusyThreadsGoesToTheOneThatHasTheFewest) {
  RpcServer server(EvenOptions(2), {ServiceWithWho()});
  std::map<std::string, std::vector<Asking>> clients;
  for (int i = 0; i < 6; ++i) {
    Asking client(server.port());
    const std::string thread = client.Ask();
    clients[thread].push_back(std::move(client));
  }
  ASSERT_EQ(clients.size(), 2U);
  for (const auto& [thread, of_thread] : clients) EXPECT_EQ(of_thread.size(), 3U);
  const std::string left = clients.begin()->first;
  clients.erase(left);
  ASSERT_TRUE(Becomes([&] { return server.counters().num_open == 3; }));
  std::vector<Asking> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back(server.port());
    EXPECT_EQ(others.back().Ask(), left);
  }
}

TEST(Loops, AConnectionMovesWithItsOpenCalls) {
  std::vector<std::shared_ptr<UnaryCall>> held;
  std::mutex mutex;
  Service service = ServiceWithWho();
  service.methods["Hold"].unary = [&](std::shared_ptr<UnaryCall> call, Bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    held.push_back(std::move(call));
    return nullptr;
  };
  const auto loops = std::make_shared<Loops>(2, nullptr, Even());
  RpcServer server(OptionsOf(loops), {service});
  Asking client(server.port());
  const std::string before = client.Ask();
  client.client().Send(Opened("/test.Echo/Hold", 1001) + MessageFrame("x", 1001));
  client.client().Send(Opened(kEcho, 1003) + MessageFrame("left over", 1003).substr(0, 9));
  ASSERT_TRUE(Becomes([&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return held.size() == 1;
  }));
  loops->Move({0, 1, 1});
  ASSERT_TRUE(Becomes([&] { return loops->num_moved() == 1; }));
  // A call that another thread answers, one whose message is complete only now, and a new one.
  held.front()->Answer(Message::Of("held"));
  EXPECT_EQ(client.client().Await(kData)->payload.substr(5), "held");
  client.client().Send(MessageFrame("left over", 1003).substr(9));
  EXPECT_EQ(client.client().Await(kData)->payload.substr(5), "left over");
  client.Skip(1003);
  EXPECT_NE(client.Ask(), before);
  loops->Move({1, 0, 1});
  ASSERT_TRUE(Becomes([&] { return loops->num_moved() == 2; }));
  EXPECT_EQ(client.Ask(), before);
  server.Drain();
  EXPECT_TRUE(client.client().Await(kGoaway));
}

TEST(Loops, ADeadlineHoldsAfterAMove) {
  const auto loops = std::make_shared<Loops>(2, nullptr, Even());
  RpcServer server(OptionsOf(loops), {ServiceWithWho()});
  Asking client(server.port());
  EXPECT_FALSE(client.Ask().empty());
  client.client().Send(Opened(kHang, 3, Field("grpc-timeout", "200m")) + MessageFrame("x", 3));
  loops->Move({0, 1, 1});
  ASSERT_TRUE(Becomes([&] { return loops->num_moved() == 1; }));
  std::optional<GotFrame> end;
  do {
    end = client.client().Await(kHeaders);
  } while (end && end->stream != 3);
  EXPECT_TRUE(end);
}

TEST(Loops, CallsAreAnsweredWhileConnectionsMove) {
  constexpr int kConnections = 6, kCalls = 300;
  const auto loops = std::make_shared<Loops>(3, nullptr, Even());
  auto server = std::make_unique<RpcServer>(OptionsOf(loops), std::vector{ServiceWithWho()});
  std::atomic<bool> is_over{false};
  std::thread mover([&] {
    for (std::size_t i = 0; !is_over; ++i) {
      loops->Move({i % 3, (i + 1 + i % 2) % 3, i % 5 == 0 ? 0.5 : 1});
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  std::atomic<int> num_answered{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kConnections; ++i) {
    threads.emplace_back([&, i] {
      Asking client(server->port());
      for (int j = 0; j < kCalls + 20 * i; ++j) {
        if (client.Ask().empty()) return;
        ++num_answered;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_answered, kConnections * kCalls + 20 * 15);
  EXPECT_TRUE(Becomes([&] { return server->counters().num_open == 0; }));
  EXPECT_EQ(server->counters().held_bytes, 0);
  EXPECT_GT(loops->num_moved(), 0);
  // A port ends while its connections move.
  std::vector<Asking> clients;
  for (int i = 0; i < 20; ++i) clients.emplace_back(server->port());
  for (Asking& client : clients) EXPECT_FALSE(client.Ask().empty());
  server.reset();
  is_over = true;
  mover.join();
}

TEST(Loops, BusyConnectionsAreSpread) {
  BalanceLimits limits;
  limits.window_s = 5e-3;
  limits.spread_at = 0.05;
  limits.join_below = 0;
  RpcOptions options;
  options.num_threads = 2;
  options.balance = limits;
  RpcServer server(options, {ServiceWithWho()});
  std::atomic<bool> is_over{false};
  std::mutex mutex;
  std::set<std::string> seen;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      Asking client(server.port());
      while (!is_over) {
        const std::string name = client.Ask();
        const std::lock_guard<std::mutex> lock(mutex);
        seen.insert(name);
      }
    });
  }
  EXPECT_TRUE(Becomes([&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return seen.size() == 2;
  }));
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen.count(""), 0U);
}

TEST(Loops, APortThatEndsLeavesTheOthersOnItsThreadsAlone) {
  const auto loops = std::make_shared<Loops>(2, nullptr, Even());
  RpcServer stays(OptionsOf(loops), {ServiceWithWho()});
  std::vector<Asking> clients;
  std::set<std::string> threads;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back(stays.port());
    threads.insert(clients.back().Ask());
  }
  EXPECT_EQ(threads.size(), 2U);
  for (int i = 0; i < 3; ++i) {
    RpcServer goes(OptionsOf(loops), {ServiceWithWho()});
    std::vector<Asking> others;
    for (int j = 0; j < 4; ++j) {
      others.emplace_back(goes.port());
      EXPECT_EQ(threads.count(others.back().Ask()), 1U);
    }
    others.back().client().Send(Opened(kHang, 3) + MessageFrame("x", 3));
    goes.Drain();
    EXPECT_FALSE(RawClient(goes.port()).Await(kSettings));
    goes.Close();
    EXPECT_EQ(goes.counters().num_open, 0);
    EXPECT_EQ(goes.counters().held_bytes, 0);
    EXPECT_TRUE(goes.WaitUntilIdle(MonotonicSeconds()));
    for (Asking& other : others) EXPECT_EQ(other.Ask(), "");
  }
  EXPECT_EQ(stays.counters().num_open, 4);
  for (Asking& client : clients) EXPECT_EQ(threads.count(client.Ask()), 1U);
  EXPECT_GT(loops->busy_s(), 0);
}

TEST(Loops, CountersAddUpOverThreads) {
  constexpr int kConnections = 8, kCalls = 200;
  std::atomic<int> num_answered{0};
  RpcServer server(EvenOptions(3), {ServiceWithWho()});
  std::vector<std::thread> threads;
  for (int i = 0; i < kConnections; ++i) {
    threads.emplace_back([&] {
      Asking client(server.port());
      for (int j = 0; j < kCalls; ++j) num_answered += client.Ask().empty() ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_answered, kConnections * kCalls);
  EXPECT_EQ(server.counters().accepted, kConnections);
  EXPECT_TRUE(Becomes([&] { return server.counters().num_open == 0; }));
  EXPECT_EQ(server.counters().held_bytes, 0);
  EXPECT_TRUE(server.WaitUntilIdle(MonotonicSeconds()));
}

TEST(Loops, AClosedConnectionHoldsNoBytes) {
  RpcServer server(EvenOptions(2), {ServiceWithWho()});
  for (int i = 0; i < 300; ++i) {
    EXPECT_FALSE(Asking(server.port()).Ask().empty());
    // Without sleep, which would give the other thread time for what must be done by now.
    const double until_s = MonotonicSeconds() + 5;
    while (server.counters().num_open != 0 && MonotonicSeconds() < until_s) {
    }
    ASSERT_EQ(server.counters().num_open, 0);
    ASSERT_EQ(server.counters().held_bytes, 0);
  }
}

TEST(Loops, TheBoundOnConnectionsHoldsForAllThreads) {
  RpcOptions options = EvenOptions(3);
  options.connections.max_connections = 5;
  RpcServer server(options, {ServiceWithWho()});
  std::vector<Asking> clients;
  for (int i = 0; i < 9; ++i) clients.emplace_back(server.port());
  int num_served = 0;
  for (Asking& client : clients) num_served += client.Ask().empty() ? 0 : 1;
  EXPECT_EQ(num_served, 5);
  EXPECT_EQ(server.counters().refused, 4);
}

TEST(Loops, APortClosesUnderLoad) {
  for (const int num_threads : {1, 2, 3}) {
    const auto loops = std::make_shared<Loops>(num_threads, nullptr, Even());
    auto server = std::make_unique<RpcServer>(OptionsOf(loops), std::vector{ServiceWithWho()});
    std::atomic<bool> is_over{false};
    std::atomic<int> num_answered{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 4; ++i) {
      clients.emplace_back([&, port = server->port()] {
        // Each connection asks a little: connections come and go while the port closes.
        while (!is_over) {
          Asking client(port);
          for (int j = 0; j < 20 && !client.Ask().empty(); ++j) ++num_answered;
        }
      });
    }
    ASSERT_TRUE(Becomes([&] { return num_answered > 200; }));
    server->Close();
    EXPECT_EQ(server->counters().num_open, 0);
    EXPECT_EQ(server->counters().held_bytes, 0);
    is_over = true;
    for (std::thread& client : clients) client.join();
    server.reset();
  }
}

}  // namespace
}  // namespace recsys::http2
