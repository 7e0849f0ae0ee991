// A port as a whole: where it listens, what connections may do, how it ends.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "echo.h"
#include "port/net/listening.h"
#include "recsys/error.h"
#include "tests/port/threads.h"

namespace recsys {
namespace {

using grpc::StatusCode;

class Port : public testing::Test {
 protected:
  void Serve(RpcOptions options) {
    options.num_threads = TestThreads();
    options.balance = RestlessBalance();
    server_ = std::make_unique<RpcServer>(options, std::vector{echo_.Made()});
  }
  std::shared_ptr<grpc::Channel> NewChannel() { return ChannelTo(server_->port()); }
  bool Answers(const std::shared_ptr<grpc::Channel>& channel) {
    return ClientCall(channel, "/test.Echo/Echo", "x").Wait().ok();
  }

  EchoService echo_;
  std::unique_ptr<RpcServer> server_;
};

/// A plain connection to a port of loopback.
class Plain {
 public:
  explicit Plain(int port) : file_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ =
        connect(file_.number(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  bool is_connected() const { return is_connected_; }
  void Send(const std::string& data) {
    send(file_.number(), data.data(), data.size(), MSG_NOSIGNAL);
  }
  /// Reads until the connection ends; false where it does not.
  bool IsClosedByPeer() {
    timeval patience = {};
    patience.tv_sec = static_cast<time_t>(kPatienceS);
    setsockopt(file_.number(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    char data[4096];
    ssize_t num_read = 0;
    while ((num_read = recv(file_.number(), data, sizeof data, 0)) > 0) {
    }
    return num_read == 0;
  }

 private:
  FileHandle file_;
  bool is_connected_ = false;
};

const std::string kHello =
    std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\4\0\0\0\0\0", 9);

TEST_F(Port, ListensOnAUnixSocket) {
  RpcOptions options;
  options.host = "unix:" + testing::TempDir() + "recsys-port-" + std::to_string(getpid());
  const std::string path = options.host.substr(5);
  Serve(options);
  EXPECT_EQ(server_->port(), 0);
  EXPECT_TRUE(Answers(grpc::CreateChannel(options.host, grpc::InsecureChannelCredentials())));
  EXPECT_THROW(RpcServer(options, std::vector{echo_.Made()}), Error);
  server_.reset();
  EXPECT_EQ(unlink(path.c_str()), 0);
  options.host = "unix:/" + std::string(200, 'a');
  EXPECT_THROW(Serve(options), Error);
}

TEST_F(Port, ThatIsTakenIsAnErrorWithTheAddress) {
  Serve({});
  RpcOptions options;
  options.port = server_->port();
  const std::string where = "127.0.0.1:" + std::to_string(options.port);
  try {
    RpcServer second(options, {});
    FAIL() << "two servers on one port";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kListen);
    EXPECT_EQ(std::string(error.what()),
              "cannot listen on " + where + ": the port is taken or the address is not ours");
  }
}

TEST_F(Port, OfAnAddressThatIsNotOursIsAnError) {
  RpcOptions options;
  for (const char* host : {"192.0.2.1", "no.such.host.invalid"}) {
    options.host = host;
    try {
      RpcServer server(options, {});
      FAIL() << host;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()), "cannot listen on " + options.host +
                                               ":0: the port is taken or the address is not ours");
    }
  }
}

TEST_F(Port, OfAllAddressesTakesBothFamilies) {
  RpcOptions options;
  options.host = "::";
  try {
    Serve(options);
  } catch (const Error&) {
    GTEST_SKIP() << "no IPv6 here";
  }
  EXPECT_TRUE(Answers(NewChannel()));
}

TEST_F(Port, AServiceThatIsThereTwiceIsAFaultOfOurs) {
  EXPECT_THROW(RpcServer({}, {echo_.Made(), echo_.Made()}), Error);
}

TEST_F(Port, ConnectionsBeyondTheBoundAreRefusedUntilOthersLeave) {
  RpcOptions options;
  options.connections.max_connections = 2;
  Serve(options);
  auto first = NewChannel();
  const auto second = NewChannel();
  ASSERT_TRUE(Answers(first));
  ASSERT_TRUE(Answers(second));
  const auto third = NewChannel();
  EXPECT_EQ(ClientCall(third, "/test.Echo/Echo", "x").Wait().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Answers(first));
  EXPECT_TRUE(Answers(second));
  first = nullptr;
  // The port learns of it by and by.
  const double until_s = MonotonicSeconds() + kPatienceS;
  bool is_in = false;
  while (!is_in && MonotonicSeconds() < until_s) is_in = Answers(NewChannel());
  EXPECT_TRUE(is_in);
}

TEST_F(Port, ManyConnectionsThatComeAndGoLeaveRoomForNewOnes) {
  RpcOptions options;
  options.connections.max_connections = 8;
  Serve(options);
  for (int i = 0; i < 300; ++i) {
    Plain plain(server_->port());
    ASSERT_TRUE(plain.is_connected());
    plain.Send(kHello);
  }
  const double until_s = MonotonicSeconds() + kPatienceS;
  bool is_in = false;
  while (!is_in && MonotonicSeconds() < until_s) is_in = Answers(NewChannel());
  EXPECT_TRUE(is_in);
}

TEST_F(Port, IdleAndOldConnectionsAreClosed) {
  for (const bool is_idle : {true, false}) {
    RpcOptions options;
    (is_idle ? options.connections.max_connection_idle_s
             : options.connections.max_connection_age_s) = 0.2;
    Serve(options);
    const auto channel = NewChannel();
    ASSERT_TRUE(Answers(channel));
    Plain plain(server_->port());
    plain.Send(kHello);
    EXPECT_TRUE(plain.IsClosedByPeer());
    EXPECT_TRUE(Answers(channel));
    EXPECT_TRUE(Answers(NewChannel()));
  }
}

TEST_F(Port, CallsBeyondTheBoundOfAConnectionWaitAndNoneFails) {
  RpcOptions options;
  options.connections.max_concurrent_streams = 5;
  Serve(options);
  const auto channel = NewChannel();
  ASSERT_TRUE(Answers(channel));
  std::vector<std::unique_ptr<ClientCall>> calls;
  for (int i = 0; i < 12; ++i)
    calls.push_back(std::make_unique<ClientCall>(channel, "/test.Echo/Hold", "x"));
  std::vector<HeldCall> held;
  for (int i = 0; i < 5; ++i) held.push_back(*echo_.held.Take());
  EXPECT_EQ(echo_.held.size(), 0U);
  for (int i = 0; i < 12; ++i) {
    held[static_cast<std::size_t>(i)].call->Answer(Message::Of("y"));
    if (i < 7) held.push_back(*echo_.held.Take());
  }
  for (const auto& call : calls) EXPECT_EQ(call->Text(), "y");
}

TEST_F(Port, BytesThatAreNoCallsHurtNobodyElse) {
  Serve({});
  const auto channel = NewChannel();
  for (const std::string& data : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(1 << 16, '\0'),
                                  kHello + std::string(1000, '\xff'), kHello.substr(0, 11)}) {
    Plain plain(server_->port());
    plain.Send(data);
    EXPECT_TRUE(Answers(channel));
  }
}

TEST_F(Port, ADrainingPortEndsWhatIsOpenAndTakesNothingMore) {
  Serve({});
  const auto channel = NewChannel();
  ClientCall open(channel, "/test.Echo/Hold", "x");
  const auto held = echo_.held.Take();
  server_->Drain();
  server_->Drain();
  EXPECT_FALSE(Plain(server_->port()).is_connected());
  EXPECT_EQ(ClientCall(NewChannel(), "/test.Echo/Echo", "x").Wait().error_code(),
            StatusCode::UNAVAILABLE);
  EXPECT_FALSE(server_->WaitUntilIdle(MonotonicSeconds()));
  held->call->Answer(Message::Of("y"));
  EXPECT_EQ(open.Text(), "y");
  EXPECT_TRUE(server_->WaitUntilIdle(MonotonicSeconds() + kPatienceS));
  server_->Close();
  server_->Close();
}

TEST_F(Port, ClosingEndsWhatIsLeft) {
  Serve({});
  const auto channel = NewChannel();
  ClientCall open(channel, "/test.Echo/Hold", "x");
  const auto held = echo_.held.Take();
  server_->Close();
  EXPECT_TRUE(echo_.cancelled.Take());
  const auto code = open.Wait().error_code();
  EXPECT_TRUE(code == StatusCode::CANCELLED || code == StatusCode::UNAVAILABLE) << code;
  held->call->Answer(Message::Of("too late"));
  server_ = nullptr;
  held->call->Fail({recsys::StatusCode::kInternal, "much too late", 0});
  EXPECT_EQ(held->request.view, "x");
}

TEST_F(Port, AnswersThatRaceWithTheEndCrashNothing) {
  for (int round = 0; round < 20; ++round) {
    Serve({});
    const auto channel = NewChannel();
    std::vector<std::unique_ptr<ClientCall>> calls;
    for (int i = 0; i < 20; ++i)
      calls.push_back(std::make_unique<ClientCall>(channel, "/test.Echo/Hold", "x"));
    std::vector<HeldCall> held;
    for (int i = 0; i < 20; ++i) held.push_back(*echo_.held.Take());
    std::thread answering([&held] {
      for (const HeldCall& one : held) one.call->Answer(Message::Of(std::string(5000, 'y')));
    });
    server_->Close();
    answering.join();
    server_ = nullptr;
  }
}

}  // namespace
}  // namespace recsys
