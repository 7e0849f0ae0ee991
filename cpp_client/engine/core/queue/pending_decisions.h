#ifndef RECSYS_ENGINE_CORE_QUEUE_PENDING_DECISIONS_H_
#define RECSYS_ENGINE_CORE_QUEUE_PENDING_DECISIONS_H_

#include <memory>
#include <vector>

#include "base/clock.h"
#include "port/deferred_work.h"

namespace recsys {

class Executor;

/// The executors that have yet to decide when the requests of a polling thread run. A polling
/// thread creates one, and decides when nothing more can be read at once: by then all received
/// requests form one batch.
class PendingDecisions final : public DeferredWork {
 public:
  explicit PendingDecisions(Clock clock = MonotonicSeconds);
  ~PendingDecisions() override;
  PendingDecisions(const PendingDecisions&) = delete;
  PendingDecisions& operator=(const PendingDecisions&) = delete;

  /// Returns the calling thread's; null if it does not poll.
  static PendingDecisions* OfThisThread();

  /// Notes that requests are waiting for `executor`.
  void Add(std::shared_ptr<Executor> executor);
  /// Decides if the oldest request has waited so long that an executor would lose time.
  void AfterEvent() override;
  void AfterRound() override;
  double WaitS() const override;

 private:
  struct Watched {
    std::shared_ptr<Executor> executor;
    double at_s;
  };
  void DecideAll(bool may_run_here);

  const Clock clock_;
  double began_s_ = 0;
  std::vector<std::shared_ptr<Executor>> pending_, deciding_;
  /// Requests left to running batches are checked again at these times.
  std::vector<Watched> watched_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_PENDING_DECISIONS_H_
