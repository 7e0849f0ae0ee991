// Calls with many requests and answers, over real sockets.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "bench/peers/echo_stream.h"
#include "echo.h"
#include "tests/port/threads.h"

namespace recsys {
namespace {

using grpc::StatusCode;

/// What the server's side of a stream hears, in order.
class Recorder final : public StreamHandler {
 public:
  Recorder(std::shared_ptr<StreamCall> call, Mailbox<std::string>* heard)
      : call_(std::move(call)), heard_(heard) {}
  void OnMessage(Bytes message) override {
    heard_->Put("message " + std::string(message.view.substr(0, 20)));
  }
  void OnHalfClose() override { heard_->Put("half-close"); }
  void OnCancelled() override { heard_->Put("cancelled"); }

 private:
  std::shared_ptr<StreamCall> call_;
  Mailbox<std::string>* heard_;
};

/// A client's side, a step at a time.
class ClientStream {
 public:
  explicit ClientStream(std::shared_ptr<grpc::Channel> channel) : stub_(std::move(channel)) {
    stream_ = stub_.PrepareCall(&context_, "/test.Echo/Stream", &queue_);
    stream_->StartCall(this);
    Step();
  }
  ~ClientStream() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  bool Send(const std::string& text) {
    stream_->Write(BufferOf(text), this);
    return Step();
  }
  bool Close() {
    stream_->WritesDone(this);
    return Step();
  }
  std::optional<std::string> Receive() {
    grpc::ByteBuffer buffer;
    stream_->Read(&buffer, this);
    if (!Step()) return std::nullopt;
    return TextOf(buffer);
  }
  grpc::Status Finish() {
    grpc::Status status;
    stream_->Finish(&status, this);
    Step();
    return status;
  }
  void Cancel() { context_.TryCancel(); }

 private:
  bool Step() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

class Stream : public testing::Test {
 protected:
  /// The stream's handler is a recorder; the test acts on the call itself.
  void ServeRecorder() {
    echo_.stream = [this](std::shared_ptr<StreamCall> call) {
      calls_.Put(call);
      return std::make_shared<Recorder>(call, &heard_);
    };
    server_ = std::make_unique<RpcServer>(Options(TestThreads()), std::vector{echo_.Made()});
  }
  void ServeEcho(int num_threads = TestThreads()) {
    echo_.stream = [](std::shared_ptr<StreamCall> call) {
      call->Read();
      return std::make_shared<EchoStream>(call);
    };
    server_ = std::make_unique<RpcServer>(Options(num_threads), std::vector{echo_.Made()});
  }
  static RpcOptions Options(int num_threads) {
    RpcOptions options;
    options.num_threads = num_threads;
    options.balance = RestlessBalance();
    return options;
  }
  std::shared_ptr<grpc::Channel> NewChannel() { return ChannelTo(server_->port()); }
  bool IsIdle() { return server_->WaitUntilIdle(MonotonicSeconds() + kPatienceS); }

