// Clients that hold or flood a port: each ends its own connection, and the port counts it.

#include <gtest/gtest.h>

#include <functional>

#include "base/clock.h"
#include "echo_method.h"
#include "port/rpc_server.h"
#include "raw_client.h"
#include "tests/port/threads.h"

namespace recsys::http2 {
namespace {

const std::string kEcho = "/test.Echo/Echo";
const std::string kHang = "/test.Echo/Hang";
const std::string kUnread = "/test.Echo/Unread";
const std::string kTalk = "/test.Echo/Talk";
const std::string kCancel = Number(8);
constexpr int kTurn = 10;
constexpr std::size_t kFrameHead = 9;

/// Never reads.
class Unreading final : public StreamHandler {
 public:
  explicit Unreading(std::shared_ptr<StreamCall> call) : call_(std::move(call)) {}
  void OnMessage(Bytes) override {}
  void OnHalfClose() override {}
  void OnCancelled() override {}

 private:
  std::shared_ptr<StreamCall> call_;
};

/// Answers some messages at a time.
class Talking final : public StreamHandler {
 public:
  explicit Talking(std::shared_ptr<StreamCall> call) : call_(std::move(call)) { call_->Read(); }
  void OnMessage(Bytes) override {
    if (++num_messages_ % kTurn == 0) {
      for (int i = 0; i < kTurn; ++i) {
        Message answer;
        answer.parts.push_back(Bytes{"y", nullptr});
        call_->Write(std::move(answer), {});
      }
    }
    call_->Read();
  }
  void OnHalfClose() override {}
  void OnCancelled() override {}

 private:
  std::shared_ptr<StreamCall> call_;
  int num_messages_ = 0;
};

class Floods : public testing::Test {
 protected:
  void Serve() {
    Service service = ServiceWithEcho();
    service.methods["Hang"].unary = [](std::shared_ptr<UnaryCall>, Bytes) { return nullptr; };
    service.methods["Unread"].stream = [](std::shared_ptr<StreamCall> call) {
      return std::make_shared<Unreading>(std::move(call));
    };
    service.methods["Talk"].stream = [](std::shared_ptr<StreamCall> call) {
      return std::make_shared<Talking>(std::move(call));
    };
    options_.num_threads = TestThreads();
    options_.balance = RestlessBalance();
    server_ = std::make_unique<RpcServer>(options_, std::vector{service});
  }
  /// Whether another client is answered.
  bool IsServed() {
    RawClient other(server_->port());
    other.Send(Hello() + Opened(kEcho) + MessageFrame("x"));
    const auto data = other.Await(kData);
    return data && data->payload.back() == 'x';
  }
  /// Sends pieces until the connection ends, which it must within `most` of them, by a GOAWAY.
  void ExpectCalm(const std::string& start, const std::function<std::string(int)>& piece,
                  int most) {
    RawClient client(server_->port());
    client.Send(Hello() + start);
    for (int i = 0; i < most; ++i) {
      if (!client.Send(piece(i))) break;
    }
    const auto goaway = client.Await(kGoaway);
    ASSERT_TRUE(goaway);
    EXPECT_EQ(goaway->ErrorCode(), kEnhanceYourCalm);
    EXPECT_FALSE(client.Next());
    EXPECT_FALSE(client.is_open());
    EXPECT_TRUE(IsServed());
  }
  /// Waits for a counter that another thread moves.
  static bool Reaches(const std::atomic<std::int64_t>& counter, std::int64_t value) {
    const double until_s = MonotonicSeconds() + kPatienceS;
    while (counter.load() != value && MonotonicSeconds() < until_s) {
    }
    return counter.load() == value;
  }

  /// Whether all calls and sessions are gone.
  bool HoldsLittle() {
    constexpr std::int64_t kMostBytes = 64 << 10;
    const double until_s = MonotonicSeconds() + kPatienceS;
    while (server_->counters().held_bytes > kMostBytes && MonotonicSeconds() < until_s) {
    }
    return server_->counters().held_bytes <= kMostBytes;
  }

