#ifndef RECSYS_ENGINE_CORE_QUEUE_BATCH_QUEUE_H_
#define RECSYS_ENGINE_CORE_QUEUE_BATCH_QUEUE_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/core/queue/deadlines.h"
#include "engine/core/queue/fair_order.h"
#include "engine/core/queue/policy.h"
#include "engine/core/request.h"
#include "engine/settings/settings.h"
#include "recsys/error.h"

namespace recsys {

using Requests = std::vector<std::shared_ptr<Request>>;

/// A clock that stops when the given one jumps back, and continues from there: requests keep their
/// order and their remaining time until the deadline, instead of all of them, or none, expiring.
class SteadyClock {
 public:
  explicit SteadyClock(Clock clock) : clock_(std::move(clock)), last_s_(clock_()) {}

  double Now() { return At(clock_()); }
  /// The same for a time that the given clock has just returned.
  double At(double given_s) {
    behind_s_ += std::max(last_s_ - given_s, 0.0);
    last_s_ = given_s;
    return given_s + behind_s_;
  }
  /// Returns the time that the last call of Now or At returned.
  double last_s() const { return last_s_ + behind_s_; }
  /// What the given clock returned then.
  double given_s() const { return last_s_; }
  /// How far the given clock is behind this one.
  double behind_s() const { return behind_s_; }

 private:
  Clock clock_;
  double last_s_;
  double behind_s_ = 0;
};

/// What ends a batch before it is as large as the settings allow.
struct TakeLimits {
  /// It ends once it has so many rows.
  std::int64_t enough_rows = std::numeric_limits<std::int64_t>::max();
  /// A request with which it would have more than enough ends it too, unless it is the first.
  bool never_exceeds = false;
  /// So does one without `is_light`.
  bool light_only = false;
};

/// The policy and queue that form the next batch, without threads or batch memory
/// (serve/engine/reference/batching.py has more details). Not thread-safe: the caller holds a lock.
///
/// Order: of one client, one line per level of urgency, first in, first out; next is the request
/// with the smallest enqueued_s + level * priority window. So an urgent request overtakes those
/// that arrived at most one window per level earlier, and none starves. Clients take turns by rows
/// (engine/core/queue/fair_order.h). A request larger than a batch runs alone and is
/// one level lower. Requests whose deadline has passed are never computed: they are removed when a
/// batch is taken and when their room is needed.
///
/// Put, Cancel and taking one request take logarithmic time in the number of waiting clients (and
/// requests, if their deadlines do not ascend: engine/core/queue/deadlines.h). For known clients
/// they allocate nothing, unless more such requests wait than before: requests are linked through
/// their own members. Only a Put into a full queue looks at all waiting clients.
class BatchQueue {
 public:
  /// `by_request`: a batch is one request, and never waits to be filled.
  BatchQueue(const BatchLimits& limits, Clock clock, bool by_request = false);
  ~BatchQueue();
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  /// The exhausted limit, and when to retry.
  struct Full {
    Amount what;
    std::int64_t waiting;
    std::int64_t at_most;
    std::int64_t retry_after_ms;
  };

  /// Requests that had to leave for a lighter client's request.
  struct PushedOut {
    Requests requests;
    Full why{};
  };

  /// Throws Error (kRequestTooLarge) if the request exceeds the limits. Needs no lock.
  void CheckSize(const Request& request) const;
  /// Queues a checked request, unless the queue is full. Appends to `expired` the requests that
  /// were removed because room was needed and their deadline has passed; the caller answers them.
  /// If that is not enough, and another client still has at least as much waiting afterwards, that
  /// client's last requests leave to `pushed_out` (if not null) instead.
  /// Formats no text: an overloaded server must not do so under its lock.
  std::optional<Full> Put(const std::shared_ptr<Request>& request, Requests* expired,
                          PushedOut* pushed_out = nullptr) {
    Prepare(*request);
    return PutAt(Now(), request, expired, pushed_out);
  }
  /// What is computed of a request before it is put. Needs no lock.
  void Prepare(Request& request) const;
  /// Puts a prepared request at a time that Now or At has returned, for several requests that come
  /// at once.
  std::optional<Full> PutAt(double now_s, const std::shared_ptr<Request>& request,
                            Requests* expired, PushedOut* pushed_out);
  /// Returns the time on a clock that never jumps back: now, or when the given clock has just
  /// returned `given_s`.
  double Now() { return clock_.Now(); }
  double At(double given_s) { return clock_.At(given_s); }
  /// Return the errors for a refused request, and for those that were pushed out. Need no lock.
  static QueueFullError ErrorOf(const Full& full);
  static QueueFullError ErrorOf(const PushedOut& pushed_out);

