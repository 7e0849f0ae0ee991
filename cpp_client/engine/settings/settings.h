#ifndef RECSYS_ENGINE_SETTINGS_SETTINGS_H_
#define RECSYS_ENGINE_SETTINGS_SETTINGS_H_

// Settings of the engine: plain values with defaults. Check() throws Error (kConfig) with a text
// that begins with the name of the field.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace recsys {

/// Bounds on requests, batches and the queue of one version. A request may be larger than a batch
/// (it then runs alone), but not larger than the queue.
struct BatchLimits {
  std::int64_t max_batch_rows = 512;
  std::int64_t max_batch_ids = 1 << 18;
  std::int64_t max_request_rows = 4096;
  std::int64_t max_request_ids = 1 << 18;
  std::int64_t max_queue_rows = 8192;
  std::int64_t max_queue_ids = 1 << 22;
  /// Bytes of the waiting requests as they came over the wire; a larger request is refused.
  std::int64_t max_queue_bytes = 256 << 20;
  /// How long the oldest request may wait for others while an executor is free.
  std::int64_t max_delay_us = 0;
  /// How much later a request may come and still overtake one that is less urgent by one level.
  std::int64_t priority_window_us = 100'000;

  void Check() const;
  /// Refuses a request that is too large: throws Error (kRequestTooLarge).
  void CheckRequest(std::int64_t num_rows, std::int64_t num_ids, std::int64_t num_bytes = 0) const;
};

bool operator==(const BatchLimits& a, const BatchLimits& b);

/// Bounds on what clients may hold of the port; 0 stands for no bound.
struct ConnectionLimits {
  std::int64_t max_connections = 8192;
  std::int64_t max_message_bytes = 4 << 20;
  std::int64_t max_concurrent_streams = 1024;
  /// Unanswered requests of one stream; no more are read from it.
  std::int64_t max_stream_requests = 64;
  double max_connection_idle_s = 300.0;
  double max_connection_age_s = 0.0;
  /// From accept to the end of the handshakes of TLS and HTTP/2.
  double handshake_timeout_s = 20.0;
  /// From accept to the first call.
  double first_call_timeout_s = 60.0;
  /// A call ends whose message has begun and does not grow for so long.
  double message_timeout_s = 30.0;
  /// A silent connection is sent a PING after the first, and closed without a reply in the second.
  double keepalive_s = 60.0;
  double keepalive_timeout_s = 20.0;
  /// Of the names and values that open one call.
  std::int64_t max_header_bytes = 16 << 10;
  /// Memory for unfinished messages and for answers that the client does not take. A connection
  /// beyond its bound is closed. Two messages of the largest size always fit, here and below.
  std::int64_t max_connection_bytes = 64 << 20;
  /// The same of all connections together; beyond it the one is closed that holds most.
  std::int64_t max_port_bytes = 512 << 20;
  /// Of one connection: calls that are reset instead of answered, and frames without data. Ten
  /// seconds' worth may come at once, and answered calls allow some more; then it is closed.
  double max_resets_per_s = 200.0;
  double max_control_frames_per_s = 500.0;

  /// `bound`, one of the two bounds on memory, as it holds.
  std::int64_t MemoryBound(std::int64_t bound) const;
  void Check() const;
};

/// Certificates and key as PEM text.
struct TlsPem {
  std::string certificate;
  std::string key;
  /// Authorities of clients' certificates; where given, clients must show one (mTLS).
  std::optional<std::string> client_ca;
};

/// How the inference port listens.
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
  /// Names under which requests find it.
  std::string name;
  std::string version;
  /// Which of the artifact's targets; none for the first that this machine has the devices for.
  std::optional<std::string> target;
  bool verify_checksums = true;
  bool copy_rows = false;
  bool allow_non_finite = false;
  BatchLimits limits;
  /// Most threads that run batches of the model at the same time.
  std::int64_t num_executors = 1;
  /// The processors that its executors may use; empty for all.
  std::vector<std::int64_t> cpus;

  void Check() const;
};

/// Bounds of a ring of events; what exceeds one of them is dropped and counted.
struct RingLimits {
  std::int64_t max_entries = 0;
  std::int64_t max_bytes = 0;
};

/// Which ended requests leave a record.
enum class EndedRecords { kNone, kErrors, kAll };

/// What the engine records for its owner, and how much of it may wait.
struct EngineSettings {
  EndedRecords ended = EndedRecords::kErrors;
  /// Share of the requests that are traced where the client does not say; none for no traces.
  std::optional<double> trace_share;
  /// Share of the accepted requests that are captured.
  double capture_share = 0.0;
  /// How many batches of all models may run at a time; 0 for as many as the affinity mask has
  /// processors.
  std::int64_t num_processors = 0;
  RingLimits ended_ring{8192, 16 << 20};
  RingLimits captured_ring{1024, 64 << 20};
  RingLimits shadow_ring{1024, 64 << 20};
  RingLimits log_ring{4096, 4 << 20};
  /// Calls that wait for an answer from outside the engine; further ones are refused.
  RingLimits call_ring{4096, 256 << 20};

  void Check() const;
};

/// Where the requests of one model go, as the engine's owner decides.
struct RouteSpec {
  std::string model;
  /// Answers requests that name no version; empty where it is not ready.
  std::string serving;
  /// Answers a share of them; empty for none. Shares are 0 to 1.
  std::string canary;
  double canary_share = 0;
  /// Computes a share of them beside the version that answers; empty for none.
  std::string shadow;
  double shadow_share = 0;
  /// Versions that will be ready soon.
  std::set<std::string> loading;
  /// Whether an operator has taken the model out of memory.
  bool is_unloaded = false;
  /// Whether requests that name no model go here.
  bool is_only = false;
};

/// How a request from another door than the port is read and answered.
struct SubmitOptions {
  /// "recsys": a PredictRequest of recsys.v1; "kserve": a ModelInferRequest of Open Inference.
  std::string form = "recsys";
  /// Name of the door in records, such as "rest" or "ray".
  std::string protocol = "rest";
  /// Until the deadline; none for no deadline.
  std::optional<double> remaining_s;
  std::string trace_parent;
  /// Whether the version in the message was drawn by the routing, so that the shadow's share
  /// applies.
  bool drew_version = false;
};

// From JSON objects whose keys are the names above; unknown keys and wrong types are refused. Keys
// that are left out keep their defaults. Throw Error (kConfig).
EngineSettings EngineSettingsOf(std::string_view json);
PortSettings PortSettingsOf(std::string_view json);
VersionSettings VersionSettingsOf(std::string_view json);
RouteSpec RouteSpecOf(std::string_view json);
SubmitOptions SubmitOptionsOf(std::string_view json);

}  // namespace recsys

#endif  // RECSYS_ENGINE_SETTINGS_SETTINGS_H_
