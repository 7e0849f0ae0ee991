#ifndef RECSYS_ENGINE_CORE_GATEWAY_H_
#define RECSYS_ENGINE_CORE_GATEWAY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/stripes.h"
#include "engine/core/request.h"
#include "engine/counters/version_counters.h"

namespace recsys {

class Error;
class Shadow;
struct Refusal;

/// The destination of one request.
struct Route {
  std::shared_ptr<Servable> primary;
  /// Null if there is none.
  std::shared_ptr<const Shadow> shadow;
  /// The sparse input whose first ID is the key of the query, which had none; else empty.
  std::string key_feature = {};
};

/// What a request asks for.
struct RouteQuery {
  /// Empty for the only model.
  std::string_view model;
  /// Empty if the routing chooses the version.
  std::string_view version;
  /// Whether `version` was chosen by an earlier draw of the routing.
  bool drew_version = false;
  /// In [0, 1), for the shares of canary and shadow.
  double draw = 0;
  /// Replaces the draw where the routing has a key; not set if it is not known.
  std::optional<std::int64_t> key = std::nullopt;
};

/// Finds the version that answers. Thread-safe and fast: called for every request.
class Router {
 public:
  virtual ~Router() = default;
  /// Throws Error: kModelNotFound, kNotReady.
  virtual Route Find(const RouteQuery& query) const = 0;
  /// Returns the header that is the key of a model's requests; empty for none.
  virtual std::string KeyHeader(std::string_view /*model*/) const { return {}; }
};

/// Observes requests. Called from any thread; must be fast and must not throw.
class Observer {
 public:
  virtual ~Observer() = default;
  /// Whether Ended uses Request::trace_parent.
  virtual bool reads_trace() const { return false; }
  /// Whether the answer of a request is to be kept for Ended, in Request::outputs; called before
  /// the request joins a queue. May set Request::answered_draw and
  /// Request::keeps_inputs.
  virtual bool KeepsAnswer(Request& /*request*/) { return false; }
  /// A request was checked and will be computed; it may already have ended. Only the fields set by
  /// the adapter, `servable` and `checked` may be read.
  virtual void Accepted(const Request& request) = 0;
  /// A request was answered, refused or cancelled.
  virtual void Ended(const Request& request, const Status& status) = 0;
};

/// Throws Error if a request ID is too long or not UTF-8. `field`: its name in the protocol.
void CheckRequestId(std::string_view text, std::string_view field = "request_id");

/// Handles requests of every protocol: route, check, queue, answer, count. Thread-safe.
class Gateway {
 public:
  /// `observer` may be null; both must outlive the gateway.
  Gateway(const Router& router, Observer* observer, Clock clock = MonotonicSeconds);

  /// Answers one request through Request::Done; call it once per request. Never throws.
  void Predict(const std::shared_ptr<Request>& request);
  /// Called when the client cancelled, or its deadline passed: removes the request from the queue,
  /// and calls Done with CANCELLED or DEADLINE_EXCEEDED unless it was already called. A request
  /// that is being computed is computed to the end.
  void Cancel(const std::shared_ptr<Request>& request);
  /// Goes on with a request that PendingDecisions has queued, or that it could not queue.
  void Joined(Request& request);
  void NotJoined(const Refusal& refusal);
  /// Counts a request that could not be read, and so was never passed to Predict.
  void Refused(const Status& status, const char* protocol);

  /// Refuses further requests, also on open streams; accepted requests are still answered.
  void Drain();
  /// Counts the request, notifies the observer and calls Done. For requests whose `is_ended` was
  /// set by the caller.
  void End(Request& request, const Status& status, Message answer);
  bool is_draining() const { return is_draining_.load(); }
  /// Waits until no request is active, or until then (MonotonicSeconds); returns whether none is.
  bool WaitUntilIdle(double until_s) { return active_.WaitUntilNone(until_s); }
  std::int64_t num_active() const { return active_.num_open(); }

  /// See Router.
  std::string KeyHeader(std::string_view model) const { return router_.KeyHeader(model); }
  bool reads_trace() const { return observer_ != nullptr && observer_->reads_trace(); }
  /// Requests that reached no version, by outcome.
  OutcomeCounts unrouted() const { return unrouted_.totals(); }

 private:
  /// Routes and queues a request at once, again if the version is closed meanwhile; returns why it
  /// is refused, or OK.
  Status AcceptNow(const std::shared_ptr<Request>& request);
  /// Returns the route of a request, which is read and checked for the version that answers.
  Route Examine(Request& request) const;
  /// Prepares a request for the queue of its version; returns why it is refused, or OK.
  Status Prepare(Request& request) const;
  /// Whether a version was closed meanwhile, so that another one has replaced it.
  bool IsOfClosing(const Error& error) const;
  void GiveUp(Request& request);

  const Router& router_;
  Observer* const observer_;
  const Clock clock_;
  UnroutedCounters unrouted_;
  std::atomic<bool> is_draining_{false};
  OpenCount active_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_GATEWAY_H_
