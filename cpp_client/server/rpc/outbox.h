#ifndef RECSYS_SERVER_RPC_OUTBOX_H_
#define RECSYS_SERVER_RPC_OUTBOX_H_

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <atomic>

#include "server/rpc/completion.h"

namespace recsys {

/// Something that the polling thread of a queue has to send.
class Outgoing {
 public:
  /// Called once by the polling thread.
  virtual void Send() = 0;

 protected:
  virtual ~Outgoing() = default;

 private:
  friend class Outbox;
  Outgoing* next_ = nullptr;
};

/// Hands what other threads have to send to the thread that polls a queue: it is woken once for all
/// that comes meanwhile. A thread that sends by itself has the poller woken for every event that
/// follows, which costs more than the sending.
class Outbox final : public Completion {
 public:
  /// `queue` outlives this, and is not shut down while something may be posted.
  explicit Outbox(grpc::CompletionQueue* queue) : queue_(queue) {}

  /// Lives until it is sent. From any thread.
  void Post(Outgoing* outgoing);
  void Completed(bool ok) override;

 private:
  grpc::CompletionQueue* const queue_;
  /// The newest one first.
  std::atomic<Outgoing*> newest_{nullptr};
  /// Set by whoever posts into an empty box; it is not under way then.
  grpc::Alarm alarm_;
};

/// Whether the calling thread polls this queue; a thread that begins to poll one says so.
bool IsPolledHere(const grpc_completion_queue* queue);
void PollsHere(const grpc_completion_queue* queue);

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_OUTBOX_H_