  RpcOptions options_;
  std::unique_ptr<RpcServer> server_;
};

std::uint32_t Stream(int i) { return static_cast<std::uint32_t>(2 * i + 1); }

TEST_F(Floods, ResetCallsEndTheConnection) {
  options_.connections.max_resets_per_s = 10;
  Serve();
  ExpectCalm(
      {},
      [](int i) {
        return Opened(kHang, Stream(i)) + MessageFrame("x", Stream(i)) +
               Frame(kReset, 0, Stream(i), kCancel);
      },
      300);
  EXPECT_EQ(server_->counters().closed_resets, 1);
  EXPECT_GE(server_->counters().resets, 100);
}

TEST_F(Floods, ResetsThatAClientProvokesCountAsItsOwn) {
  options_.connections.max_resets_per_s = 10;
  Serve();
  ExpectCalm(
      {},
      [](int i) {
        // More room than there may be.
        return Opened(kHang, Stream(i)) + Frame(kWindow, 0, Stream(i), Number(0x7fffffff));
      },
      300);
  EXPECT_EQ(server_->counters().closed_resets, 1);
}

TEST_F(Floods, AnsweredCallsAllowForResets) {
  options_.connections.max_resets_per_s = 1;
  Serve();
  RawClient client(server_->port());
  client.Send(Hello());
  for (int i = 0; i < 200; ++i) {
    const std::uint32_t first = Stream(2 * i), second = Stream(2 * i + 1);
    client.Send(Opened(kEcho, first) + MessageFrame("x", first) + Opened(kHang, second) +
                MessageFrame("x", second));
    ASSERT_TRUE(client.Await(kData)) << i;
    client.Send(Frame(kReset, 0, second, kCancel));
  }
  EXPECT_EQ(server_->counters().closed_resets, 0);
}

TEST_F(Floods, FramesWithoutDataEndTheConnection) {
  options_.connections.max_control_frames_per_s = 20;
  Serve();
  const std::string frames[] = {Frame(kPing, 0, 0, "8 bytes!"),
                                Frame(kSettings, 0, 0, Number(3, 2) + Number(100)),
                                Frame(kData, 0, 1),
                                Frame(kWindow, 0, 1, Number(1)),
                                Frame(kWindow, 0, 0, Number(1)),
                                Frame(kPriority, 0, 3, Number(0) + "\x10")};
  std::int64_t num_closed = 0;
  for (const std::string& frame : frames) {
    ExpectCalm(
        Opened(kHang), [&](int) { return frame; }, 300);
    EXPECT_EQ(server_->counters().closed_control_frames, ++num_closed);
  }
}

TEST_F(Floods, AnsweredMessagesAllowForSmallFrames) {
  options_.connections.max_control_frames_per_s = 2;
  Serve();
  RawClient client(server_->port());
  client.Send(Hello() + Opened(kTalk));
  std::string turn;
  for (int i = 0; i < kTurn; ++i) turn += MessageFrame("x", 1, 0);
  for (int i = 0; i < 50; ++i) {
    client.Send(turn);
    std::size_t num_bytes = 0;
    while (num_bytes < kTurn * MessageFrame("y").size() - kTurn * kFrameHead) {
      const auto data = client.Await(kData);
      ASSERT_TRUE(data) << i;
      num_bytes += data->payload.size();
    }
  }
  EXPECT_EQ(server_->counters().closed_control_frames, 0);
}

TEST_F(Floods, HeaderFieldsWithoutEndEndTheConnection) {
  Serve();
  // One field that is remembered, then named by a byte each time.
  const std::string bomb = std::string("\x40") + "\x06x-bomb" + "\x64" + std::string(100, 'a') +
                           std::string(8000, static_cast<char>(0x80 | 62));
  ExpectCalm(
      {}, [&](int i) { return Frame(kHeaders, kEndHeaders, Stream(i), CallFields(kEcho) + bomb); },
      3);
  EXPECT_EQ(server_->counters().closed_headers, 1);
  EXPECT_EQ(server_->counters().closed_control_frames, 0);
  RawClient client(server_->port());
  client.Send(Hello() + Frame(kHeaders, 0, 1, CallFields(kEcho)));
  const std::string more = Frame(kContinuation, 0, 1, Field("x-more", std::string(100, 'a')));
  for (int i = 0; i < 1000 && client.Send(more); ++i) {
  }
  EXPECT_FALSE(client.Await(kData));
  EXPECT_FALSE(client.is_open());
}

// Opened before any of them holds much.
std::string ManyOpened(const std::string& more = {}) {
  std::string calls;
  for (int i = 0; i < 100; ++i) calls += Opened(kEcho, Stream(i), more);
  return calls;
}

TEST_F(Floods, UnfinishedMessagesOfOneConnectionAreBounded) {
  options_.connections.max_connection_bytes = 1 << 20;
  options_.connections.max_message_bytes = 1 << 19;
  Serve();
  // Within the first window of each call.
  ExpectCalm(
      ManyOpened(),
      [](int i) {
        return Frame(kData, 0, Stream(i), std::string("\0\0\5\0\0", 5) + std::string(16000, 'x'));
      },
      100);
  EXPECT_EQ(server_->counters().closed_memory, 1);
  EXPECT_TRUE(HoldsLittle());
}

TEST_F(Floods, AnswersThatNobodyTakesAreBounded) {
  options_.connections.max_connection_bytes = 1 << 20;
  options_.connections.max_message_bytes = 1 << 19;
  Serve();
  const std::string text(16000, 'x');
  // The client's window is 0: all answers wait.
  ExpectCalm(
      Frame(kSettings, 0, 0, Number(4, 2) + Number(0)) + ManyOpened(),
      [&](int i) { return MessageFrame(text, Stream(i)); }, 100);
  EXPECT_EQ(server_->counters().closed_memory, 1);
  EXPECT_TRUE(HoldsLittle());
}

TEST_F(Floods, ThePortsMemoryIsTakenFromWhoHoldsMost) {
  options_.connections.max_port_bytes = 1 << 20;
  options_.connections.max_message_bytes = 1 << 19;
  Serve();
  const auto unfinished = [](int i) {
    return Frame(kData, 0, Stream(i), std::string("\0\0\1\0\0", 5) + std::string(16000, 'x')) +
           Frame(kData, 0, Stream(i), std::string(16000, 'x'));
  };
  RawClient small(server_->port());
  small.Send(Hello() + Opened(kEcho) + unfinished(0));
  ExpectCalm(ManyOpened(), unfinished, 100);
  EXPECT_EQ(server_->counters().closed_memory, 1);
  // The other one goes on.
  small.Send(Opened(kEcho, 3) + MessageFrame("y", 3));
  EXPECT_TRUE(small.Await(kData));
}

TEST_F(Floods, HeadersOfCallsThatSendNothingAreCountedAndBounded) {
  constexpr std::int64_t kMostBytes = 2 << 20;
  options_.connections.max_connection_bytes = kMostBytes;
  options_.connections.max_message_bytes = 1 << 19;
  Serve();
  std::string more;
  for (int i = 0; i < 80; ++i) more += Field("x-more", std::string(100, 'a'));
  RawClient client(server_->port());
  client.Send(Hello() + ManyOpened(more));
  for (int i = 100; i < 400; ++i) client.Send(Opened(kEcho, Stream(i), more));
  client.Send(Frame(kPing, 0, 0, "8 bytes!"));
  // Beyond the bound, calls end at once; the connection goes on.
  ASSERT_TRUE(client.Await(kPing)) << server_->counters().closed_memory;
  EXPECT_GE(server_->counters().refused_calls, 100);
  EXPECT_GE(server_->counters().held_bytes, kMostBytes / 2);
  EXPECT_LE(server_->counters().held_bytes, kMostBytes);
  client.Send(MessageFrame("x"));
  EXPECT_TRUE(client.Await(kData));
  EXPECT_EQ(server_->counters().closed_memory, 0);
}

TEST_F(Floods, APortThatIsHalfFullRefusesCallsOfThoseWhoHoldMoreThanTheirShare) {
  options_.connections.max_port_bytes = 2 << 20;
  options_.connections.max_message_bytes = 1 << 19;
  Serve();
  std::string more;
  for (int i = 0; i < 80; ++i) more += Field("x-more", std::string(100, 'a'));
  RawClient one(server_->port());
  RawClient two(server_->port());
  // Of several threads, one could fill its connection before another has opened the next.
  ASSERT_TRUE(Reaches(server_->counters().num_open, 2));
  for (RawClient* client : {&one, &two}) {
    client->Send(Hello() + ManyOpened(more) + Frame(kPing, 0, 0, "8 bytes!"));
    ASSERT_TRUE(client->Await(kPing));
  }
  EXPECT_GE(server_->counters().refused_calls, 1);
  EXPECT_LE(server_->counters().held_bytes, 2 << 20);
  EXPECT_TRUE(IsServed());
  EXPECT_EQ(server_->counters().closed_memory, 0);
}

TEST_F(Floods, ACallWhoseMessageNeverComesEnds) {
  options_.connections.message_timeout_s = 0.1;
  Serve();
  RawClient client(server_->port());
  client.Send(Hello() + Opened(kUnread, 1) + Opened(kEcho, 3));
  const auto trailers = client.Await(kHeaders);
  ASSERT_TRUE(trailers);
  EXPECT_EQ(trailers->stream, 3);
  EXPECT_TRUE(trailers->flags & kEndStream);
  EXPECT_EQ(server_->counters().stalled_messages, 1);
}

TEST_F(Floods, WhatAStreamDoesNotReadStaysWithinItsWindow) {
  Serve();
  RawClient client(server_->port());
  client.Send(Hello() + Opened(kUnread));
  std::size_t num_sent = 0;
  for (; num_sent < 4 * 16000; num_sent += 16000) {
    client.Send(MessageFrame(std::string(15995, 'x'), 1, 0));
  }
  client.Send(Frame(kPing, 0, 0, "8 bytes!"));
  ASSERT_TRUE(client.Await(kPing));
  EXPECT_GE(server_->counters().held_bytes, 3 * 16000);
  // Beyond the window it is an error of the client.
  client.Send(MessageFrame(std::string(15995, 'x'), 1, 0));
  EXPECT_TRUE(client.Await(kReset) || !client.is_open());
}

TEST_F(Floods, SilentConnectionsAreClosed) {
  // Far apart, so that on a loaded machine too each connection meets its own.
  options_.connections.handshake_timeout_s = 0.4;
  options_.connections.first_call_timeout_s = 0.8;
  options_.connections.keepalive_s = 2.0;
  options_.connections.keepalive_timeout_s = 0.4;
  Serve();
  RawClient silent(server_->port()), idle(server_->port()), gone(server_->port());
  idle.Send(Hello());
  gone.Send(Hello() + Opened(kHang));
  EXPECT_FALSE(silent.Next());
  EXPECT_FALSE(silent.is_open());
  const auto goaway = idle.Await(kGoaway);
  ASSERT_TRUE(goaway);
  EXPECT_EQ(goaway->ErrorCode(), 0U);
  // The PING is not answered.
  EXPECT_TRUE(gone.Await(kPing));
  EXPECT_FALSE(gone.Await(kData));
  EXPECT_FALSE(gone.is_open());
  EXPECT_TRUE(Reaches(server_->counters().closed_silent, 3));
  EXPECT_TRUE(IsServed());
}

TEST_F(Floods, AMessageThatDoesNotGrowEndsItsCall) {
  options_.connections.message_timeout_s = 0.1;
  Serve();
  RawClient client(server_->port());
  client.Send(Hello() + Opened(kEcho) + Frame(kData, 0, 1, std::string("\0\0\0\1\0x", 6)));
  const auto trailers = client.Await(kHeaders);
  ASSERT_TRUE(trailers);
  EXPECT_TRUE(trailers->flags & kEndStream);
  EXPECT_EQ(server_->counters().stalled_messages, 1);
  client.Send(Opened(kEcho, 3) + MessageFrame("y", 3));
  EXPECT_TRUE(client.Await(kData));
}

TEST_F(Floods, WhatIsNoGrpcGetsAnAnswerOfHttp) {
  Serve();
  RawClient client(server_->port());
  client.Send(Hello() + Frame(kHeaders, kEndHeaders | kEndStream, 1,
                              Field(":method", "GET") + Field(":scheme", "http") +
                                  Field(":path", "/") + Field(":authority", "localhost")));
  const auto headers = client.Await(kHeaders);
  ASSERT_TRUE(headers);
  EXPECT_TRUE(headers->flags & kEndStream);
  client.Send(Opened(kEcho, 3) + MessageFrame("y", 3));
  EXPECT_TRUE(client.Await(kData));
}

TEST_F(Floods, ConnectionsThatComeAndGoAreCounted) {
  options_.connections.max_connections = 2;
  Serve();
  {
    RawClient first(server_->port()), second(server_->port()), third(server_->port());
    EXPECT_FALSE(third.Next());
    EXPECT_FALSE(third.is_open());
    EXPECT_TRUE(Reaches(server_->counters().num_open, 2));
    EXPECT_EQ(server_->counters().refused, 1);
  }
  EXPECT_TRUE(Reaches(server_->counters().num_open, 0));
  EXPECT_EQ(server_->counters().accepted, 2);
}

}  // namespace
}  // namespace recsys::http2
