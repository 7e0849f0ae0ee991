#ifndef RECSYS_ENGINE_CORE_QUEUE_FAIR_ORDER_H_
#define RECSYS_ENGINE_CORE_QUEUE_FAIR_ORDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/core/queue/amounts.h"
#include "engine/core/request.h"

namespace recsys {

/// Measures how fast a queue drains while it is not empty, smoothed over about ten batches, and
/// from that when a client that found it full should retry (serve/engine/reference/batching.py).
///
/// All requests that leave count, including cancelled and expired ones: each makes room. Time in
/// which no request waited does not count. Not thread-safe.
class DrainRate {
 public:
  /// The hint before anything was measured.
  static constexpr std::int64_t kFirstRetryMs = 100;
  /// The longest hint.
  static constexpr std::int64_t kMaxRetryMs = 60'000;

  /// Notes what has left the queue.
  void Left(const Amounts& amounts) { left_ += amounts; }
  /// Notes that a batch was taken; `is_empty`: no request waits any more, so the time until the
  /// next batch is not measured.
  void Taken(double now_s, bool is_empty);
  /// Returns when that amount will have drained at the measured rate: 1 to kMaxRetryMs. Grows while
  /// a batch takes longer than usual.
  std::int64_t RetryAfterMs(Amount what, std::int64_t amount, double now_s) const;

 private:
  Amounts left_{};
  PerAmount<double> drained_;
  double seconds_ = 0;
  std::optional<double> since_s_;
};

/// Waiting requests in one line per level of urgency, first in, first out.
struct LevelLines {
  // One more than priorities: huge requests of the lowest one come after all others. Level 0 is
  // unused.
  static constexpr int kNumLevels = static_cast<int>(Priority::kLow) + 2;
  struct Line {
    Request* first = nullptr;
    Request* last = nullptr;
  };
  std::array<Line, kNumLevels> lines{};

  void Join(Request& request);
  void Leave(Request& request);
  /// Returns the request with the smallest enqueued_s + level * window_s; null if none waits.
  Request* Next(double window_s) const;
  /// Returns the last request of the least urgent line; null if none waits.
  Request* Last() const;
};

/// A client's waiting requests and its place among the other clients. What clients are compared by
/// lies in one cache line.
struct alignas(64) QueueClient {
  std::uint64_t number = 0;
  /// The level's virtual time at which its next request starts, in rows. Clients of a level are
  /// ordered by it.
  std::int64_t start = 0;
  /// Orders clients with the same start, in turns: a smaller one for few rows.
  std::int64_t place = 0;
  /// Orders clients with the same place, by when they got it: counts up over all clients.
  std::uint64_t turn = 0;
  /// When its next request began to compete with the other clients', in seconds. Levels are ordered
  /// by it, plus a window for each level.
  double since_s = 0;
  /// Index in the heap of its level.
  std::size_t at = 0;
  /// Level of its next request; 0 if none waits.
  int level = 0;
  LevelLines waiting;
  /// What its waiting requests take.
  Amounts amounts;
  /// Per level: the virtual time, in rows, at which its last request there ended.
  std::array<std::int64_t, LevelLines::kNumLevels> finished{};
  QueueClient* previous_idle = nullptr;
  QueueClient* next_idle = nullptr;
};

/// The order of waiting requests over all clients: start-time fair queueing by rows
/// (serve/engine/reference/fair_order.py has more details). Not thread-safe; owns no request.
///
/// Joining and leaving take logarithmic time in the number of clients that wait. Of clients without
/// a waiting request, only the last kMaxIdle are remembered.
class FairOrder {
 public:
  static constexpr std::size_t kMaxIdle = 256;
  /// A client goes ahead of others with the same start by as many turns as its request has fewer
  /// rows, up to this; and one that had nothing waiting of so many more.
  static constexpr std::int64_t kTurnsAhead = 256;
  /// What a client owes that had nothing waiting is forgotten if it is less than this share of the
  /// requests' rows on average.
  static constexpr std::int64_t kLittleShare = 4;

  explicit FairOrder(double window_s) : window_s_(window_s) {}
  FairOrder(const FairOrder&) = delete;
  FairOrder& operator=(const FairOrder&) = delete;

  /// Adds a request, whose `room` and `level` are set.
  void Join(Request& request, double now_s);
  /// Removes a request. `is_served`: its rows count against its client.
  void Leave(Request& request, double now_s, bool is_served);
  /// Removes all requests at once, which are served: no client owes anything then. Does not look at
  /// the requests, whose links the caller cuts.
  void LeaveAll();
  /// Returns the next request; null if none waits.
  Request* Next() const;

  /// Returns what waits of this client.
  Amounts AmountsOf(std::uint64_t client) const;
  /// Returns the client of which most waits; null if none waits. Looks at all that wait.
  const QueueClient* Heaviest(Amount amount) const;
  std::size_t num_clients() const { return clients_.size(); }
  std::size_t num_waiting_clients() const { return clients_.size() - num_idle_; }

 private:
  /// The clients whose next request has one level: a heap, the earliest start first.
  struct Level {
    std::vector<QueueClient*> heap;
    /// The level's virtual time, in rows: the start of the request that was served last.
    std::int64_t now = 0;
    /// The latest virtual time, in rows, at which a request that was served ended.
    std::int64_t last_finish = 0;
  };

  QueueClient& ClientOf(std::uint64_t number);
  void Place(QueueClient& client, double now_s, bool was_served);
  void Insert(QueueClient& client);
  void Remove(QueueClient& client);
  void BecomeIdle(QueueClient& client);
  void LeaveIdle(QueueClient& client);

  const double window_s_;
  std::array<Level, LevelLines::kNumLevels> levels_;
  std::unordered_map<std::uint64_t, std::unique_ptr<QueueClient>> clients_;
  /// Whose request joined last; null if it was forgotten. Requests that are read together come
  /// from few clients.
  QueueClient* last_joined_ = nullptr;
  QueueClient* first_idle_ = nullptr;
  QueueClient* last_idle_ = nullptr;
  std::size_t num_idle_ = 0;
  std::uint64_t last_turn_ = 0;
  std::int64_t waiting_rows_ = 0;
  std::int64_t num_waiting_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_FAIR_ORDER_H_
