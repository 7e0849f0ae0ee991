#include "port/limits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

// gRPC's channel settings are int32, including times in milliseconds.
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxConnectionSeconds = kMaxInt32 / 1000;

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kConfig, text); }

void CheckRate(const char* name, double per_s) {
  if (per_s >= 0 && std::isfinite(per_s)) return;
  Refuse(std::string(name) + ": got " + ReprFloat(per_s) + ", expected 0 (no bound) or more");
}

void CheckConnectionTime(const char* name, double seconds) {
  if (seconds == 0 || (seconds >= 0.001 && seconds <= static_cast<double>(kMaxConnectionSeconds))) {
    return;
  }
  Refuse(std::string(name) + ": got " + ReprFloat(seconds) +
         ", expected 0 (no bound) or 0.001 to " + std::to_string(kMaxConnectionSeconds));
}

void CheckInt32(const char* name, std::int64_t value) {
  if (value <= kMaxInt32) return;
  Refuse(std::string(name) + ": got " + std::to_string(value) + ", expected at most " +
         std::to_string(kMaxInt32));
}

}  // namespace

void CheckAtLeast(const char* name, std::int64_t value, std::int64_t least) {
  if (value >= least) return;
  Refuse(std::string(name) + ": got " + std::to_string(value) + ", expected at least " +
         std::to_string(least));
}

std::int64_t ConnectionLimits::MemoryBound(std::int64_t bound) const {
  return bound == 0 ? 0 : std::max(bound, 2 * max_message_bytes);
}

void ConnectionLimits::Check() const {
  CheckAtLeast("max_message_bytes", max_message_bytes, 1024);
  CheckAtLeast("max_stream_requests", max_stream_requests, 1);
  CheckAtLeast("max_connections", max_connections, 0);
  CheckAtLeast("max_concurrent_streams", max_concurrent_streams, 0);
  CheckConnectionTime("max_connection_idle_s", max_connection_idle_s);
  CheckConnectionTime("max_connection_age_s", max_connection_age_s);
  CheckConnectionTime("handshake_timeout_s", handshake_timeout_s);
  CheckConnectionTime("first_call_timeout_s", first_call_timeout_s);
  CheckConnectionTime("message_timeout_s", message_timeout_s);
  CheckConnectionTime("keepalive_s", keepalive_s);
  CheckConnectionTime("keepalive_timeout_s", keepalive_timeout_s);
  CheckAtLeast("max_header_bytes", max_header_bytes, 1024);
  CheckAtLeast("max_connection_bytes", max_connection_bytes, 0);
  CheckRate("max_resets_per_s", max_resets_per_s);
  CheckRate("max_control_frames_per_s", max_control_frames_per_s);
  CheckInt32("max_connections", max_connections);
  CheckInt32("max_message_bytes", max_message_bytes);
  CheckInt32("max_concurrent_streams", max_concurrent_streams);
  CheckAtLeast("max_port_bytes", max_port_bytes, 0);
}

}  // namespace recsys
