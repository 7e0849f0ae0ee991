#ifndef RECSYS_ENGINE_CORE_QUEUE_BATCH_QUEUE_H_
#define RECSYS_ENGINE_CORE_QUEUE_BATCH_QUEUE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/core/queue/deadlines.h"
#include "engine/core/queue/drain_rate.h"
#include "engine/core/request.h"
#include "engine/settings/settings.h"

namespace recsys {

using Requests = std::vector<std::shared_ptr<Request>>;

/// A clock that stands still where the given one jumps back, and goes on from there: requests keep
/// their order and the time that is left until their deadlines, instead of all expiring, or none.
class SteadyClock {
 public:
  explicit SteadyClock(Clock clock) : clock_(std::move(clock)), last_s_(clock_()) {}

  double Now() {
    const double given_s = clock_();
    behind_s_ += std::max(last_s_ - given_s, 0.0);
    last_s_ = given_s;
    return given_s + behind_s_;
  }
  /// How much less the given clock shows.
  double behind_s() const { return behind_s_; }

 private:
  Clock clock_;
  double last_s_;
  double behind_s_ = 0;
};

/// Which requests form the next batch: the policy and its queue, without threads and memory of
/// batches (serve/batching.py, which says more). Not thread-safe: the caller holds a lock.
///
/// Order: a line for each level of urgency, first in, first out; next is the request with the
/// smallest enqueued_s + level * priority window. So an urgent one overtakes those that came at
/// most a window per level before it, and nothing starves. A request larger than a batch runs alone
/// and stands one level lower. Requests whose deadline has passed are never computed: they leave
/// when a batch is taken and when their room is needed.
///
/// Put, Cancel and taking one request cost a constant (the logarithm of what waits where there are
/// deadlines) and allocate nothing: requests are linked by members of their own.
class BatchQueue {
 public:
  BatchQueue(const BatchLimits& limits, Clock clock);
  ~BatchQueue();
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  /// What there was no room for, and when to try again.
  struct Full {
    Amount what;
    std::int64_t waiting;
    std::int64_t at_most;
    std::int64_t retry_after_ms;
  };

  /// Throws Error (kRequestTooLarge) where the request is larger than one may be. Needs no lock.
  void CheckSize(const Request& request) const;
  /// Lets a checked request wait for its batch, unless the queue is full. `expired` gets those that
  /// have left because their deadline has passed and room was needed; the caller answers them.
  /// Writes no text: an overloaded server must not do so under its lock.
  std::optional<Full> Put(const std::shared_ptr<Request>& request, Requests* expired);
  /// Throws the QueueFullError that says so. Needs no lock.
  [[noreturn]] static void Throw(const Full& full);

  /// Drops a request that waits; null where it has left already, or never came.
  std::shared_ptr<Request> Cancel(Request& request);

  /// When Take should be called, on the given clock: now or earlier, unless max_delay_us lets a
  /// batch wait to be filled; then once the oldest has waited for so long, and never so long that a
  /// request is left with less than the same time until its deadline. None where nothing waits.
  std::optional<double> ReadyAt();

  /// Takes out the next batch: as many as fit, in order, until it has `enough_rows`, and at least
  /// one if any waits; the first that does not fit ends it. `expired` gets those whose deadline has
  /// passed. Both are appended to.
  void Take(Requests* batch, Requests* expired,
            std::int64_t enough_rows = std::numeric_limits<std::int64_t>::max());

  bool is_idle() const { return num_requests_ == 0; }
  /// Whether a batch may wait to be filled.
  bool has_delay() const { return delay_s_ > 0; }
  std::int64_t num_requests() const { return num_requests_; }
  /// A request without rows counts as one row.
  std::int64_t num_rows() const { return waiting_[static_cast<int>(Amount::kRows)]; }
  std::int64_t num_ids() const { return waiting_[static_cast<int>(Amount::kIds)]; }
  std::int64_t num_bytes() const { return waiting_[static_cast<int>(Amount::kBytes)]; }

 private:
  // One more than priorities: huge requests of the lowest one stand behind all others. Level 0 is
  // never used.
  static constexpr int kNumLevels = static_cast<int>(Priority::kLow) + 2;
  struct Line {
    Request* first = nullptr;
    Request* last = nullptr;
  };
  /// What there is no room for.
  struct Lack {
    Amount what;
    std::int64_t amount;
    std::int64_t at_most;
  };

  std::optional<Lack> LackFor(const Amounts& amounts) const;
  bool IsHuge(const Request& request) const;
  Request* Next() const;
  void Join(Request& request);
  std::shared_ptr<Request> Leave(Request& request);
  void Expire(double now_s, Requests* expired);

  const BatchLimits limits_;
  const double window_s_;
  const double delay_s_;
  SteadyClock clock_;
  std::array<Line, kNumLevels> lines_;
  Deadlines deadlines_;
  DrainRate rate_;
  Amounts waiting_{};
  std::int64_t num_requests_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_BATCH_QUEUE_H_
