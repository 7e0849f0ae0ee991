#ifndef RECSYS_CLIENT_CALLS_ENGINE_H_
#define RECSYS_CLIENT_CALLS_ENGINE_H_

// Connections, the threads that wait on them, and the active calls. gRPC's types stay in this
// directory.

#include <grpcpp/alarm.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "client/calls/retry.h"
#include "recsys/client.h"

namespace recsys::client {

/// An event delivered by a completion queue.
class Event {
 public:
  virtual ~Event() = default;
  /// Called on a thread of the engine.
  virtual void Proceed(bool ok) = 0;
};

/// An active call or stream; the engine keeps it alive until it has ended.
class Operation {
 public:
  virtual ~Operation() = default;
  /// Ends the operation soon. May be called from any thread.
  virtual void Cancel() = 0;
};

/// Owns the connections, threads and active operations. Thread-safe.
class Engine {
 public:
  /// Throws Error (kConfig) if the address or an option is invalid.
  Engine(const std::string& address, const ClientOptions& options);
  /// Cancels all operations and waits until they have ended.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// The next connection and the next queue, in turn.
  grpc::GenericStub& stub();
  grpc::CompletionQueue* queue();

  /// Registers an operation before it starts, until it has ended. If the engine is shutting down,
  /// cancels it at once: callbacks may still start operations.
  void Add(std::shared_ptr<Operation> operation);
  /// The last call that an operation makes: it may be destroyed afterwards.
  void Remove(const Operation* operation);

  const ClientOptions& options() const { return options_; }
  RetryBudget& budget() { return budget_; }
  /// Returns the error for a failed call; without TLS, its text says if that may be the cause.
  ClientError ErrorOf(const grpc::Status& status, const grpc::ClientContext& context,
                      int num_attempts) const;

 private:
  void Run(grpc::CompletionQueue* queue);

  const ClientOptions options_;
  RetryBudget budget_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::vector<std::unique_ptr<grpc::CompletionQueue>> queues_;
  std::atomic<std::size_t> next_stub_{0};
  std::atomic<std::size_t> next_queue_{0};
  std::mutex mutex_;
  std::condition_variable all_ended_;
  std::unordered_map<const Operation*, std::shared_ptr<Operation>> operations_;
  bool is_ending_ = false;
  std::vector<std::thread> threads_;
};

/// Channel arguments and credentials; throws Error (kConfig) if the TLS files cannot be used.
grpc::ChannelArguments ChannelArguments(const ClientOptions& options);
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const ClientOptions& options);

/// Returns the pushback in the trailing metadata of an ended call.
Pushback PushbackOf(const grpc::ClientContext& context);

/// Returns the gRPC deadline that many seconds from now; none for infinity.
gpr_timespec After(double seconds);

}  // namespace recsys::client

#endif  // RECSYS_CLIENT_CALLS_ENGINE_H_
