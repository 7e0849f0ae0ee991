// A connection whose nghttp2 session cannot take something, as without memory: it is closed,
// instead of leaving a call open that will never be answered.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <nghttp2/nghttp2.h>

#include <atomic>
#include <functional>
#include <string_view>

#include "base/clock.h"
#include "echo_method.h"
#include "port/rpc_server.h"
#include "raw_client.h"
#include "tests/port/threads.h"

namespace {

/// The name of the function of nghttp2 that fails.
std::atomic<const char*> failing{""};

bool Fails(std::string_view name) { return name == failing.load(); }

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// The program calls these in place of the library's.
extern "C" {

int nghttp2_submit_response(nghttp2_session* session, std::int32_t stream_id,
                            const nghttp2_nv* fields, std::size_t num_fields,
                            const nghttp2_data_provider* provider) {
  if (Fails(__func__)) return NGHTTP2_ERR_NOMEM;
  return Real<decltype(nghttp2_submit_response)>(__func__)(session, stream_id, fields, num_fields,
                                                           provider);
}

int nghttp2_submit_trailer(nghttp2_session* session, std::int32_t stream_id,
                           const nghttp2_nv* fields, std::size_t num_fields) {
  if (Fails(__func__)) return NGHTTP2_ERR_NOMEM;
  return Real<decltype(nghttp2_submit_trailer)>(__func__)(session, stream_id, fields, num_fields);
}

int nghttp2_submit_rst_stream(nghttp2_session* session, std::uint8_t flags, std::int32_t stream_id,
                              std::uint32_t code) {
  if (Fails(__func__)) return NGHTTP2_ERR_NOMEM;
  return Real<decltype(nghttp2_submit_rst_stream)>(__func__)(session, flags, stream_id, code);
}

int nghttp2_session_resume_data(nghttp2_session* session, std::int32_t stream_id) {
  if (Fails(__func__)) return NGHTTP2_ERR_NOMEM;
  return Real<decltype(nghttp2_session_resume_data)>(__func__)(session, stream_id);
}

int nghttp2_session_set_local_window_size(nghttp2_session* session, std::uint8_t flags,
                                          std::int32_t stream_id, std::int32_t window) {
  // A session is opened with a window of its own.
  if (stream_id != 0 && Fails(__func__)) return NGHTTP2_ERR_NOMEM;
  return Real<decltype(nghttp2_session_set_local_window_size)>(__func__)(session, flags, stream_id,
                                                                         window);
}

int nghttp2_session_consume_stream(nghttp2_session* session, std::int32_t stream_id,
                                   std::size_t num_bytes) {
  if (Fails(__func__)) return NGHTTP2_ERR_NOMEM;
  return Real<decltype(nghttp2_session_consume_stream)>(__func__)(session, stream_id, num_bytes);
}

}  // extern "C"

namespace recsys::http2 {
namespace {

const std::string kEcho = "/test.Echo/Echo";
const std::string kHang = "/test.Echo/Hang";
const std::string kTalk = "/test.Echo/Talk";
constexpr std::uint32_t kInternalError = 2;

/// Answers each message.
class Talking final : public StreamHandler {
 public:
  explicit Talking(std::shared_ptr<StreamCall> call) : call_(std::move(call)) { call_->Read(); }
  void OnMessage(Bytes message) override {
    Message answer;
    answer.parts.push_back(std::move(message));
    call_->Write(std::move(answer), {});
    call_->Read();
  }
  void OnHalfClose() override {}
  void OnCancelled() override {}

 private:
  std::shared_ptr<StreamCall> call_;
};

class FailingSession : public testing::Test {
 protected:
  FailingSession() {
    Service service = ServiceWithEcho();
    service.methods["Hang"].unary = [](std::shared_ptr<UnaryCall>, Bytes) { return nullptr; };
    service.methods["Talk"].stream = [](std::shared_ptr<StreamCall> call) {
      return std::make_shared<Talking>(std::move(call));
    };
    RpcOptions options;
    options.num_threads = TestThreads();
    options.balance = RestlessBalance();
    server_ = std::make_unique<RpcServer>(options, std::vector{service});
  }
  ~FailingSession() override { failing = ""; }

  /// Opens a call that stays open, and one that is answered after `first`; then `function` fails
  /// when the client sends `last`.
  void ExpectClosed(const char* function, const std::string& last, const std::string& first = {}) {
    RawClient client(server_->port());
    client.Send(Hello() + Opened(kHang, 1) + MessageFrame("x", 1) + first);
    if (!first.empty()) {
      ASSERT_TRUE(client.Await(kData));
    } else {
      client.Send(Frame(kPing, 0, 0, "8 bytes!"));
      ASSERT_TRUE(client.Await(kPing));
    }
    failing = function;
    client.Send(last);
    const auto goaway = client.Await(kGoaway);
    failing = "";
    ASSERT_TRUE(goaway);
    EXPECT_EQ(goaway->ErrorCode(), kInternalError);
    EXPECT_FALSE(client.Next());
    EXPECT_FALSE(client.is_open());
    RawClient other(server_->port());
    other.Send(Hello() + Opened(kEcho) + MessageFrame("x"));
    EXPECT_TRUE(other.Await(kData));
  }

  std::unique_ptr<RpcServer> server_;
};

TEST_F(FailingSession, AnAnswerThatCannotBeginEndsTheConnection) {
  ExpectClosed("nghttp2_submit_response", Opened(kEcho, 3) + MessageFrame("y", 3));
}

TEST_F(FailingSession, AnErrorThatCannotBeSentEndsTheConnection) {
  ExpectClosed("nghttp2_submit_response", Opened("/test.Echo/Unknown", 3));
}

TEST_F(FailingSession, ARefusalThatCannotBeSentEndsTheConnection) {
  ExpectClosed("nghttp2_submit_response",
               Frame(kHeaders, kEndHeaders | kEndStream, 3,
                     Field(":method", "GET") + Field(":scheme", "http") + Field(":path", "/") +
                         Field(":authority", "localhost")));
}

TEST_F(FailingSession, AnAnswerThatCannotEndEndsTheConnection) {
  ExpectClosed("nghttp2_submit_trailer", Opened(kEcho, 3) + MessageFrame("y", 3));
}

TEST_F(FailingSession, AStreamThatCannotGoOnEndsTheConnection) {
  ExpectClosed("nghttp2_session_resume_data", MessageFrame("z", 3, 0),
               Opened(kTalk, 3) + MessageFrame("y", 3, 0));
}

TEST_F(FailingSession, ACallThatCannotBeCutShortEndsTheConnection) {
  ExpectClosed("nghttp2_submit_rst_stream", Opened("/test.Echo/Unknown", 3));
}

TEST_F(FailingSession, AWindowThatCannotGrowEndsTheConnection) {
  constexpr std::uint32_t kLarge = 1 << 20;
  ExpectClosed("nghttp2_session_set_local_window_size",
               Opened(kEcho, 3) + Frame(kData, 0, 3, std::string(1, '\0') + Number(kLarge) + "x"));
  ExpectClosed("nghttp2_session_consume_stream", Opened(kTalk, 3) + MessageFrame("y", 3, 0));
}

}  // namespace
}  // namespace recsys::http2
