#ifndef RECSYS_PORT_LIMITS_H_
#define RECSYS_PORT_LIMITS_H_

// Written by python -m serve.engine.native_settings: change the settings there.

#include <cstdint>

#include "base/bounds.h"

namespace recsys {

/// Limits on what clients may use of the server; 0 means no limit.
struct ConnectionLimits {
  /// Open connections; the server closes further ones at once.
  std::int64_t max_connections = 8192;
  /// Size of one serialized request; a parsed one may take many times as much memory.
  std::int64_t max_message_bytes = 4194304;
  /// Open calls of one connection; further calls wait on the client's side.
  std::int64_t max_concurrent_streams = 1024;
  /// Unanswered requests of one PredictStream; at this limit no further ones are read.
  std::int64_t max_stream_requests = 64;
  /// Time after which a connection without calls is closed.
  double max_connection_idle_s = 300.0;
  /// Age from which a connection is closed once its calls have ended.
  double max_connection_age_s = 0.0;
  /// Time from the connection to the end of the TLS and HTTP/2 handshakes.
  double handshake_timeout_s = 20.0;
  /// Time from the connection to its first call; native engine only.
  double first_call_timeout_s = 60.0;
  /// Time after which a call ends if its message does not come, or begins and does not grow; native
  /// engine only.
  double message_timeout_s = 30.0;
  /// Time after which a silent connection is sent a PING.
  double keepalive_s = 60.0;
  /// Time after which it is closed if the PING is not answered.
  double keepalive_timeout_s = 20.0;
  /// Size of the names and values of one call's headers.
  std::int64_t max_header_bytes = 16384;
  /// Memory of one connection: its HTTP/2 session, open calls with their headers, unfinished
  /// messages, unread answers; near it new calls are refused, beyond it the connection is closed;
  /// native engine only. Two messages of the largest size always fit.
  std::int64_t max_connection_bytes = 67108864;
  /// The same for all connections together; above half of it connections that hold more than their
  /// even share get no new calls, beyond it the one that holds most is closed.
  std::int64_t max_port_bytes = 536870912;
  /// Calls of one connection that are reset instead of answered; after a burst of ten seconds'
  /// worth the connection is closed; native engine only.
  double max_resets_per_s = 200.0;
  /// The same for frames without data; native engine only.
  double max_control_frames_per_s = 500.0;

  /// Throws Error (kConfig), with the name of the field, if a value is out of bounds.
  void Check() const;
  /// Calls `visit` with the name, the value and the bounds of each field.
  template <typename Self, typename Visit>
  static void ForEach(Self& self, Visit visit) {
    visit("max_connections", self.max_connections, Bounds{0, 2147483647});
    visit("max_message_bytes", self.max_message_bytes, Bounds{1024, 2147483647});
    visit("max_concurrent_streams", self.max_concurrent_streams, Bounds{0, 2147483647});
    visit("max_stream_requests", self.max_stream_requests, Bounds{1, kUnbounded});
    visit("max_connection_idle_s", self.max_connection_idle_s, Bounds{0.001, 2147483, true});
    visit("max_connection_age_s", self.max_connection_age_s, Bounds{0.001, 2147483, true});
    visit("handshake_timeout_s", self.handshake_timeout_s, Bounds{0.001, 2147483, true});
    visit("first_call_timeout_s", self.first_call_timeout_s, Bounds{0.001, 2147483, true});
    visit("message_timeout_s", self.message_timeout_s, Bounds{0.001, 2147483, true});
    visit("keepalive_s", self.keepalive_s, Bounds{0.001, 2147483, true});
    visit("keepalive_timeout_s", self.keepalive_timeout_s, Bounds{0.001, 2147483, true});
    visit("max_header_bytes", self.max_header_bytes, Bounds{1024, 2147483647});
    visit("max_connection_bytes", self.max_connection_bytes, Bounds{0, kUnbounded});
    visit("max_port_bytes", self.max_port_bytes, Bounds{0, kUnbounded});
    visit("max_resets_per_s", self.max_resets_per_s, Bounds{0, kUnbounded, true});
    visit("max_control_frames_per_s", self.max_control_frames_per_s, Bounds{0, kUnbounded, true});
  }
};

}  // namespace recsys

#endif  // RECSYS_PORT_LIMITS_H_
