#ifndef RECSYS_ENGINE_RPC_SERVICE_H_
#define RECSYS_ENGINE_RPC_SERVICE_H_

// gRPC as protocols see it: calls with bytes in and bytes out. The transport is
// engine/rpc/rpc_server.h.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace recsys {

/// One call on the wire. Thread-safe; held by shared_ptr by whoever will answer it.
class Call {
 public:
  virtual ~Call() = default;

  /// Of the call's metadata; the first value of a key (lower case), empty where there is none.
  /// Valid while the call lives.
  virtual std::string_view Metadata(std::string_view key) const = 0;
  /// On the clock of MonotonicSeconds; infinite for none.
  virtual double deadline_s() const = 0;
  /// "ipv4:127.0.0.1:1234" and the like; empty once the call is over.
  virtual std::string peer() const = 0;
  /// How often the key came.
  virtual int CountMetadata(std::string_view key) const { return Metadata(key).empty() ? 0 : 1; }
  /// All of the call's metadata, in order.
  virtual std::vector<std::pair<std::string, std::string>> AllMetadata() const { return {}; }
  /// "/package.Service/Method".
  virtual std::string_view method() const { return {}; }
};

/// A call with one request and one answer. Ended exactly once, by Answer or Fail, from any thread;
/// what comes later, or after the client has gone, is dropped.
class UnaryCall : public Call {
 public:
  virtual void Answer(Message message) = 0;
  virtual void Fail(const Status& status) = 0;
};

/// Takes part in a unary call until it has ended; null where its early end does not matter.
class UnaryHandler {
 public:
  virtual ~UnaryHandler() = default;
  /// The client gave up, or its deadline passed, before the call was ended. Called at most once,
  /// from any thread.
  virtual void Cancelled() = 0;
};

/// A call with many requests and answers.
class StreamCall : public Call {
 public:
  /// Asks for one further message, once; the handler gets it by OnMessage, or OnHalfClose where
  /// there is none.
  virtual void Read() = 0;
  /// Sends a message after those that were given before. `written` is called once it has left for
  /// the wire (so that a client that never reads takes bounded memory), with whether it did; may be
  /// empty. It is called from within Write where the call is over already, else from the
  /// transport's thread.
  virtual void Write(Message message, std::function<void(bool)> written) = 0;
  /// Ends the call once what was written has left; once.
  virtual void Finish(const Status& status) = 0;
};

/// The server's side of one stream. Methods are called one at a time, from any thread; the
/// transport holds it until the call is over.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  virtual void OnMessage(Bytes message) = 0;
  /// The client sends no more.
  virtual void OnHalfClose() = 0;
  /// The client has gone, or its deadline passed: nothing that is written arrives any more.
  virtual void OnCancelled() = 0;
};

/// A method: exactly one of the two is set.
struct Method {
  /// Takes a request; the call is ended now or later. Runs in the transport's thread: must not
  /// block. The handler that it returns is told of the call's early end; null for none.
  std::function<std::shared_ptr<UnaryHandler>(std::shared_ptr<UnaryCall>, Bytes)> unary;
  /// Opens a stream; the handler calls StreamCall::Read itself.
  std::function<std::shared_ptr<StreamHandler>(std::shared_ptr<StreamCall>)> stream;
};

/// The methods of a gRPC service, by their names within it.
struct Service {
  /// Such as "recsys.v1.PredictionService".
  std::string name;
  std::map<std::string, Method> methods;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_RPC_SERVICE_H_
