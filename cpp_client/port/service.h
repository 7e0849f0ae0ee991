#ifndef RECSYS_PORT_SERVICE_H_
#define RECSYS_PORT_SERVICE_H_

// The interface between protocols and gRPC: calls with bytes in and bytes out. The transport is
// port/rpc_server.h.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"

namespace recsys {

/// A gRPC call. Thread-safe; kept alive by the shared_ptr of whatever will answer it.
class Call {
 public:
  virtual ~Call() = default;

  /// Returns the first value of a metadata key (lower case), empty if there is none. Valid while
  /// the call lives.
  virtual std::string_view Metadata(std::string_view key) const = 0;
  /// On the clock of MonotonicSeconds; infinite for none.
  virtual double deadline_s() const = 0;
  /// Such as "ipv4:127.0.0.1:1234"; empty once the call is over.
  virtual std::string peer() const = 0;
  /// A number of the call's connection, which no other one has; 0 if it came over none.
  virtual std::uint64_t connection_number() const { return 0; }
  /// Whether the connection had sent little when the call began, and others more than can be read
  /// at once.
  virtual bool is_light() const { return false; }
  /// Returns how often the metadata contains the key.
  virtual int CountMetadata(std::string_view key) const { return Metadata(key).empty() ? 0 : 1; }
  /// Returns all of the call's metadata, in order.
  virtual std::vector<std::pair<std::string, std::string>> AllMetadata() const { return {}; }
  /// "/package.Service/Method".
  virtual std::string_view method() const { return {}; }
};

/// A call with one request and one answer. Ended exactly once, by Answer or Fail, from any thread;
/// calls after that, or after the client has disconnected, are ignored.
class UnaryCall : public Call {
 public:
  virtual void Answer(Message message) = 0;
  virtual void Fail(const Status& status) = 0;
};

/// The handler of a unary call until it has ended; null if its early end does not matter.
class UnaryHandler {
 public:
  virtual ~UnaryHandler() = default;
  /// The client cancelled, or its deadline passed, before the call was ended. Called at most once,
  /// from any thread.
  virtual void Cancelled() = 0;
};

/// A call with many requests and answers.
class StreamCall : public Call {
 public:
  /// Requests one further message, once; the handler receives it in OnMessage, or OnHalfClose if
  /// there is none.
  virtual void Read() = 0;
  /// Sends a message after the previous ones. `written`, which may be empty, is called with true
  /// once the message was sent, or with false if it cannot be sent any more: waiting for it bounds
  /// the memory used by a client that never reads. It is called within Write if the call is already
  /// over, otherwise from the transport's thread.
  virtual void Write(Message message, std::function<void(bool)> written) = 0;
  /// Ends the call once all messages were sent; call it once.
  virtual void Finish(const Status& status) = 0;
};

/// The server's side of a stream. Methods are called one at a time, from any thread; the transport
/// keeps the handler alive until the call is over.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  virtual void OnMessage(Bytes message) = 0;
  /// The client has finished sending.
  virtual void OnHalfClose() = 0;
  /// The client has disconnected, or its deadline passed: further writes do not reach it.
  virtual void OnCancelled() = 0;
};

/// A method: exactly one of the two is set.
struct Method {
  /// Handles a request; the call may be ended at once or later. Runs in the transport's thread:
  /// must not block. The returned handler, which may be null, is notified of the call's early end.
  std::function<std::shared_ptr<UnaryHandler>(std::shared_ptr<UnaryCall>, Bytes)> unary;
  /// Opens a stream; the handler calls StreamCall::Read itself.
  std::function<std::shared_ptr<StreamHandler>(std::shared_ptr<StreamCall>)> stream;
};

/// The methods of a gRPC service, by name.
struct Service {
  /// Such as "recsys.v1.PredictionService".
  std::string name;
  std::map<std::string, Method> methods;
};

/// What handlers leave until their polling thread has read all that it can read at once. Each
/// polling thread makes one, uses it alone and destroys it. This one has nothing to do.
class DeferredWork {
 public:
  virtual ~DeferredWork() = default;

  /// Called after each event: the work may have waited long enough.
  virtual void AfterEvent() {}
  /// Called when nothing more can be read, when WaitS has passed, and after each round of events
  /// while there is more to read than a round takes.
  virtual void AfterRound() {}
  /// Returns how many seconds the thread may wait for further events; infinite if nothing is left.
  virtual double WaitS() const { return kNever; }
};

}  // namespace recsys

#endif  // RECSYS_PORT_SERVICE_H_
