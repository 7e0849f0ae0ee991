#ifndef RECSYS_PORT_BOUNDS_COUNTERS_H_
#define RECSYS_PORT_BOUNDS_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace recsys {

/// What happened on a port since it was opened. Counters only increase, except for `num_open` and
/// `held_bytes`.
struct PortCounters {
  std::atomic<std::int64_t> num_open{0};
  std::atomic<std::int64_t> accepted{0};
  /// Connections above the maximum.
  std::atomic<std::int64_t> refused{0};
  /// Closed because the client did not finish a handshake, open a call or reply to a PING in time.
  std::atomic<std::int64_t> closed_silent{0};
  /// Closed for resets, for control frames, for a call's header fields, and for the memory held.
  std::atomic<std::int64_t> closed_resets{0};
  std::atomic<std::int64_t> closed_control_frames{0};
  std::atomic<std::int64_t> closed_headers{0};
  std::atomic<std::int64_t> closed_memory{0};
  /// Calls that the client reset before they were answered.
  std::atomic<std::int64_t> resets{0};
  /// Messages that did not grow in time.
  std::atomic<std::int64_t> stalled_messages{0};
  /// Calls refused because their connection held too much memory.
  std::atomic<std::int64_t> refused_calls{0};
  /// Current bytes that connections hold: sessions, open calls with their headers, unfinished
  /// messages and unsent answers.
  std::atomic<std::int64_t> held_bytes{0};
};

}  // namespace recsys

#endif  // RECSYS_PORT_BOUNDS_COUNTERS_H_
