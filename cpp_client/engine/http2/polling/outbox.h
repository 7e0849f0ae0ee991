#ifndef RECSYS_ENGINE_HTTP2_POLLING_OUTBOX_H_
#define RECSYS_ENGINE_HTTP2_POLLING_OUTBOX_H_

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/rpc/net/listening.h"

namespace recsys::http2 {

class WireCall;

/// Hands what other threads have for a polling thread to it. The thread is woken only while it
/// sleeps, and once for all that comes meanwhile. Outlives the thread: what comes later is dropped.
/// Thread-safe.
class Outbox {
 public:
  /// Throws std::system_error: the process has no files left.
  Outbox();

  /// Has WireCall::Deliver called by the polling thread.
  void Post(std::shared_ptr<WireCall> call);
  /// Has a task run by the polling thread. False where there is no such thread any more.
  bool Run(std::function<void()> task);

  /// Whether the calling thread is the polling one.
  bool IsHere() const;

  // Polling thread only, like everything below.
  /// To be called once, first.
  void BeginPolling();
  /// Readable once the thread has to wake; to be cleared then.
  int file() const { return wake_.number(); }
  void ClearWake();
  /// Takes what has come, in order.
  void Take(std::vector<std::shared_ptr<WireCall>>* calls,
            std::vector<std::function<void()>>* tasks);
  /// To be called before sleeping: false where something has come, and sleeping would be wrong.
  bool Sleep();
  void Awake();
  /// Drops what has come and whatever will.
  void Close();

 private:
  /// With the lock held.
  void WakeIfAsleep();

  FileHandle wake_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<WireCall>> calls_;
  std::vector<std::function<void()>> tasks_;
  bool is_asleep_ = false;
  bool is_closed_ = false;
};

}  // namespace recsys::http2

#endif  // RECSYS_ENGINE_HTTP2_POLLING_OUTBOX_H_
