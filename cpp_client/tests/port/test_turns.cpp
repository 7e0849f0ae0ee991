// Connections take turns: a client with much to do delays the others by a turn, not by all of it.

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "port/rpc_server.h"
#include "raw_client.h"

namespace recsys::http2 {
namespace {

const std::string kMark = "/test.Turns/Mark";
const std::string kBlock = "/test.Turns/Block";
const std::string kTalk = "/test.Turns/Talk";
constexpr int kNumCalls = 900;
// Some turns of a connection that is alone; far fewer than its calls.
constexpr int kMost = 200;

std::uint32_t Stream(int i) { return static_cast<std::uint32_t>(2 * i + 1); }

/// The messages that the polling thread has handled, and a gate that stops it.
class Order {
 public:
  void Add(std::string_view message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    messages_.emplace_back(message);
  }
  std::vector<std::string> messages() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return messages_;
  }
  int IndexOf(const std::string& message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find(messages_.begin(), messages_.end(), message);
    return static_cast<int>(found - messages_.begin());
  }
  void Block() {
    std::unique_lock<std::mutex> lock(mutex_);
    is_blocked_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }
  void WaitUntilBlocked() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_blocked_; });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> messages_;
  bool is_blocked_ = false;
  bool is_open_ = false;
};

/// Answers each message at once.
class Talking final : public StreamHandler {
 public:
  Talking(Order* order, std::shared_ptr<StreamCall> call) : order_(order), call_(std::move(call)) {
    call_->Read();
  }
  void OnMessage(Bytes message) override {
    order_->Add(message.view);
    Message answer;
    answer.parts.push_back(std::move(message));
    call_->Write(std::move(answer), {});
    call_->Read();
  }
  void OnHalfClose() override { call_->Finish({}); }
  void OnCancelled() override {}

 private:
  Order* const order_;
  const std::shared_ptr<StreamCall> call_;
};

class Turns : public testing::Test {
 protected:
  void SetUp() override {
    Service service;
    service.name = "test.Turns";
    service.methods["Mark"].unary = [this](std::shared_ptr<UnaryCall> call, Bytes request) {
      order_.Add(request.view);
      if (call->is_light()) light_.Add(request.view);
      Message answer;
      answer.parts.push_back(std::move(request));
      call->Answer(std::move(answer));
      return nullptr;
    };
    service.methods["Block"].unary = [this](std::shared_ptr<UnaryCall> call, Bytes) {
      order_.Block();
      call->Answer({});
      return nullptr;
    };
    service.methods["Talk"].stream = [this](std::shared_ptr<StreamCall> call) {
      return std::make_shared<Talking>(&order_, std::move(call));
    };
    RpcOptions options;
    options.connections.max_control_frames_per_s = 0;
    server_ = std::make_unique<RpcServer>(options, std::vector{service});
    stopper_ = std::make_unique<RawClient>(server_->port());
    stopper_->Send(Hello() + Opened(kBlock) + MessageFrame("stop"));
    order_.WaitUntilBlocked();
  }
  void TearDown() override { order_.Open(); }

  static std::string Calls(const std::string& name) {
    std::string frames;
    for (int i = 0; i < kNumCalls; ++i) {
      frames += Opened(kMark, Stream(i)) + MessageFrame(name + std::to_string(i), Stream(i));
    }
    return frames;
  }
  /// The answers' messages, until `num` have come.
  static std::set<std::string> Answers(RawClient* client, int num) {
    std::set<std::string> answers;
    while (static_cast<int>(answers.size()) < num) {
      const auto data = client->Await(kData);
      if (!data) break;
      answers.insert(data->payload.substr(5));
    }
    return answers;
  }

  Order order_;
  /// Those of calls that are light.
  Order light_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<RawClient> stopper_;
};

TEST_F(Turns, ANeighbourWaitsForATurnAndNotForABacklog) {
  RawClient many(server_->port());
  RawClient one(server_->port());
  ASSERT_TRUE(many.Send(Hello() + Calls("many")));
  ASSERT_TRUE(one.Send(Hello() + Opened(kMark) + MessageFrame("one")));
  order_.Open();
  EXPECT_EQ(Answers(&one, 1).size(), 1);
  EXPECT_LT(order_.IndexOf("one"), kMost);
  // What was left for later is answered too, once each.
  EXPECT_EQ(Answers(&many, kNumCalls).size(), kNumCalls);
  EXPECT_EQ(light_.messages(), std::vector<std::string>{"one"});
}

TEST_F(Turns, ANewConnectionWaitsForNoBacklog) {
  std::vector<std::unique_ptr<RawClient>> floods;
  for (int i = 0; i < 8; ++i) {
    floods.push_back(std::make_unique<RawClient>(server_->port()));
    ASSERT_TRUE(floods.back()->Send(Hello() + Calls("flood" + std::to_string(i))));
  }
  RawClient late(server_->port());
  ASSERT_TRUE(late.Send(Hello() + Opened(kMark) + MessageFrame("late")));
  order_.Open();
  EXPECT_EQ(Answers(&late, 1).size(), 1);
  EXPECT_LT(order_.IndexOf("late"), 8 * kMost);
  for (const auto& flood : floods) EXPECT_EQ(Answers(flood.get(), kNumCalls).size(), kNumCalls);
}

TEST_F(Turns, MessagesOfAStreamTakeTurnsToo) {
  RawClient many(server_->port());
  std::string messages;
  for (int i = 0; i < kNumCalls; ++i) {
    messages += MessageFrame("many" + std::to_string(i), 1, 0);
  }
  ASSERT_TRUE(many.Send(Hello() + Opened(kTalk) + messages + Frame(kData, kEndStream, 1)));
  RawClient one(server_->port());
  ASSERT_TRUE(one.Send(Hello() + Opened(kMark) + MessageFrame("one")));
  order_.Open();
  EXPECT_EQ(Answers(&one, 1).size(), 1);
  EXPECT_LT(order_.IndexOf("one"), kMost);
  EXPECT_LT(order_.IndexOf("many" + std::to_string(kNumCalls - 1)), kNumCalls + 1);
  EXPECT_TRUE(many.Await(kHeaders));
  const auto trailers = many.Await(kHeaders);
  ASSERT_TRUE(trailers);
  EXPECT_NE(trailers->flags & kEndStream, 0);
}

TEST_F(Turns, AClientThatHangsUpLeavesNothingBehind) {
  {
    RawClient many(server_->port());
    ASSERT_TRUE(many.Send(Hello() + Calls("many")));
  }
  RawClient one(server_->port());
  ASSERT_TRUE(one.Send(Hello() + Opened(kMark) + MessageFrame("one")));
  order_.Open();
  EXPECT_EQ(Answers(&one, 1).size(), 1);
  one.Send(Opened(kMark, 3) + MessageFrame("two", 3));
  EXPECT_EQ(Answers(&one, 1).size(), 1);
}

}  // namespace
}  // namespace recsys::http2
