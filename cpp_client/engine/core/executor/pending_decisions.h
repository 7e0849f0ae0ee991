#ifndef RECSYS_ENGINE_CORE_EXECUTOR_PENDING_DECISIONS_H_
#define RECSYS_ENGINE_CORE_EXECUTOR_PENDING_DECISIONS_H_

#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "port/service.h"

namespace recsys {

class Executor;
class Request;
struct Refusal;

/// The requests that a polling thread has read and not yet queued, and the executors that have yet
/// to decide when those run that it has queued. A polling thread creates one, and queues and
/// decides when nothing more can be read at once: by then all received requests form one batch,
/// and take the queue's lock once.
class PendingDecisions final : public DeferredWork {
 public:
  explicit PendingDecisions(Clock clock = MonotonicSeconds);
  ~PendingDecisions() override;
  PendingDecisions(const PendingDecisions&) = delete;
  PendingDecisions& operator=(const PendingDecisions&) = delete;

  /// Returns the calling thread's; null if it does not poll.
  static PendingDecisions* OfThisThread();

  /// Queues a request later, at the version for which its gateway has prepared it, and tells the
  /// gateway what became of it.
  void Join(std::shared_ptr<Request> request);
  /// Notes that requests are waiting for `executor`.
  void Add(Executor& executor);
  /// Decides if the oldest request has waited so long that an executor would lose time.
  void AfterEvent() override;
  void AfterRound() override;
  double WaitS() const override;

 private:
  struct Decision {
    /// Keeps its servable alive.
    std::shared_ptr<Executor> executor;
    double at_s;
  };
  void Put(std::shared_ptr<Executor> executor, double at_s);
  void Decide(bool may_run_here);
  /// Queues the requests that have been read.
  void JoinAll();

  const Clock clock_;
  /// When the first request came that has not been decided about; none if there is none.
  std::optional<double> began_s_;
  /// Requests in order of arrival; reused memory for those that are being queued.
  std::vector<std::shared_ptr<Request>> read_, joining_;
  std::vector<Refusal> refused_;
  /// One for each executor: about new requests, or later about those left to running batches.
  std::vector<Decision> pending_;
  /// Reused memory.
  std::vector<Decision> due_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_EXECUTOR_PENDING_DECISIONS_H_
