#ifndef RECSYS_PORT_POLLING_BALANCE_H_
#define RECSYS_PORT_POLLING_BALANCE_H_

// Decides which polling threads have the connections. Arithmetic only: no threads, no clock of its
// own.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace recsys::http2 {

/// When polling threads are busy, as shares of a processor's time. A thread that is kept waiting by
/// others uses less: where all processors are busy, a further thread would only cost time.
struct BalanceLimits {
  /// The time over which shares are measured, at least.
  double window_s = 0.1;
  /// A new connection goes to the first thread below this share.
  double take_below = 0.6;
  /// A thread at this share for so many windows hands connections to another one.
  double spread_at = 0.8;
  int num_spread_windows = 3;
  /// Threads whose shares together stay below this for so long become one: for much less than
  /// spread_at, as two threads need more time for the same calls.
  double join_below = 0.5;
  double join_after_s = 2.0;
};

/// What a polling thread has used and has.
struct LoopLoad {
  /// Processor time since it began.
  double processor_s = 0;
  std::int64_t num_connections = 0;
};

/// Which share of the work of one loop should go to another one.
struct LoopMove {
  std::size_t from = 0;
  std::size_t to = 0;
  /// 1 for all connections.
  double share = 0;
};

/// Keeps connections on as few polling threads as their load asks for, the first ones. Not
/// thread-safe. Times are seconds on the caller's clock.
///
/// One thread needs less time for a call than several: it finds more of them whenever it wakes.
class Balance {
 public:
  Balance(std::size_t num_loops, BalanceLimits limits);

  /// When Decide has something to measure.
  double next_s() const { return next_s_; }
  /// Measures the shares since the last call; returns what should be moved now. `loads` has one
  /// element for each loop.
  std::optional<LoopMove> Decide(double now_s, const std::vector<LoopLoad>& loads);
  /// Returns the loop for a new connection: of equally busy ones, that with the fewest.
  std::size_t LoopForNew(const std::vector<LoopLoad>& loads) const;
  /// The share of a loop in the last window.
  double share(std::size_t loop) const { return loops_[loop].share; }

 private:
  struct Seen {
    double processor_s = 0;
    double share = 0;
    /// Windows in a row at or above the limit; below 0 while the effect of a move is awaited.
    int num_hot = 0;
  };

  void Measure(double now_s, const std::vector<LoopLoad>& loads);
  std::optional<LoopMove> Spread(double now_s, const std::vector<LoopLoad>& loads);
  std::optional<LoopMove> Join(double now_s, const std::vector<LoopLoad>& loads);

  const BalanceLimits limits_;
  std::vector<Seen> loops_;
  bool has_measured_ = false;
  double measured_s_ = 0;
  double next_s_ = 0;
  /// Since when two loops could be one; infinite if they could not.
  double quiet_since_s_ = kNever;
  double joined_s_ = -kNever;
  /// Longer each time that loops were joined too soon.
  double join_after_s_;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_BALANCE_H_
