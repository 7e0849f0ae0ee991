#ifndef RECSYS_PORT_POLLING_OUTBOX_H_
#define RECSYS_PORT_POLLING_OUTBOX_H_

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "port/net/listening.h"

namespace recsys::http2 {

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
  /// Has the polling thread run a task. Returns false if the thread has ended.
  bool Run(std::function<void()> task);

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
  void TakeTasks(std::vector<std::function<void()>>* tasks);
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
  std::vector<std::function<void()>> tasks_;
  bool is_asleep_ = false;
  bool is_closed_ = false;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_OUTBOX_H_
