#ifndef RECSYS_PORT_POLLING_OUTBOX_H_
#define RECSYS_PORT_POLLING_OUTBOX_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "port/net/listening.h"

namespace recsys::http2 {

class Loop;
class Posted;

/// Passes calls and tasks from other threads to a polling thread. The thread is woken only while it
/// sleeps, and only once for everything posted meanwhile. Outlives the thread: later items are
/// dropped. Thread-safe.
class Outbox {
 public:
  /// Throws std::system_error if the process has no file descriptors left.
  Outbox();

  /// Has the polling thread call Posted::Deliver.
  void Post(std::shared_ptr<Posted> call);
  /// Has the polling thread run a task, which gets its loop. Returns false if the thread has ended.
  bool Run(std::function<void(Loop&)> task);

  /// Whether the calling thread is the polling one.
  bool IsHere() const;

  // Polling thread only, like everything below.
  /// Call it first, once.
  void BeginPolling();
  /// Readable once the thread has to wake up; then call ClearWake.
  int file() const { return wake_.number(); }
  void ClearWake();
  /// Take all items of a kind, in order, into an empty vector.
  void TakeCalls(std::vector<std::shared_ptr<Posted>>* calls);
  void TakeTasks(std::vector<std::function<void(Loop&)>>* tasks);
  /// Call it before sleeping: returns false if items are pending, so the thread must not sleep.
  bool Sleep();
  void Awake();
  /// Drops all items, now and later.
  void Close();

 private:
  /// The lock must be held.
  void WakeIfAsleep();

  FileHandle wake_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Posted>> calls_;
  std::vector<std::function<void(Loop&)>> tasks_;
  bool is_asleep_ = false;
  bool is_closed_ = false;
};

/// The outbox of the loop that has a connection, which changes when the connection moves. Shared by
/// the connection and its calls; outlives the connection. Thread-safe.
class Home {
 public:
  /// `id` names the connection in its loops.
  Home(std::shared_ptr<Outbox> outbox, std::int64_t id);

  /// Whether the calling thread has the connection. If so, that stays so until the thread itself
  /// gives it away.
  bool IsHere() const { return outbox_.load(std::memory_order_acquire)->IsHere(); }
  /// Has the polling thread call Posted::Deliver, which posts again if the connection has moved.
  void Post(std::shared_ptr<Posted> call) { outbox_.load()->Post(std::move(call)); }
  /// Has the connection closed, because the ledger of its port has chosen it.
  void CloseForMemory();
  bool is_to_be_closed() const { return is_to_be_closed_.load(); }
  /// The thread that has the connection: gives it to that of another outbox, and must not touch it
  /// any more.
  void MoveTo(const std::shared_ptr<Outbox>& outbox);

 private:
  std::atomic<Outbox*> outbox_;
  /// All outboxes that it was moved to: calls may still post to an earlier one.
  std::vector<std::shared_ptr<Outbox>> all_;
  const std::int64_t id_;
  std::atomic<bool> is_to_be_closed_{false};
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_OUTBOX_H_