  EchoService echo_;
  Mailbox<std::shared_ptr<StreamCall>> calls_;
  Mailbox<std::string> heard_;
  Mailbox<bool> written_;
  std::unique_ptr<RpcServer> server_;
};

TEST_F(Stream, EachMessageIsAnsweredAndTheClientsEndIsTheStreams) {
  ServeEcho();
  ClientStream stream(NewChannel());
  for (int i = 0; i < 200; ++i) {
    const std::string text(static_cast<std::size_t>(i) * 100, static_cast<char>('a' + i % 26));
    ASSERT_TRUE(stream.Send(text));
    ASSERT_EQ(stream.Receive(), text);
  }
  stream.Close();
  EXPECT_EQ(stream.Receive(), std::nullopt);
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_TRUE(IsIdle());
}

TEST_F(Stream, AnEmptyStreamIsAHalfClose) {
  ServeEcho();
  ClientStream stream(NewChannel());
  stream.Close();
  EXPECT_EQ(stream.Receive(), std::nullopt);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(Stream, NothingIsReadThatNobodyAskedFor) {
  ServeRecorder();
  ClientStream stream(NewChannel());
  const auto call = *calls_.Take();
  stream.Send("one");
  stream.Send("two");
  call->Read();
  EXPECT_EQ(heard_.Take(), "message one");
  EXPECT_EQ(heard_.size(), 0U);
  call->Read();
  EXPECT_EQ(heard_.Take(), "message two");
  call->Finish({});
}

TEST_F(Stream, WrittenMessagesArriveInOrderAndEachIsTold) {
  ServeRecorder();
  ClientStream stream(NewChannel());
  const auto call = *calls_.Take();
  for (int i = 0; i < 20; ++i) {
    call->Write(Message::Of(std::to_string(i)), [this](bool ok) { written_.Put(ok); });
  }
  call->Finish({recsys::StatusCode::kAborted, "enough", 0});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(stream.Receive(), std::to_string(i));
  EXPECT_EQ(stream.Receive(), std::nullopt);
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "enough");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(written_.Take(), true);
  EXPECT_TRUE(IsIdle());
}

TEST_F(Stream, AClientThatLeavesIsHeardOfAndWhatWasNotWrittenIsTold) {
  ServeRecorder();
  auto stream = std::make_unique<ClientStream>(NewChannel());
  const auto call = *calls_.Take();
  stream->Cancel();
  EXPECT_EQ(heard_.Take(), "cancelled");
  call->Write(Message::Of("x"), [this](bool ok) { written_.Put(ok); });
  EXPECT_EQ(written_.Take(), false);
  call->Read();
  call->Finish({});
  EXPECT_TRUE(IsIdle());
  EXPECT_EQ(heard_.size(), 0U);
}

TEST_F(Stream, AClientThatNeverReadsLetsNothingLeaveAndItsEndFreesWhatWaits) {
  ServeRecorder();
  auto stream = std::make_unique<ClientStream>(NewChannel());
  const auto call = *calls_.Take();
  const auto owner = std::make_shared<const std::string>(1 << 20, 'x');
  // More than a connection's window and the sockets' buffers take, however far they grow.
  constexpr int kNumMessages = 64;
  std::atomic<int> num_written{0};
  for (int i = 0; i < kNumMessages; ++i) {
    Message message;
    message.parts.push_back({*owner, owner});
    call->Write(std::move(message), [&](bool ok) {
      num_written += ok ? 1 : 0;
      written_.Put(ok);
    });
  }
  stream->Cancel();
  for (int i = 0; i < kNumMessages; ++i) ASSERT_TRUE(written_.Take());
  EXPECT_LT(num_written, kNumMessages);
  EXPECT_TRUE(IsIdle());
  stream = nullptr;
  server_ = nullptr;
  EXPECT_EQ(owner.use_count(), 1);
}

TEST_F(Stream, TheHandlerIsLetGoOfWithTheStream) {
  std::weak_ptr<StreamHandler> handler;
  echo_.stream = [&handler](std::shared_ptr<StreamCall> call) {
    call->Read();
    auto made = std::make_shared<EchoStream>(std::move(call));
    handler = made;
    return made;
  };
  server_ = std::make_unique<RpcServer>(RpcOptions{}, std::vector{echo_.Made()});
  {
    ClientStream stream(NewChannel());
    stream.Send("x");
    stream.Receive();
  }
  EXPECT_TRUE(IsIdle());
  EXPECT_TRUE(handler.expired());
}

TEST_F(Stream, ManyStreamsFromManyThreads) {
  ServeEcho(2);
  std::vector<std::thread> threads;
  std::atomic<int> num_right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      ClientStream stream(NewChannel());
      for (int i = 0; i < 100; ++i) {
        const std::string text = std::to_string(t * 1000 + i);
        if (stream.Send(text) && stream.Receive() == text) ++num_right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_right, 800);
}

TEST_F(Stream, AMessageBeyondTheLimitEndsTheStream) {
  ServeEcho();
  ClientStream stream(NewChannel());
  stream.Send(std::string((4 << 20) + 1, 'x'));
  EXPECT_EQ(stream.Receive(), std::nullopt);
  EXPECT_EQ(stream.Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(IsIdle());
}

TEST_F(Stream, AHandlerThatThrowsEndsTheStream) {
  echo_.stream = [](std::shared_ptr<StreamCall>) -> std::shared_ptr<StreamHandler> {
    throw std::runtime_error("secret");
  };
  server_ = std::make_unique<RpcServer>(RpcOptions{}, std::vector{echo_.Made()});
  ClientStream stream(NewChannel());
  EXPECT_EQ(stream.Finish().error_code(), StatusCode::INTERNAL);
}

}  // namespace
}  // namespace recsys
