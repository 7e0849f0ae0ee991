#ifndef RECSYS_CLIENT_CALLS_UNARY_CALL_H_
#define RECSYS_CLIENT_CALLS_UNARY_CALL_H_

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "client/calls/cancellation.h"
#include "client/calls/engine.h"

namespace recsys::client {

/// The result of a unary call: an answer's bytes, or an error.
struct CallEnd {
  std::optional<ClientError> error;
  grpc::ByteBuffer bytes;
  int num_attempts = 1;
};

/// One call with its retries. Start begins it; calls `done` exactly once, on a thread of the
/// engine.
class UnaryCall final : public Operation,
                        public Event,
                        public std::enable_shared_from_this<UnaryCall> {
 public:
  struct Task {
    const char* method;
    grpc::ByteBuffer request;
    double timeout_s;
    std::function<void(CallEnd)> done;
  };

  UnaryCall(Engine* engine, Task task);

  void Start(const std::shared_ptr<Cancellation>& cancellation);
  void Cancel() override;
  void Proceed(bool ok) override;

 private:
  /// The lock must be held, also for Wait and TryAgain.
  void Attempt();
  void Wait(double seconds);
  /// Whether the call is retried; if so, waits for the next attempt.
  bool TryAgain();

  void End(bool is_cancelled);

  Engine* const engine_;
  Task task_;
  const double deadline_s_;
  grpc::CompletionQueue* const queue_;
  CancellationLink link_;

  std::mutex mutex_;
  bool is_cancelled_ = false;
  int num_attempts_ = 0;
  /// Set once an attempt has begun.
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader_;
  grpc::ByteBuffer response_;
  grpc::Status status_;
  /// Set while waiting for the next attempt.
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace recsys::client

#endif  // RECSYS_CLIENT_CALLS_UNARY_CALL_H_
