#include "engine/settings/settings.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::int64_t kMaxPort = 65535;

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kConfig, text); }

[[noreturn]] void RefuseRequest(const std::string& text) {
  throw Error(ErrorKind::kRequestTooLarge, text);
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

void CheckFraction(const char* name, double share) {
  if (share >= 0 && share <= 1) return;
  Refuse(std::string(name) + ": got " + ReprFloat(share) + ", expected 0 to 1");
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