  /// Drops a waiting request; returns null if it has already left, or never joined.
  std::shared_ptr<Request> Cancel(Request& request);

  /// Returns when Take should be called, on the given clock: now or earlier, unless max_delay_us
  /// lets a batch wait to be filled; then once the oldest request has waited that long, but never
  /// so long that a request has less than that time left until its deadline. None if no request
  /// waits.
  std::optional<double> ReadyAt() {
    clock_.Now();
    return ReadyAt(clock_.given_s());
  }
  /// The same at a time that the given clock has just returned.
  std::optional<double> ReadyAt(double given_s);

  /// Takes out the next batch: as many requests as fit (or the model allows), in order; the first
  /// that does not fit ends it. The order within the batch means nothing. Those whose deadline has
  /// passed go to `expired`. Appends to both; returns the size of what it takes for the batch.
  BatchSize Take(Requests* batch, Requests* expired, const TakeLimits& limits = {}) {
    Request* all = nullptr;
    const BatchSize size = TakeAt(Now(), batch, expired, limits, &all);
    AppendAll(all, batch);
    return size;
  }
  /// The same at a time that Now or At has returned, but if all requests leave at once, they are
  /// not appended: they hang together from `all`, for AppendAll. So the time under the caller's
  /// lock does not grow with their number.
  BatchSize TakeAt(double now_s, Requests* batch, Requests* expired, const TakeLimits& limits,
                   Request** all);
  /// Appends the requests that hang from `all`, which may be null, to the batch that TakeAt was
  /// given. Needs no lock.
  static void AppendAll(Request* all, Requests* batch);

  /// Whether a client that had little waiting has lately put a request behind a batch and more of
  /// clients that had much. The time is one on the given clock.
  bool HasLightClient(double now_s) const { return now_s + clock_.behind_s() < light_until_s_; }
  /// Whether the next request has `is_light`; size of all that have it and wait.
  bool is_next_light() const { return light_.num_rows > 0 && order_.Next()->is_light; }
  BatchSize light_size() const { return light_; }
  bool is_idle() const { return num_requests_ == 0; }
  /// Whether a batch may wait to be filled.
  bool has_delay() const { return delay_s_ > 0; }
  std::int64_t num_requests() const { return num_requests_; }
  /// Those that requests count as (CountedRows).
  std::int64_t num_rows() const { return waiting_[Amount::kRows]; }
  std::int64_t num_ids() const { return waiting_[Amount::kIds]; }
  std::int64_t num_bytes() const { return waiting_[Amount::kBytes]; }

 private:
  /// The limit that a request would exceed, and by how much.
  struct Lack {
    Amount what;
    std::int64_t amount;
  };

  /// By how much a request of this size would exceed a limit; not above 0 if it does not.
  std::int64_t Lacking(Amount what, const Amounts& amounts) const {
    return waiting_[what] + amounts[what] - at_most_[what];
  }
  std::optional<Lack> LackFor(const Amounts& amounts) const;
  Full FullFor(const Lack& lack, double now_s) const;
  bool IsHuge(const Request& request) const;
  bool IsWaiting(const Request& request) const { return request.waits_in == round_; }
  /// Makes room for a client's request, if that is fair; returns false if it is not.
  bool PushOut(const Request& request, double now_s, PushedOut* pushed_out);
  void NoteLightClient(const Request& request, double now_s);
  void Join(Request& request, double now_s);
  std::shared_ptr<Request> Leave(Request& request, double now_s, bool is_served = false);
  /// Lets all requests leave, which are served; returns the oldest.
  Request* LeaveAll();
  void Expire(double now_s, Requests* expired);

  const BatchLimits limits_;
  /// Of all that waits.
  const Amounts at_most_;
  const bool by_request_;
  const double window_s_;
  const double delay_s_;
  SteadyClock clock_;
  FairOrder order_;
  /// All waiting requests in order of arrival.
  Request* oldest_ = nullptr;
  Request* newest_ = nullptr;
  Deadlines deadlines_;
  DrainRate rate_;
  Amounts waiting_;
  std::int64_t num_requests_ = 0;
  /// Counts up when all requests leave at once.
  std::uint64_t round_ = 1;
  BatchSize light_;
  double light_until_s_ = -std::numeric_limits<double>::infinity();
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_BATCH_QUEUE_H_
