#ifndef RECSYS_ENGINE_SETTINGS_SETTINGS_H_
#define RECSYS_ENGINE_SETTINGS_SETTINGS_H_

// Written by python -m serve.engine.native_settings: change the settings there.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/bounds.h"
#include "port/limits.h"

namespace recsys {

/// Bounds on requests, batches and the queue.
struct BatchLimits {
  /// Rows of one batch; a request without rows counts as one row, here and below.
  std::int64_t max_batch_rows = 512;
  /// IDs of one batch, over all sparse inputs.
  std::int64_t max_batch_ids = 262144;
  /// Rows of one request.
  std::int64_t max_request_rows = 4096;
  /// IDs of one request.
  std::int64_t max_request_ids = 262144;
  /// Rows that may wait.
  std::int64_t max_queue_rows = 8192;
  /// IDs that may wait.
  std::int64_t max_queue_ids = 4194304;
  /// Serialized bytes of requests that may wait; a larger request is refused.
  std::int64_t max_queue_bytes = 268435456;
  /// Time that the oldest request may wait for others to fill its batch while an executor is free;
  /// 0 for none.
  std::int64_t max_delay_us = 0;
  /// How much later a request may arrive and still overtake one that is one level less urgent; 0
  /// keeps the order of arrival.
  std::int64_t priority_window_us = 100000;

  /// Throws Error (kConfig), with the name of the field, if a value is out of bounds.
  void Check() const;
  /// Calls `visit` with the name, the value and the bounds of each field.
  template <typename Self, typename Visit>
  static void ForEach(Self& self, Visit visit) {
    visit("max_batch_rows", self.max_batch_rows, Bounds{1, kUnbounded});
    visit("max_batch_ids", self.max_batch_ids, Bounds{1, kUnbounded});
    visit("max_request_rows", self.max_request_rows, Bounds{1, kUnbounded});
    visit("max_request_ids", self.max_request_ids, Bounds{1, kUnbounded});
    visit("max_queue_rows", self.max_queue_rows, Bounds{1, kUnbounded});
    visit("max_queue_ids", self.max_queue_ids, Bounds{1, kUnbounded});
    visit("max_queue_bytes", self.max_queue_bytes, Bounds{1, kUnbounded});
    visit("max_delay_us", self.max_delay_us, Bounds{0, kUnbounded});
    visit("priority_window_us", self.priority_window_us, Bounds{0, kUnbounded});
  }
};

/// The inference port.
struct PortSettings {
  /// The address to listen on.
  std::string host = "127.0.0.1";
  /// 0 lets the system choose.
  std::int64_t port = 0;
  /// Threads that poll the port; native engine only.
  std::int64_t num_threads = 1;
  /// Limits on connections and messages.
  ConnectionLimits connections;

  /// Throws Error (kConfig), with the name of the field, if a value is out of bounds.
  void Check() const;
  /// Calls `visit` with the name, the value and the bounds of each field.
  template <typename Self, typename Visit>
  static void ForEach(Self& self, Visit visit) {
    visit("host", self.host, Bounds());
    visit("port", self.port, Bounds{0, 65535});
    visit("num_threads", self.num_threads, Bounds{1, 1024});
    visit("connections", self.connections, Bounds());
  }
};

/// How one version of a model is served.
struct VersionSettings {
  /// The model's name in requests.
  std::string name;
  /// The version's name in requests.
  std::string version;
  /// The artifact's target; not set for the first that this machine has the devices for.
  std::optional<std::string> target;
  /// Whether the rows' checksums are compared while they are loaded.
  bool verify_checksums = true;
  /// Whether the rows are copied to memory instead of mapped.
  bool copy_rows = false;
  /// Whether their memory is locked.
  bool lock_rows = false;
  /// NUMA nodes of copied rows; not set for the system's choice.
  std::optional<std::string> numa;
  /// Whether mapped rows are read in single pages.
  bool random_access = false;
  /// Whether NaN and infinities are accepted in dense inputs and weights.
  bool allow_non_finite = false;
  /// Memory for what its program computes of contexts alone; 0 for none.
  std::int64_t context_cache_bytes = 0;
  /// Nodes with the rows of large tables, HOST:PORT with commas between; empty for none.
  std::string rows;
  /// A replica of each, in the same order; empty for none.
  std::string rows_replicas;
  /// Tables with more bytes of rows are read there.
  std::int64_t rows_over_bytes = 1073741824;
  /// Memory for such rows that are read often.
  std::int64_t rows_cache_bytes = 268435456;
  /// Milliseconds that a batch waits for its rows.
  std::int64_t rows_deadline_ms = 20;
  /// Milliseconds after which replicas are asked too.
  std::int64_t rows_hedge_ms = 5;
  /// Tables whose rows count as zeros where they cannot be read.
  std::set<std::string> rows_zero;
  /// Limits on requests, batches and the queue.
  BatchLimits limits;
  /// How many batches of the model may run concurrently.
  std::int64_t num_executors = 1;
  /// The processors that its executors may use; empty for all.
  std::vector<std::int64_t> cpus;

