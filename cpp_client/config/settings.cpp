#include "config/settings.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::int64_t kMaxPort = 65535;
// gRPC takes settings of channels as int32, times in milliseconds among them.
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxConnectionSeconds = kMaxInt32 / 1000;
constexpr char kLatest[] = "latest";

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

void CheckShare(const std::string& name, const std::string& version, double percent,
                const std::string& serving) {
  if (!version.empty() && !(percent > 0 && percent <= 100)) {
    Refuse(name + "_percent: got " + ReprFloat(percent) + ", expected above 0, up to 100");
  }
  if (version.empty() && percent != 0) {
    Refuse(name + ": got no version for " + ReprFloat(percent) + " percent of the requests");
  }
  if (!version.empty() && (version == serving || version == kLatest)) {
    Refuse(name + ": got " + Repr(version) + ", expected another version than the one that serves");
  }
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

void Routing::Check() const {
  if (serve.empty()) Refuse("serve: got an empty text, expected latest or a version");
  CheckShare("canary", canary, canary_percent, serve);
  CheckShare("shadow", shadow, shadow_percent, serve);
}

std::set<std::string> Routing::Named() const {
  std::set<std::string> named{serve, canary, shadow};
  named.erase("");
  named.erase(kLatest);
  return named;
}

Routing Routing::Without(const std::string& version) const {
  Routing left = *this;
  if (canary == version) left.canary.clear();
  if (shadow == version) left.shadow.clear();
  if (left.canary.empty()) left.canary_percent = 0;
  if (left.shadow.empty()) left.shadow_percent = 0;
  return left;
}

Routing Routing::Pinned(const std::string& version) const {
  Routing pinned = Without(version);
  pinned.serve = version;
  return pinned;
}

bool operator==(const BatchLimits& a, const BatchLimits& b) {
  return a.max_batch_rows == b.max_batch_rows && a.max_batch_ids == b.max_batch_ids &&
         a.max_request_rows == b.max_request_rows && a.max_request_ids == b.max_request_ids &&
         a.max_queue_rows == b.max_queue_rows && a.max_queue_ids == b.max_queue_ids &&
         a.max_queue_bytes == b.max_queue_bytes && a.max_delay_us == b.max_delay_us &&
         a.priority_window_us == b.priority_window_us;
}

bool operator==(const Routing& a, const Routing& b) {
  return a.serve == b.serve && a.canary == b.canary && a.canary_percent == b.canary_percent &&
         a.shadow == b.shadow && a.shadow_percent == b.shadow_percent;
}

void ModelSettings::Check() const {
  CheckAtLeast("num_executors", num_executors, 1);
  if (std::any_of(cpus.begin(), cpus.end(), [](std::int64_t cpu) { return cpu < 0; })) {
    Refuse("cpus: got " + Numbers(cpus) + ", expected numbers of processors, from 0");
  }
  if (target && target->empty()) {
    Refuse("target: got an empty text, expected the name of a target such as cpu");
  }
}

void AdminSettings::Check() const {
  CheckHost(host);
  CheckPort("port", port);
}

void ConnectionLimits::Check() const {
  CheckAtLeast("max_message_bytes", max_message_bytes, 1024);
  CheckAtLeast("max_json_bytes", max_json_bytes, 1024);
  CheckAtLeast("max_stream_requests", max_stream_requests, 1);
  CheckAtLeast("max_connections", max_connections, 0);
  CheckAtLeast("max_concurrent_streams", max_concurrent_streams, 0);
  CheckConnectionTime("max_connection_idle_s", max_connection_idle_s);
  CheckConnectionTime("max_connection_age_s", max_connection_age_s);
  CheckInt32("max_connections", max_connections);
  CheckInt32("max_message_bytes", max_message_bytes);
  CheckInt32("max_concurrent_streams", max_concurrent_streams);
}

void LogSettings::Check() const {
  if (requests == "none" || requests == "errors" || requests == "all") return;
  Refuse("requests: got " + Repr(requests) + ", expected none, errors or all");
}

void TraceSettings::Check() const {
  if (endpoint.rfind("http://", 0) != 0 && endpoint.rfind("https://", 0) != 0) {
    Refuse("endpoint: got " + Repr(endpoint) + ", expected http:// or https://, host and port");
  }
  if (!(share >= 0 && share <= 1)) {
    Refuse("share: got " + ReprFloat(share) + ", expected 0 to 1");
  }
}

void CaptureSettings::Check() const {
  if (!(share > 0 && share <= 1)) {
    Refuse("share: got " + ReprFloat(share) + ", expected above 0, up to 1");
  }
  CheckAtLeast("max_bytes", max_bytes, 1);
}

void ServerSettings::Check() const {
  CheckHost(host);
  CheckPort("port", port);
  if (metrics_port) CheckPort("metrics_port", *metrics_port);
  if (http_port) CheckPort("http_port", *http_port);
  if (!(poll_repository_s >= 0 && std::isfinite(poll_repository_s))) {
    Refuse("poll_repository_s: got " + ReprFloat(poll_repository_s) + ", expected 0 or more");
  }
  if (!(drain_timeout_s > 0 && std::isfinite(drain_timeout_s))) {
    Refuse("drain_timeout_s: got " + ReprFloat(drain_timeout_s) + ", expected more than 0");
  }
}

const ModelSettings& ServerSettings::SettingsOf(const std::string& model) const {
  const auto found = models.find(model);
  return found == models.end() ? defaults : found->second;
}

void SourceSettings::Check() const {
  if (!models.empty() && !repository && artifact) {
    std::string names;
    for (const std::string& name : models) names += (&name == &models.front() ? "" : ",") + name;
    Refuse("models: got " + names + " beside an artifact, expected a repository");
  }
  if (std::any_of(models.begin(), models.end(), [](const auto& name) { return name.empty(); })) {
    Refuse("models: got an empty name, expected names of models");
  }
}

void ProcessSettings::Check() const {
  CheckAtLeast("intra_op_threads", intra_op_threads, 1);
  CheckAtLeast("switch_interval_us", switch_interval_us, 1);
}

}  // namespace recsys
