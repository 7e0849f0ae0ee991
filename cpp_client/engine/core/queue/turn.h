#ifndef RECSYS_ENGINE_CORE_QUEUE_TURN_H_
#define RECSYS_ENGINE_CORE_QUEUE_TURN_H_

#include <memory>
#include <vector>

#include "base/clock.h"

namespace recsys {

class Executor;

/// Requests that a polling thread has received and not decided about yet. A polling thread creates
/// one, and decides (End) when nothing more can be read at once: by then all received requests form
/// one batch. Used by one thread only.
class PollingTurn {
 public:
  explicit PollingTurn(Clock clock = MonotonicSeconds);
  ~PollingTurn();
  PollingTurn(const PollingTurn&) = delete;
  PollingTurn& operator=(const PollingTurn&) = delete;

  /// Returns the calling thread's turn; null if it does not poll.
  static PollingTurn* Here();

  /// Notes that requests are waiting for `executor`.
  void Hold(std::shared_ptr<Executor> executor);
  /// Call it after each event: decides if the turn has lasted so long that waiting for its end
  /// would delay an executor.
  void Seen();
  /// Decides about all held requests. Call it when nothing more can be read, when WaitS has passed,
  /// and while there is more to read than a round of events takes, after each round.
  void End();
  /// Returns how many seconds the thread may wait for further events; infinite if nothing is held.
  double WaitS() const;

 private:
  struct Watched {
    std::shared_ptr<Executor> executor;
    double at_s;
  };
  void Decide(bool may_run_here);

  const Clock clock_;
  double began_s_ = 0;
  std::vector<std::shared_ptr<Executor>> held_, deciding_;
  /// Requests left to running batches are checked again at these times.
  std::vector<Watched> watched_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_TURN_H_
