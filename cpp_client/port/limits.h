#ifndef RECSYS_PORT_LIMITS_H_
#define RECSYS_PORT_LIMITS_H_

#include <cstdint>

namespace recsys {

/// Limits on clients' use of the port; 0 means no limit.
struct ConnectionLimits {
  std::int64_t max_connections = 8192;
  std::int64_t max_message_bytes = 4 << 20;
  std::int64_t max_concurrent_streams = 1024;
  /// Unanswered requests of one stream; no more are read from it.
  std::int64_t max_stream_requests = 64;
  double max_connection_idle_s = 300.0;
  double max_connection_age_s = 0.0;
  /// From accept to the end of the TLS and HTTP/2 handshakes.
  double handshake_timeout_s = 20.0;
  /// From accept to the first call.
  double first_call_timeout_s = 60.0;
  /// Ends a call whose message has not come, or has begun and has not grown, for this long.
  double message_timeout_s = 30.0;
  /// A silent connection is sent a PING after the first, and closed if there is no reply within the
  /// second.
  double keepalive_s = 60.0;
  double keepalive_timeout_s = 20.0;
  /// Total size of the names and values of a call's headers.
  std::int64_t max_header_bytes = 16 << 10;
  /// Memory for the connection's session, open calls with their headers, unfinished messages, and
  /// answers that the client does not read. Near the bound, new calls are refused; beyond it, the
  /// connection is closed. Two messages of maximum size always fit, here and below.
  std::int64_t max_connection_bytes = 64 << 20;
  /// The same for all connections together: above half of it, those that hold more than their even
  /// share get no new calls; if exceeded, the largest one is closed.
  std::int64_t max_port_bytes = 512 << 20;
  /// Per connection: calls that are reset instead of answered, and frames without data. Ten
  /// seconds' worth may arrive at once, and answered calls allow some more; beyond that it is
  /// closed.
  double max_resets_per_s = 200.0;
  double max_control_frames_per_s = 500.0;

  /// Returns the effective value of `bound`, one of the two bounds on memory.
  std::int64_t MemoryBound(std::int64_t bound) const;
  void Check() const;
};

/// Throws Error (kConfig) if the value of that name is smaller.
void CheckAtLeast(const char* name, std::int64_t value, std::int64_t least);

}  // namespace recsys

#endif  // RECSYS_PORT_LIMITS_H_
