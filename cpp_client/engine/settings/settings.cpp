#include "engine/settings/settings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::int64_t kMaxPort = 65535;
// gRPC's channel settings are int32, including times in milliseconds.
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxConnectionSeconds = kMaxInt32 / 1000;

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kConfig, text); }

[[noreturn]] void RefuseRequest(const std::string& text) {
  throw Error(ErrorKind::kRequestTooLarge, text);
}

void CheckAtLeast(const char* name, std::int64_t value, std::int64_t least) {
  if (value >= least) return;
  Refuse(std::string(name) + ": got " + std::to_string(value) + ", expected at least " +
         std::to_string(least));
}

void CheckPort(const char* name, std::int64_t port) {
  if (port >= 0 && port <= kMaxPort) return;
  Refuse(std::string(name) + ": got " + std::to_string(port) + ", expected 0 to " +
         std::to_string(kMaxPort));
}

void CheckHost(const std::string& host) {
  if (host.empty()) Refuse("host: got an empty text, expected an address such as 127.0.0.1");
}

void CheckNotAboveQueue(const std::string& what, std::int64_t request, std::int64_t queue) {
  if (request <= queue) return;
  Refuse("max_request_" + what + ": got " + std::to_string(request) +
         ", expected at most max_queue_" + what + " (" + std::to_string(queue) +
         "), or such a request could never be taken in");
}

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

void CheckFraction(const char* name, double share) {
  if (share >= 0 && share <= 1) return;
  Refuse(std::string(name) + ": got " + ReprFloat(share) + ", expected 0 to 1");
}

void CheckInt32(const char* name, std::int64_t value) {
  if (value <= kMaxInt32) return;
  Refuse(std::string(name) + ": got " + std::to_string(value) + ", expected at most " +
         std::to_string(kMaxInt32));
}

std::string Numbers(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t value : values) {
    text += (text.empty() ? "" : ", ") + std::to_string(value);
  }
  return "[" + text + "]";
}

}  // namespace

void BatchLimits::Check() const {
  CheckAtLeast("max_batch_rows", max_batch_rows, 1);
  CheckAtLeast("max_batch_ids", max_batch_ids, 1);
  CheckAtLeast("max_request_rows", max_request_rows, 1);
  CheckAtLeast("max_request_ids", max_request_ids, 1);
  CheckAtLeast("max_queue_rows", max_queue_rows, 1);
  CheckAtLeast("max_queue_ids", max_queue_ids, 1);
  CheckAtLeast("max_queue_bytes", max_queue_bytes, 1);
  CheckAtLeast("max_delay_us", max_delay_us, 0);
  CheckAtLeast("priority_window_us", priority_window_us, 0);
  CheckNotAboveQueue("rows", max_request_rows, max_queue_rows);
  CheckNotAboveQueue("ids", max_request_ids, max_queue_ids);
}

void BatchLimits::CheckRequest(std::int64_t num_rows, std::int64_t num_ids,
                               std::int64_t num_bytes) const {
  const auto expected = [](std::int64_t most) {
    return ", expected at most " + std::to_string(most) + " in one request; split it";
  };
  if (num_rows > max_request_rows) {
    RefuseRequest("num_rows: got " + std::to_string(num_rows) + expected(max_request_rows));
  }
  if (num_ids > max_request_ids) {
    RefuseRequest("sparse: got " + std::to_string(num_ids) + " IDs" + expected(max_request_ids));
  }
  if (num_bytes > max_queue_bytes) {
    RefuseRequest("message: got " + std::to_string(num_bytes) + " bytes" +
                  expected(max_queue_bytes));
  }
}

bool operator==(const BatchLimits& a, const BatchLimits& b) {
  return a.max_batch_rows == b.max_batch_rows && a.max_batch_ids == b.max_batch_ids &&
         a.max_request_rows == b.max_request_rows && a.max_request_ids == b.max_request_ids &&
         a.max_queue_rows == b.max_queue_rows && a.max_queue_ids == b.max_queue_ids &&
         a.max_queue_bytes == b.max_queue_bytes && a.max_delay_us == b.max_delay_us &&
         a.priority_window_us == b.priority_window_us;
}

void VersionSettings::Check() const {
  limits.Check();
  CheckAtLeast("num_executors", num_executors, 1);
  if (std::any_of(cpus.begin(), cpus.end(), [](std::int64_t cpu) { return cpu < 0; })) {
    Refuse("cpus: got " + Numbers(cpus) + ", expected numbers of processors, from 0");
  }
  if (target && target->empty()) {
    Refuse("target: got an empty text, expected the name of a target such as cpu");
  }
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

void PortSettings::Check() const {
  CheckHost(host);
  CheckPort("port", port);
  CheckAtLeast("num_threads", num_threads, 1);
  connections.Check();
}

void EngineSettings::Check() const {
  CheckFraction("trace_share", trace_share.value_or(0));
  CheckFraction("capture_share", capture_share);
  CheckAtLeast("num_processors", num_processors, 0);
  const std::pair<const char*, const RingLimits*> rings[] = {{"ended_ring", &ended_ring},
                                                             {"captured_ring", &captured_ring},
                                                             {"shadow_ring", &shadow_ring},
                                                             {"log_ring", &log_ring},
                                                             {"call_ring", &call_ring}};
  for (const auto& [name, ring] : rings) {
    CheckAtLeast((std::string(name) + ".max_entries").c_str(), ring->max_entries, 1);
    CheckAtLeast((std::string(name) + ".max_bytes").c_str(), ring->max_bytes, 1);
  }
}

}  // namespace recsys
