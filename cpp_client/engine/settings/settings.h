#ifndef RECSYS_ENGINE_SETTINGS_SETTINGS_H_
#define RECSYS_ENGINE_SETTINGS_SETTINGS_H_

// Settings of the engine: plain values with defaults. Check() throws Error (kConfig) with a text
// that begins with the name of the field.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "port/limits.h"

namespace recsys {

/// Limits on requests, batches and the queue of one version. A request may be larger than a batch
/// (then it runs alone), but not larger than the queue.
struct BatchLimits {
  std::int64_t max_batch_rows = 512;
  std::int64_t max_batch_ids = 1 << 18;
  std::int64_t max_request_rows = 4096;
  std::int64_t max_request_ids = 1 << 18;
  std::int64_t max_queue_rows = 8192;
  std::int64_t max_queue_ids = 1 << 22;
  /// Bytes of the waiting requests as received; a larger request is refused.
  std::int64_t max_queue_bytes = 256 << 20;
  /// How long the oldest request may wait for others while an executor is free.
  std::int64_t max_delay_us = 0;
  /// How much later a request may arrive and still overtake one that is less urgent by one level.
  std::int64_t priority_window_us = 100'000;

  void Check() const;
  /// Throws Error (kRequestTooLarge) if a request is too large.
  void CheckRequest(std::int64_t num_rows, std::int64_t num_ids, std::int64_t num_bytes = 0) const;
};

bool operator==(const BatchLimits& a, const BatchLimits& b);

/// Settings of the inference port.
struct PortSettings {
  std::string host = "127.0.0.1";
  /// 0 lets the system choose.
  int port = 0;
  /// Threads that poll the port.
  int num_threads = 1;
  ConnectionLimits connections;

  void Check() const;
};

/// How one version of a model is served.
struct VersionSettings {
  /// Names used by requests.
  std::string name;
  std::string version;
  /// The artifact's target; not set for the first that this machine has the devices for.
  std::optional<std::string> target;
  bool verify_checksums = true;
  bool copy_rows = false;
  bool lock_rows = false;
  /// NUMA nodes of copied rows; not set for the system's choice.
  std::optional<std::string> numa;
  bool random_access = false;
  bool allow_non_finite = false;
  BatchLimits limits;
  /// Maximum threads that run batches of the model concurrently.
  std::int64_t num_executors = 1;
  /// The processors that its executors may use; empty for all.
  std::vector<std::int64_t> cpus;

  void Check() const;
};

/// Limits of a ring of events; events beyond them are dropped and counted.
struct RingLimits {
  std::int64_t max_entries = 0;
  std::int64_t max_bytes = 0;
};

/// Which ended requests leave a record.
enum class EndedRecords { kNone, kErrors, kAll };

/// What the engine records for its owner, and how much of it may be pending.
struct EngineSettings {
  EndedRecords ended = EndedRecords::kErrors;
  /// Share of the requests that are traced if the client does not decide; not set for no traces.
  std::optional<double> trace_share;
  /// Share of the accepted requests that are captured.
  double capture_share = 0.0;
  /// How many batches of all models may run concurrently; 0 for the number of processors in the
  /// affinity mask.
  std::int64_t num_processors = 0;
  RingLimits ended_ring{8192, 16 << 20};
  RingLimits captured_ring{1024, 64 << 20};
  RingLimits shadow_ring{1024, 64 << 20};
  RingLimits log_ring{4096, 4 << 20};
  /// Calls waiting for an answer from outside the engine; further ones are refused.
  RingLimits call_ring{4096, 256 << 20};

  void Check() const;
};

/// How the requests of one model are routed, as the engine's owner decides.
struct RouteSpec {
  std::string model;
  /// Answers requests that name no version, once it is loaded; empty for none.
  std::string serving;
  /// Answers a share of them; empty for none. Shares are 0 to 1.
  std::string canary;
  double canary_share = 0;
  /// The sparse input whose first ID, or the header whose value, decides who gets the canary; empty
  /// to draw for each request.
  std::string key_feature;
  std::string key_header;
  /// Computes a share of them in addition to the answering version; empty for none.
  std::string shadow;
  double shadow_share = 0;
  /// Versions that will be ready soon.
  std::set<std::string> loading;
  /// Whether an operator has unloaded the model.
  bool is_unloaded = false;
  /// Whether requests that name no model use this one.
  bool is_only = false;
};

/// How a request that did not come through the port is read and answered.
struct SubmitOptions {
  /// "recsys": a PredictRequest of recsys.v1; "kserve": a ModelInferRequest of Open Inference.
  std::string form = "recsys";
  /// Name of its source in records, such as "rest" or "ray".
  std::string protocol = "rest";
  /// Seconds until the deadline; not set for no deadline.
  std::optional<double> remaining_s;
  /// The request's headers that the engine reads, under lower-case names.
  std::map<std::string, std::string> headers;
  /// Whether the version in the message was drawn by the routing, so that the shadow's share
  /// applies.
  bool drew_version = false;
  /// Names the client, such as its connection: clients take turns.
  std::string client;
};

// Parse JSON objects whose keys are the names above; unknown keys and wrong types are refused.
// Missing keys keep their defaults. Throw Error (kConfig).
EngineSettings EngineSettingsOf(std::string_view json);
PortSettings PortSettingsOf(std::string_view json);
VersionSettings VersionSettingsOf(std::string_view json);
RouteSpec RouteSpecOf(std::string_view json);
SubmitOptions SubmitOptionsOf(std::string_view json);

}  // namespace recsys

#endif  // RECSYS_ENGINE_SETTINGS_SETTINGS_H_
