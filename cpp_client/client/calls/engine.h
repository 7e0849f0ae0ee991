#ifndef RECSYS_CLIENT_CALLS_ENGINE_H_
#define RECSYS_CLIENT_CALLS_ENGINE_H_

// Connections, the threads that wait for what comes over them, and the calls under way. gRPC's
// types stay in this room.

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

/// What a completion queue gives back when something has happened.
class Event {
 public:
  virtual ~Event() = default;
  /// On a thread of the engine.
  virtual void Proceed(bool ok) = 0;
};

/// A call or stream under way; the engine holds it until it has ended.
class Operation {
 public:
  virtual ~Operation() = default;
  /// Ends it soon. From any thread.
  virtual void Cancel() = 0;
};

/// Thread-safe.
class Engine {
 public:
  /// Throws Error (kConfig) where something of it cannot be.
  Engine(const std::string& address, const ClientOptions& options);
  /// Cancels what is under way and waits for its end.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// The next connection in turn, and the next queue.
  grpc::GenericStub& stub();
  grpc::CompletionQueue* queue();

  /// From before the operation starts until it has ended. Where the engine ends, so does the
  /// operation: callbacks may still begin some.
  void Add(std::shared_ptr<Operation> operation);
  /// The last that an operation does: it may be gone afterwards.
  void Remove(const Operation* operation);

  const ClientOptions& options() const { return options_; }
  RetryBudget& budget() { return budget_; }
  /// The error for a failed call; without TLS it says where that may be what is wrong.
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

/// What connections are made with; throws Error (kConfig) where TLS files cannot be used.
grpc::ChannelArguments ChannelArguments(const ClientOptions& options);
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const ClientOptions& options);

/// What the trailing metadata of an ended call say.
Pushback PushbackOf(const grpc::ClientContext& context);

/// So many seconds from now, as gRPC takes deadlines; none for infinity.
gpr_timespec After(double seconds);

}  // namespace recsys::client

#endif  // RECSYS_CLIENT_CALLS_ENGINE_H_
