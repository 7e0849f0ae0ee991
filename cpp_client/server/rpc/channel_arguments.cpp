#include "server/rpc/channel_arguments.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace recsys {
namespace {

// A connection that has not said what it wants by then is closed.
constexpr int kHandshakeTimeoutMs = 20'000;
// A connection that says nothing for so long is asked whether somebody is there, and closed where
// nobody answers.
constexpr int kKeepaliveMs = 60'000;
constexpr int kPingTimeoutMs = 20'000;
// Clients may ask too, not more often than this.
constexpr int kMinPingIntervalMs = 10'000;
// Files and sockets beside clients' connections: artifacts, logs, the ports themselves.
constexpr std::int64_t kOtherFiles = 256;

int Clamped(double value) {
  return static_cast<int>(std::min(value, static_cast<double>(std::numeric_limits<int>::max())));
}

std::int64_t WantedFiles(const ConnectionLimits& limits, int num_ports) {
  return limits.max_connections * num_ports + kOtherFiles;
}

}  // namespace

std::vector<std::pair<std::string, int>> ChannelArguments(const ConnectionLimits& limits) {
  std::vector<std::pair<std::string, int>> arguments = {
      {"grpc.max_receive_message_length", Clamped(static_cast<double>(limits.max_message_bytes))},
      {"grpc.max_send_message_length", -1},
      {"grpc.so_reuseport", 0},
      {"grpc.server_handshake_timeout_ms", kHandshakeTimeoutMs},
      {"grpc.keepalive_time_ms", kKeepaliveMs},
      {"grpc.keepalive_timeout_ms", kPingTimeoutMs},
      {"grpc.keepalive_permit_without_calls", 1},
      {"grpc.http2.min_ping_interval_without_data_ms", kMinPingIntervalMs},
  };
  const std::pair<const char*, double> bounds[] = {
      {"grpc.max_concurrent_streams", static_cast<double>(limits.max_concurrent_streams)},
      {"grpc.max_connection_idle_ms", std::round(limits.max_connection_idle_s * 1000)},
      {"grpc.max_connection_age_ms", std::round(limits.max_connection_age_s * 1000)},
  };
  for (const auto& [name, value] : bounds) {
    if (value > 0) arguments.emplace_back(name, Clamped(value));
  }
  return arguments;
}

void AllowOpenFiles(const ConnectionLimits& limits, int num_ports) {
  rlimit found = {};
  if (getrlimit(RLIMIT_NOFILE, &found) != 0 || found.rlim_cur == RLIM_INFINITY) return;
  const auto wanted = static_cast<rlim_t>(WantedFiles(limits, num_ports));
  if (found.rlim_cur >= wanted) return;
  found.rlim_cur = found.rlim_max == RLIM_INFINITY ? wanted : std::min(wanted, found.rlim_max);
  // Where it is refused the process has the files that it had: MissingOpenFiles tells before.
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &found));
}

std::int64_t MissingOpenFiles(const ConnectionLimits& limits, int num_ports) {
  rlimit found = {};
  if (getrlimit(RLIMIT_NOFILE, &found) != 0 || found.rlim_max == RLIM_INFINITY) return 0;
  return std::max<std::int64_t>(
      WantedFiles(limits, num_ports) - static_cast<std::int64_t>(found.rlim_max), 0);
}

}  // namespace recsys
