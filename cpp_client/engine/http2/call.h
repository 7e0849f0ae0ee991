#ifndef RECSYS_ENGINE_HTTP2_CALL_H_
#define RECSYS_ENGINE_HTTP2_CALL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/http2/framing/message_reader.h"
#include "engine/http2/framing/outgoing.h"
#include "engine/http2/framing/request_headers.h"
#include "engine/http2/polling/outbox.h"
#include "engine/http2/polling/timers.h"
#include "engine/rpc/service.h"

namespace recsys::http2 {

class Connection;

/// What a call is made of when its headers have come.
struct CallOrigin {
  Connection* connection = nullptr;
  int stream_id = 0;
  RequestHeaders headers;
  double deadline_s = 0;
  std::shared_ptr<const std::string> peer;
  std::shared_ptr<Outbox> outbox;
  /// Null where the port has no such method.
  const Method* method = nullptr;
  std::int64_t max_message_bytes = 0;
};

/// A call as its connection sees it: messages in, messages and a status out. All is for the polling
/// thread but for what says otherwise.
class WireCall : public Timed, public std::enable_shared_from_this<WireCall> {
 public:
  explicit WireCall(CallOrigin origin)
      : reader(origin.max_message_bytes, origin.headers.encoding()), origin_(std::move(origin)) {}
  ~WireCall() override = default;
  WireCall(const WireCall&) = delete;
  WireCall& operator=(const WireCall&) = delete;

  /// Runs what the call is for, as far as that needs no message.
  virtual void Start() = 0;
  /// Bytes were added to `reader`, or the client sends no more (`is_half_closed`).
  virtual void OnData() = 0;
  /// Another thread has posted the call to the outbox.
  virtual void Deliver() = 0;
  /// Tells the handler of an early end, once, unless the call was ended before.
  virtual void Cancel() = 0;
  /// The deadline has passed.
  void OnDue(double now_s) override;
  /// The connection has forgotten the call.
  void Over();

  int stream_id() const { return origin_.stream_id; }
  double deadline_s() const { return origin_.deadline_s; }
  const RequestHeaders& headers() const { return origin_.headers; }

  /// The connection's.
  MessageReader reader;
  OutgoingMessages outgoing;
  /// Set once the call has ended; it goes out after `outgoing`.
  std::optional<Status> end;
  bool is_half_closed = false;
  /// Whether the response headers were submitted, and whether nghttp2 waits for more data.
  bool is_begun = false;
  bool is_deferred = false;
  /// Whether bytes of the client are dropped: no message is wanted any more.
  bool is_deaf = false;
  /// Room for a large message that the connection has granted; and whether the call waits for it.
  std::size_t reserved_bytes = 0;
  bool is_waiting_for_room = false;
  /// What the client may send before some of it is taken; 0 for HTTP/2's own bound.
  std::int32_t window_bytes = 0;
  /// Bytes of the client that the connection's account counts.
  std::size_t held_bytes = 0;
  /// Whether the connection watches the unfinished message, and when it grew last.
  bool is_watched = false;
  double grew_s = 0;

 protected:
  /// Null once the call is over.
  Connection* connection() const { return origin_.connection; }
  const Method* method_of_port() const { return origin_.method; }
  // Any thread.
  Outbox& outbox() const { return *origin_.outbox; }
  std::string PeerText() const { return is_over_.load() ? std::string() : *origin_.peer; }
  std::vector<std::pair<std::string, std::string>> MetadataCopy() const;

  /// Lets go of the handler.
  virtual void Release() = 0;

 private:
  CallOrigin origin_;
  std::atomic<bool> is_over_{false};
};

/// A call of a connection that its handler sees as a `Seen`: what the request's headers say of it.
template <typename Seen>
class HandledCall : public Seen, public WireCall {
 public:
  using WireCall::WireCall;

  std::string_view Metadata(std::string_view key) const override { return headers().Metadata(key); }
  int CountMetadata(std::string_view key) const override { return headers().Count(key); }
  std::vector<std::pair<std::string, std::string>> AllMetadata() const override {
    return MetadataCopy();
  }
  double deadline_s() const override { return WireCall::deadline_s(); }
  std::string peer() const override { return PeerText(); }
  std::string_view method() const override { return headers().path(); }
};

/// Runs code of a handler, which must not throw: a fault of it ends the call, not the server.
template <typename Run>
Status Guarded(Run run) {
  try {
    run();
  } catch (...) {
    return StatusOfCurrentException();
  }
  return {};
}

/// A call with one request and one answer; also one of a method that is not there.
std::shared_ptr<WireCall> MakeUnaryCall(CallOrigin origin);
/// A call with many requests and answers.
std::shared_ptr<WireCall> MakeStreamCall(CallOrigin origin);

}  // namespace recsys::http2

#endif  // RECSYS_ENGINE_HTTP2_CALL_H_
