#ifndef RECSYS_PORT_PORT_STATE_H_
#define RECSYS_PORT_PORT_STATE_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "port/bounds/counters.h"
#include "port/bounds/memory_ledger.h"
#include "port/limits.h"
#include "port/net/listening.h"
#include "port/net/tls.h"

namespace recsys::http2 {

class Loop;
class Polled;

/// Counts the open calls of a port. Thread-safe; calls share no lock, except for the last one while
/// a thread waits.
class OpenCalls {
 public:
  void Begin() { count_.fetch_add(1); }
  void End() {
    if (count_.fetch_sub(1) != 1 || !is_awaited_.load()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    none_.notify_all();
  }
  /// Waits until none is open, or until then (MonotonicSeconds); returns whether none is.
  bool WaitUntilNone(double until_s) {
    std::unique_lock<std::mutex> lock(mutex_);
    is_awaited_.store(true);
    const auto is_none = [this] { return count_.load() == 0; };
    // Long waits are split: the library's clocks overflow.
    constexpr double kPieceS = 3600;
    while (!is_none()) {
      const double left_s = until_s - MonotonicSeconds();
      if (!(left_s > 0)) return false;
      none_.wait_for(lock, std::chrono::duration<double>(std::fmin(left_s, kPieceS)), is_none);
    }
    return true;
  }

 private:
  std::atomic<std::int64_t> count_{0};
  std::atomic<bool> is_awaited_{false};
  std::mutex mutex_;
  std::condition_variable none_;
};

/// Returns a bound on memory that takes two messages of the largest size; 0 for none.
inline std::int64_t MemoryBound(const ConnectionLimits& limits, std::int64_t bound) {
  return bound == 0 ? 0 : std::max(bound, 2 * limits.max_message_bytes);
}

/// State shared by the connections of one port, whatever its protocol. Outlives them.
struct PortState {
  explicit PortState(const ConnectionLimits& the_limits)
      : limits(the_limits),
        ledger(MemoryBound(the_limits, the_limits.max_port_bytes), &counters.held_bytes) {}
  virtual ~PortState() = default;
  PortState(const PortState&) = delete;
  PortState& operator=(const PortState&) = delete;

  /// Makes a connection of the port's protocol, in its loop's thread. `id` names it in the loop.
  virtual std::unique_ptr<Polled> Open(Loop* loop, std::int64_t id, FileHandle file) = 0;

  const ConnectionLimits limits;
  /// Null for plain text.
  std::shared_ptr<TlsStore> tls;
  PortCounters counters;
  MemoryLedger ledger;
  OpenCalls open_calls;
  /// Connections that loops have, or are about to open.
  std::atomic<std::int64_t> num_connections{0};
  std::atomic<bool> is_draining{false};
};

/// Returns a number that no other connection of the process has.
inline std::uint64_t NextConnectionNumber() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace recsys::http2

#endif  // RECSYS_PORT_PORT_STATE_H_
