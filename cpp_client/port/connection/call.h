#ifndef RECSYS_PORT_CONNECTION_CALL_H_
#define RECSYS_PORT_CONNECTION_CALL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "port/framing/message_reader.h"
#include "port/framing/request_headers.h"
#include "port/polling/outbox.h"
#include "port/polling/posted_calls.h"
#include "port/polling/timers.h"
#include "port/service.h"

namespace recsys::http2 {

/// Called once the message was sent, or cannot be sent any more (false).
using Written = std::function<void(bool)>;

/// Outgoing messages of one call, with gRPC's prefixes. Large parts are copied once, when they can
/// be sent. Not thread-safe.
class OutgoingMessages {
 public:
  /// Returns the bytes used by the message.
  std::size_t Add(Message message, Written written);
  std::size_t num_bytes() const { return num_bytes_; }
  /// Appends the next `size` bytes, at most num_bytes(), to `out`. Releases the owners of sent
  /// parts, and moves the callbacks of sent messages to `written`. Returns how many messages end
  /// with them.
  std::size_t CopyTo(std::size_t size, std::string* out, std::vector<Written>* written);
  /// Drops all messages; moves their callbacks to `written`.
  void Clear(std::vector<Written>* written);

 private:
  struct Part {
    Bytes bytes;
    /// Whether the message ends with this part.
    bool is_last = false;
    Written written;
  };

  std::deque<Part> parts_;
  /// Offset in the first part.
  std::size_t at_ = 0;
  std::size_t num_bytes_ = 0;
};

class Connection;

/// The parts of a call once its headers were received.
struct CallOrigin {
  Connection* connection = nullptr;
  int stream_id = 0;
  RequestHeaders headers;
  double deadline_s = 0;
  std::shared_ptr<const std::string> peer;
  std::uint64_t connection_number = 0;
  bool is_light = false;
  std::shared_ptr<Home> home;
  /// Null if the port does not have the method.
  const Method* method = nullptr;
  std::int64_t max_message_bytes = 0;
};

/// A call as seen by its connection: receives messages, sends messages and a status. Polling thread
/// only, unless stated otherwise.
class WireCall : public Timed, public Posted, public std::enable_shared_from_this<WireCall> {
 public:
  explicit WireCall(CallOrigin origin)
      : reader(origin.max_message_bytes, origin.headers.encoding()), origin_(std::move(origin)) {}
  ~WireCall() override = default;
  WireCall(const WireCall&) = delete;
  WireCall& operator=(const WireCall&) = delete;

  /// Starts the call's handling, as far as no message is needed.
  virtual void Start() = 0;
  /// Bytes were added to `reader`, or the client has finished sending (`is_half_closed`).
  virtual void OnData() = 0;
  /// Notifies the handler of an early end, once, unless the call has already ended.
  virtual void Cancel() = 0;
  /// Whether the call cannot go on without a message of the client that has not begun.
  virtual bool AwaitsMessage() const = 0;
  /// The deadline has passed.
  void OnDue(double now_s) override;
  /// The connection has removed the call.
  void Over();

  int stream_id() const { return origin_.stream_id; }
  std::uint64_t connection_number() const override { return origin_.connection_number; }
  bool is_light() const { return origin_.is_light; }
  double deadline_s() const { return origin_.deadline_s; }
  const RequestHeaders& headers() const { return origin_.headers; }

  /// Used by the connection.
  MessageReader reader;
  OutgoingMessages outgoing;
  /// Set once the call has ended; sent after `outgoing`.
  std::optional<Status> end;
  bool is_half_closed = false;
  /// Whether the response headers were submitted, and whether nghttp2 waits for more data.
  bool is_begun = false;
  bool is_deferred = false;
  /// Whether the client's bytes are dropped, because no further message is needed.
  bool ignores_input = false;
  /// Room that the connection has granted for a large message; and whether the call waits for it.
  std::size_t reserved_bytes = 0;
  bool is_waiting_for_room = false;
  /// The stream's window, if the connection has enlarged it; 0 for HTTP/2's default.
  std::int32_t window_bytes = 0;
  /// The memory of the call and its request that is counted in the connection's account.
  std::int64_t held_bytes = 0;
  /// Of the port's count of open calls.
  std::size_t open_stripe = 0;
  /// Whether the connection watches the unfinished message; when it last grew, or the call began.
  bool is_watched = false;
  double grew_s = 0;

 protected:
  /// Null once the call is over.
  Connection* connection() const { return origin_.connection; }
  const Method* method_of_port() const { return origin_.method; }
  // Any thread.
  Home& home() const { return *origin_.home; }
  std::string PeerText() const { return is_over_.load() ? std::string() : *origin_.peer; }
  std::vector<std::pair<std::string, std::string>> MetadataCopy() const;

  /// Releases the handler.
  virtual void Release() = 0;

 private:
  CallOrigin origin_;
  std::atomic<bool> is_over_{false};
};

/// A call whose handler sees it as a `Seen`, which reads the request's headers.
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
  std::uint64_t connection_number() const override { return WireCall::connection_number(); }
  bool is_light() const override { return WireCall::is_light(); }
  std::string_view method() const override { return headers().path(); }
};

/// Runs a handler's code, which must not throw: an exception ends the call, not the server.
template <typename Run>
Status Guarded(Run run) {
  try {
    run();
  } catch (...) {
    return StatusOfCurrentException();
  }
  return {};
}

/// A call with one request and one answer; also used for unknown methods.
std::shared_ptr<WireCall> MakeUnaryCall(CallOrigin origin);
/// A call with many requests and answers.
std::shared_ptr<WireCall> MakeStreamCall(CallOrigin origin);

}  // namespace recsys::http2

#endif  // RECSYS_PORT_CONNECTION_CALL_H_
