#ifndef RECSYS_CONFIG_SETTINGS_H_
#define RECSYS_CONFIG_SETTINGS_H_

// What one server is told: plain values, as the dataclasses of serve/config.py, whose names,
// defaults, checks and texts these are. A test compares the defaults with those of
// options_table.inc, which is made from them.
//
// Paths are texts without doubled slashes and dots, as Python's Path writes them. Check() throws
// Error (kConfig): its text begins with the field. Values that config/ has filled are checked; who
// makes or changes some by hand calls Check.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace recsys {

/// Bounds on requests, batches and the queue (serve/batching.py). A request may be larger than a
/// batch (it runs alone then), but not larger than the queue.
struct BatchLimits {
  std::int64_t max_batch_rows = 512;
  std::int64_t max_batch_ids = 1 << 18;
  std::int64_t max_request_rows = 4096;
  std::int64_t max_request_ids = 1 << 18;
  std::int64_t max_queue_rows = 8192;
  std::int64_t max_queue_ids = 1 << 22;
  /// Of requests that may wait, as they came over the wire; a larger request is refused.
  std::int64_t max_queue_bytes = 256 << 20;
  /// How long the oldest request may wait for others while an executor is free.
  std::int64_t max_delay_us = 0;
  /// How much later a request may come and still overtake one that is less urgent by one level.
  std::int64_t priority_window_us = 100'000;

  void Check() const;
  /// Refuses what is larger than one request may be: throws Error (kRequestTooLarge) with what is
  /// too many.
  void CheckRequest(std::int64_t num_rows, std::int64_t num_ids, std::int64_t num_bytes = 0) const;
};

/// Which version of a model answers, as an operator asks for it (serve/routing.py).
struct Routing {
  /// "latest", or a version that stays until this is changed.
  std::string serve = "latest";
  /// A version that answers a share of the requests; empty for none.
  std::string canary;
  double canary_percent = 0.0;
  /// A version that computes a share of the requests beside the one that answers; empty for none.
  std::string shadow;
  double shadow_percent = 0.0;

  void Check() const;
  /// The versions that it names.
  std::set<std::string> Named() const;
  /// The same where neither canary nor shadow is `version`.
  Routing Without(const std::string& version) const;
  /// The same with `version` serving, and so neither canary nor shadow.
  Routing Pinned(const std::string& version) const;
};

bool operator==(const BatchLimits& a, const BatchLimits& b);
bool operator==(const Routing& a, const Routing& b);

/// How one model is served.
struct ModelSettings {
  BatchLimits limits;
  Routing routing;
  /// Which of the artifact's targets; none for the first that this machine has the devices for.
  std::optional<std::string> target;
  bool verify_checksums = true;
  bool copy_rows = false;
  bool allow_non_finite = false;
  /// Threads that run batches of the model at the same time.
  std::int64_t num_executors = 1;
  /// The processors that its executors may use; empty for all.
  std::vector<std::int64_t> cpus;
  /// A file of captured requests to warm up with, beside the made ones.
  std::optional<std::string> warm_up;
  /// Whether the version that served before stays in memory, so that a rollback is instant.
  bool keep_previous = true;

  void Check() const;
};

/// Files in PEM; read again when they change.
struct TlsSettings {
  std::string certificate;
  std::string key;
  /// Who signs clients' certificates; where it is given, clients must show one (mTLS).
  std::optional<std::string> client_ca;

  void Check() const {}
};

/// The admin service, on a port of its own.
struct AdminSettings {
  std::string token_file;
  std::string host = "127.0.0.1";
  std::int64_t port = 8502;

  void Check() const;
};

/// What clients may hold of the server; 0 stands for no bound.
struct ConnectionLimits {
  std::int64_t max_connections = 8192;
  std::int64_t max_message_bytes = 4 << 20;
  std::int64_t max_json_bytes = 256 << 10;
  std::int64_t max_concurrent_streams = 1024;
  std::int64_t max_stream_requests = 64;
  double max_connection_idle_s = 300.0;
  double max_connection_age_s = 0.0;

  void Check() const;
};

/// What stands in the log.
struct LogSettings {
  bool as_json = false;
  /// "none", "errors" or "all".
  std::string requests = "errors";

  void Check() const;
};

/// OpenTelemetry traces. The native server sends none: ParseCommandLine refuses settings that ask
/// for them.
struct TraceSettings {
  std::string endpoint;
  double share = 0.01;

  void Check() const;
};

/// Requests that are written to a file, to be played back.
struct CaptureSettings {
  std::string path;
  double share = 0.01;
  std::int64_t max_bytes = 1 << 30;

  void Check() const;
};

/// How one server listens, batches and stops (ServerConfig in Python).
struct ServerSettings {
  std::string host = "127.0.0.1";
  /// Here and in what follows 0 lets the system choose a port, and none serves none.
  std::int64_t port = 8500;
  std::optional<std::int64_t> metrics_port = 8501;
  std::optional<std::int64_t> http_port;
  /// Of models that `models` does not name.
  ModelSettings defaults;
  std::map<std::string, ModelSettings> models;
  ConnectionLimits connections;
  std::optional<TlsSettings> tls;
  std::optional<AdminSettings> admin;
  LogSettings log;
  std::optional<TraceSettings> trace;
  std::optional<CaptureSettings> capture;
  /// How often the repository is looked through; 0 for never by itself.
  double poll_repository_s = 0.0;
  /// How long accepted requests may take after the server was asked to stop.
  double drain_timeout_s = 30.0;

  void Check() const;
  /// How `model` is served; valid for as long as these settings are.
  const ModelSettings& SettingsOf(const std::string& model) const;
};

/// What is served: an artifact, or models of a repository.
struct SourceSettings {
  std::optional<std::string> artifact;
  std::optional<std::string> repository;
  /// Which of the repository's; empty for all.
  std::vector<std::string> models;

  void Check() const;
};

/// The process as a whole.
struct ProcessSettings {
  std::int64_t intra_op_threads = 1;
  bool malloc_tuning = true;
  /// Of Python's interpreter alone: taken, checked, and without effect here.
  std::int64_t switch_interval_us = 200;

  void Check() const;
};

/// All that one process is told.
struct Settings {
  SourceSettings source;
  ProcessSettings process;
  ServerSettings server;
};

}  // namespace recsys

#endif  // RECSYS_CONFIG_SETTINGS_H_
