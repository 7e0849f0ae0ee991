#ifndef RECSYS_ENGINE_CORE_GATEWAY_H_
#define RECSYS_ENGINE_CORE_GATEWAY_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "engine/core/request.h"
#include "engine/counters/outcomes.h"

namespace recsys {

class Shadow;

/// Where one request goes.
struct Route {
  std::shared_ptr<Servable> primary;
  /// Null for none.
  std::shared_ptr<const Shadow> shadow;
};

/// What a request asks for.
struct RouteQuery {
  /// Empty for the only model.
  std::string_view model;
  /// Empty for the version that the routing draws.
  std::string_view version;
  /// Whether the routing drew `version` before.
  bool drew_version = false;
  /// 0 to below 1, for the shares of canary and shadow.
  double draw = 0;
};

/// Knows which version answers. Thread-safe and quick: every request asks it.
class Router {
 public:
  virtual ~Router() = default;
  /// Throws Error: kModelNotFound, kNotReady.
  virtual Route Find(const RouteQuery& query) const = 0;
};

/// Sees requests come and go. Called from any thread; must be quick and must not throw.
class Observer {
 public:
  virtual ~Observer() = default;
  /// Whether Ended looks at Request::trace_parent.
  virtual bool reads_trace() const { return false; }
  /// A request was checked and is to be computed; it may already have ended. Only what the adapter
  /// has set, `servable` and `checked` may be read.
  virtual void Accepted(const Request& request) = 0;
  /// A request was answered, refused or given up.
  virtual void Ended(const Request& request, const Status& status) = 0;
};

/// Refuses a request ID that is too long or is no text: throws Error. `field`: its name in the
/// protocol.
void CheckRequestId(std::string_view text, std::string_view field = "request_id");

/// The path of requests of every protocol: route, check, queue, answer, count. Thread-safe.
class Gateway {
 public:
  /// `observer` is null for none; both must outlive the gateway.
  Gateway(const Router& router, Observer* observer, Clock clock = MonotonicSeconds);

  /// Answers one request through Request::Done; each is given once. Never throws.
  void Predict(const std::shared_ptr<Request>& request);
  /// The client gave up, or its deadline passed: the request leaves the queue, and is Done with
  /// CANCELLED or DEADLINE_EXCEEDED unless it is so already. A request that is being computed is
  /// computed to its end.
  void Cancel(const std::shared_ptr<Request>& request);
  /// Counts a request that could not be read, and so was never given to Predict.
  void Refused(const Status& status, const char* protocol);

  /// Refuses requests from now on, those of open streams too; what was accepted is answered.
  void Drain();
  /// Counts the request, tells the observer and calls Done. For requests whose `is_ended` the
  /// caller has set.
  void End(Request& request, const Status& status, Message answer);
  bool is_draining() const { return is_draining_.load(); }
  /// Waits until no request is being answered, or until then (MonotonicSeconds); whether none is.
  bool WaitUntilIdle(double until_s);
  std::int64_t num_active() const { return num_active_.load(); }

  bool reads_trace() const { return observer_ != nullptr && observer_->reads_trace(); }
  /// Requests that reached no version, by outcome.
  OutcomeCounts unrouted() const { return unrouted_.totals(); }

 private:
  void Accept(const std::shared_ptr<Request>& request);
  /// Routes, checks and queues it; false where the version was closed meanwhile.
  bool Join(const std::shared_ptr<Request>& request, Route* route);
  void GiveUp(Request& request);
  void Left();

  const Router& router_;
  Observer* const observer_;
  const Clock clock_;
  UnroutedCounters unrouted_;
  std::atomic<bool> is_draining_{false};
  std::atomic<std::int64_t> num_active_{0};
  std::mutex mutex_;
  std::condition_variable idle_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_GATEWAY_H_
