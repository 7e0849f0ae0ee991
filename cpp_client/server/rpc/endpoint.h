#ifndef RECSYS_SERVER_RPC_ENDPOINT_H_
#define RECSYS_SERVER_RPC_ENDPOINT_H_

#include <grpc/grpc.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "server/rpc/service.h"

namespace recsys {

class Outbox;

/// How many calls are open on a port. Thread-safe; calls share no lock but for the last one that
/// somebody waits for.
class OpenCalls {
 public:
  void Begin() { count_.fetch_add(1); }
  void End();
  /// Waits until none is open, or until then (MonotonicSeconds); whether none is.
  bool WaitUntilNone(double until_s);

 private:
  std::atomic<std::int64_t> count_{0};
  std::atomic<bool> is_awaited_{false};
  std::mutex mutex_;
  std::condition_variable none_;
};

/// What the calls of one port share.
struct PortState {
  grpc_server* server = nullptr;
  std::function<Status(const Call&)> authorize;
  OpenCalls open_calls;
};

/// One method on one completion queue: where its calls come in. Belongs to the thread that polls
/// the queue, which also gets all events of the calls. Lives until the queue is empty.
struct Endpoint {
  PortState* port = nullptr;
  grpc_completion_queue* queue = nullptr;
  /// Where other threads leave answers for the polling one; null where they send them themselves.
  Outbox* outbox = nullptr;
  /// "/package.Service/Method".
  std::string path;
  Method method;
  /// gRPC's handle of the method; null for the endpoint of all that is not known.
  void* registered = nullptr;
  /// Calls that may come before the thread has had time to look.
  int num_waiting = 0;

  /// Whether one more call should be awaited than now: methods that are much used have many, others
  /// few.
  bool TakesMore();
};

/// Waits for one further call of the endpoint; it lives by itself from here.
void AwaitUnaryCall(Endpoint* endpoint);
void AwaitStreamCall(Endpoint* endpoint);
/// A call of whatever is not registered; it ends as UNIMPLEMENTED.
void AwaitUnknownCall(Endpoint* endpoint);

/// The answer to `call` where its method must not run: authorization, which may throw.
Status Authorized(const PortState& port, const Call& call);

/// Runs what a protocol gave us, which must not throw; a fault of it ends the call, not the server.
Status Guarded(const std::function<void()>& run);

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_ENDPOINT_H_
