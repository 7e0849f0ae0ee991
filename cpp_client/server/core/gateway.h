#ifndef RECSYS_SERVER_CORE_GATEWAY_H_
#define RECSYS_SERVER_CORE_GATEWAY_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "server/core/request.h"
#include "server/core/status.h"
#include "server/observe/metrics.h"

namespace recsys {

/// Computes some requests a second time, with another version (serve/shadow.py).
class Shadow {
 public:
  virtual ~Shadow() = default;
  /// A twin of a request that `primary` is about to take; null where it is not to have one. The
  /// request's payload may be shared. Called before the request joins its queue.
  virtual std::shared_ptr<Twin> Begin(const Request& request, const Hosted& primary) = 0;
  /// The request was accepted: the twin may join its own queue.
  virtual void Submit(const std::shared_ptr<Twin>& twin) = 0;
};

/// Where one request goes.
struct Route {
  std::shared_ptr<Hosted> primary;
  /// Null for none.
  std::shared_ptr<Shadow> shadow;
};

/// Knows which version answers. Thread-safe, quick: every request asks it.
class Router {
 public:
  virtual ~Router() = default;
  /// `draw`: 0 to below 1, for the canary's share. Throws Error: kModelNotFound, kNotReady (texts
  /// of serve/manager.py and serve/route_table.py).
  virtual Route Find(std::string_view model, std::string_view version, double draw) const = 0;
};

/// Sees requests come and go: logs, captures. Called from any thread; must be quick and must not
/// throw.
class Watcher {
 public:
  virtual ~Watcher() = default;
  /// A request was checked and is to be computed; perhaps it is so already, or has ended. Only what
  /// the adapter has set, `hosted` and `checked` may be read.
  virtual void Accepted(const Request& request) = 0;
  /// A request was answered, refused or given up. `outcome`: one of kOutcomes
  /// (server/observe/metrics.h).
  virtual void Ended(const Request& request, const char* outcome, const Status& status) = 0;
};

/// A client's name for its request, if it may stand in the log; throws Error. `field`: where the
/// protocol has it.
void CheckRequestId(std::string_view text, std::string_view field = "request_id");

/// The one road that requests of every protocol take: route, check, queue, answer, count
/// (serve/gateway.py). Thread-safe.
class Gateway {
 public:
  Gateway(const Router& router, Metrics& metrics, std::vector<Watcher*> watchers,
          Clock clock = MonotonicSeconds);

  /// Answers one request, that was never given before, through Request::Done. Never throws.
  void Predict(const std::shared_ptr<Request>& request);
  /// The client gave up, or its deadline passed: the request leaves the queue, and is Done with
  /// CANCELLED or DEADLINE_EXCEEDED unless it is so already. A request that is being computed is
  /// computed to its end.
  void Cancel(const std::shared_ptr<Request>& request);
  /// Counts a request that could not be read, and so never came here; watchers see it end.
  void Refused(const Status& status, const char* protocol);

  /// Refuses requests from now on, those of open streams too; what was accepted is answered.
  void Drain();
  /// What takes the answers of a version (Hosted::Deliver): counts the request, tells the watchers,
  /// calls Done. For requests whose `is_ended` the caller has set.
  void End(Request& request, const Status& status, Message answer);
  bool is_draining() const { return is_draining_.load(); }
  /// Until no request is being answered, or until then (MonotonicSeconds); whether none is.
  bool WaitUntilIdle(double until_s);
  std::int64_t num_active() const { return num_active_.load(); }

  const Router& router() const { return router_; }
  Metrics& metrics() { return metrics_; }
  /// Who would answer such a request. Throws as Router::Find.
  std::shared_ptr<Hosted> FindHosted(std::string_view model, std::string_view version);

 private:
  void Accept(const std::shared_ptr<Request>& request);
  /// Routes, checks and queues it; false where the version was closed meanwhile.
  bool Join(const std::shared_ptr<Request>& request, Route* route);
  void GiveUp(Request& request);
  void Left();

  const Router& router_;
  Metrics& metrics_;
  std::vector<Watcher*> watchers_;
  Clock clock_;
  std::atomic<bool> is_draining_{false};
  std::atomic<std::int64_t> num_active_{0};
  std::mutex mutex_;
  std::condition_variable idle_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_CORE_GATEWAY_H_