  /// Throws Error (kConfig), with the name of the field, if a value is out of bounds.
  void Check() const;
  /// Calls `visit` with the name, the value and the bounds of each field.
  template <typename Self, typename Visit>
  static void ForEach(Self& self, Visit visit) {
    visit("name", self.name, Bounds());
    visit("version", self.version, Bounds());
    visit("target", self.target, Bounds());
    visit("verify_checksums", self.verify_checksums, Bounds());
    visit("copy_rows", self.copy_rows, Bounds());
    visit("lock_rows", self.lock_rows, Bounds());
    visit("numa", self.numa, Bounds());
    visit("random_access", self.random_access, Bounds());
    visit("allow_non_finite", self.allow_non_finite, Bounds());
    visit("context_cache_bytes", self.context_cache_bytes, Bounds{0, kUnbounded});
    visit("rows", self.rows, Bounds());
    visit("rows_replicas", self.rows_replicas, Bounds());
    visit("rows_over_bytes", self.rows_over_bytes, Bounds{0, kUnbounded});
    visit("rows_cache_bytes", self.rows_cache_bytes, Bounds{0, kUnbounded});
    visit("rows_deadline_ms", self.rows_deadline_ms, Bounds{1, kUnbounded});
    visit("rows_hedge_ms", self.rows_hedge_ms, Bounds{1, kUnbounded});
    visit("rows_zero", self.rows_zero, Bounds());
    visit("limits", self.limits, Bounds());
    visit("num_executors", self.num_executors, Bounds{1, kUnbounded});
    visit("cpus", self.cpus, Bounds());
  }
};

/// Limits of a ring of events; further events are dropped and counted.
struct RingLimits {
  /// Number of events.
  std::int64_t max_entries = 4096;
  /// Their bytes.
  std::int64_t max_bytes = 16777216;

  /// Throws Error (kConfig), with the name of the field, if a value is out of bounds.
  void Check() const;
  /// Calls `visit` with the name, the value and the bounds of each field.
  template <typename Self, typename Visit>
  static void ForEach(Self& self, Visit visit) {
    visit("max_entries", self.max_entries, Bounds{1, kUnbounded});
    visit("max_bytes", self.max_bytes, Bounds{1, kUnbounded});
  }
};

/// What the engine records for its owner, and how many records may be pending.
struct EngineSettings {
  /// Which ended requests leave a record: "none", "errors" or "all".
  std::string ended = "errors";
  /// Share of the requests that are traced if the client does not decide; not set for no traces.
  std::optional<double> trace_share;
  /// Share of the accepted requests that are captured.
  double capture_share = 0.0;
  /// Share of the answered requests with a request ID whose answers are recorded: by the ID's hash.
  double answered_share = 0.0;
  /// Share of the answered requests whose answers are recorded with their inputs: by the request
  /// ID's hash where there is one.
  double inputs_share = 0.0;
  /// How many batches of all models may run concurrently; 0 for the number of processors in the
  /// affinity mask.
  std::int64_t num_processors = 0;
  /// Records of ended requests.
  RingLimits ended_ring{8192, 16777216};
  /// Captured requests.
  RingLimits captured_ring{1024, 67108864};
  /// Bytes of the records of answers.
  std::int64_t answered_bytes = 67108864;
  /// Outputs of shadow versions.
  RingLimits shadow_ring{1024, 67108864};
  /// Lines of the log.
  RingLimits log_ring{4096, 4194304};
  /// Calls that wait for an answer of the owner; further ones are refused.
  RingLimits call_ring{4096, 268435456};

