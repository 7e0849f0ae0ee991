#ifndef RECSYS_ENGINE_CORE_QUEUE_TURN_H_
#define RECSYS_ENGINE_CORE_QUEUE_TURN_H_

#include <memory>
#include <vector>

#include "base/clock.h"

namespace recsys {

class Executor;

/// What a polling thread has taken in and not decided about yet. A thread that polls makes one, and
/// decides (End) when nothing more can be read at once: by then all that has come is one batch. Of
/// one thread alone.
class PollingTurn {
 public:
  explicit PollingTurn(Clock clock = MonotonicSeconds);
  ~PollingTurn();
  PollingTurn(const PollingTurn&) = delete;
  PollingTurn& operator=(const PollingTurn&) = delete;

  /// Of the calling thread; null where it does not poll.
  static PollingTurn* Here();

  /// Requests wait for `executor` since now.
  void Hold(std::shared_ptr<Executor> executor);
  /// To be called after each event: decides where the turn has lasted for so long that waiting for
  /// its end would hold up an executor.
  void Seen();
  /// Decides about all that is held. To be called when nothing more can be read, and when WaitS has
  /// passed.
  void End();
  /// For how many seconds the thread may wait for further events; infinite where nothing is held.
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
  /// What was left to batches that run is looked at again at these times.
  std::vector<Watched> watched_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_TURN_H_