  /// Throws Error (kConfig), with the name of the field, if a value is out of bounds.
  void Check() const;
  /// Calls `visit` with the name, the value and the bounds of each field.
  template <typename Self, typename Visit>
  static void ForEach(Self& self, Visit visit) {
    visit("ended", self.ended, Bounds());
    visit("trace_share", self.trace_share, Bounds{0, 1});
    visit("capture_share", self.capture_share, Bounds{0, 1});
    visit("answered_share", self.answered_share, Bounds{0, 1});
    visit("inputs_share", self.inputs_share, Bounds{0, 1});
    visit("num_processors", self.num_processors, Bounds{0, kUnbounded});
    visit("ended_ring", self.ended_ring, Bounds());
    visit("captured_ring", self.captured_ring, Bounds());
    visit("answered_bytes", self.answered_bytes, Bounds{1, kUnbounded});
    visit("shadow_ring", self.shadow_ring, Bounds());
    visit("log_ring", self.log_ring, Bounds());
    visit("call_ring", self.call_ring, Bounds());
  }
};

/// How the requests of one model are routed.
struct RouteSpec {
  /// The model's name.
  std::string model;
  /// Answers requests that name no version, once it is loaded; empty for none.
  std::string serving;
  /// Answers a share of them; empty for none.
  std::string canary;
  /// That share, 0 to 1.
  double canary_share = 0.0;
  /// The sparse input whose first ID decides who gets the canary; empty to draw for each request.
  std::string key_feature;
  /// The header whose value decides it.
  std::string key_header;
  /// Computes a share of them in addition to the answering version; empty for none.
  std::string shadow;
  /// That share, 0 to 1.
  double shadow_share = 0.0;
  /// Versions that will be ready soon.
  std::set<std::string> loading;
  /// Whether an operator has unloaded the model.
  bool is_unloaded = false;
  /// Whether requests that name no model use this one.
  bool is_only = false;

  /// Throws Error (kConfig), with the name of the field, if a value is out of bounds.
  void Check() const;
  /// Calls `visit` with the name, the value and the bounds of each field.
  template <typename Self, typename Visit>
  static void ForEach(Self& self, Visit visit) {
    visit("model", self.model, Bounds());
    visit("serving", self.serving, Bounds());
    visit("canary", self.canary, Bounds());
    visit("canary_share", self.canary_share, Bounds{0, 1});
    visit("key_feature", self.key_feature, Bounds());
    visit("key_header", self.key_header, Bounds());
    visit("shadow", self.shadow, Bounds());
    visit("shadow_share", self.shadow_share, Bounds{0, 1});
    visit("loading", self.loading, Bounds());
    visit("is_unloaded", self.is_unloaded, Bounds());
    visit("is_only", self.is_only, Bounds());
  }
};

/// How a request that did not come through the port is read and answered.
struct SubmitOptions {
  /// "recsys" for a PredictRequest of recsys.v1, "kserve" for a ModelInferRequest of Open
  /// Inference.
  std::string form = "recsys";
  /// The name of its source in records.
  std::string protocol = "rest";
  /// Seconds until the deadline; not set for none.
  std::optional<double> remaining_s;
  /// The request's headers that the engine reads, under lower-case names.
  std::map<std::string, std::string> headers;
  /// Whether the routing drew the message's version, so that the shadow's share applies.
  bool drew_version = false;
  /// Names the client, such as its connection: clients take turns.
  std::string client;

  /// Throws Error (kConfig), with the name of the field, if a value is out of bounds.
  void Check() const;
  /// Calls `visit` with the name, the value and the bounds of each field.
  template <typename Self, typename Visit>
  static void ForEach(Self& self, Visit visit) {
    visit("form", self.form, Bounds());
    visit("protocol", self.protocol, Bounds());
    visit("remaining_s", self.remaining_s, Bounds());
    visit("headers", self.headers, Bounds());
    visit("drew_version", self.drew_version, Bounds());
    visit("client", self.client, Bounds());
  }
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_SETTINGS_SETTINGS_H_
