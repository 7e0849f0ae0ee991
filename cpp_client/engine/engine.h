#ifndef RECSYS_ENGINE_ENGINE_H_
#define RECSYS_ENGINE_ENGINE_H_

// The engine as a library: the inference port, the three protocols, routing, queues, batches,
// executors and counters. Its owner (the Python server through binding/, or a C++ program, see
// examples/server.cpp) decides which models are loaded and where requests are routed.
//
// The engine never calls into its owner. Its events are kept in bounded rings; event_fd() becomes
// readable, and the owner takes them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/core/servable.h"
#include "engine/events.h"
#include "engine/settings/settings.h"
#include "port/net/tls.h"
#include "port/polling/balance.h"

namespace recsys {

struct EngineCore;
class Servable;

/// One loaded version of a model. Thread-safe. Destroying the last reference frees its memory: drop
/// it where blocking is allowed.
class Version {
 public:
  Version(std::shared_ptr<EngineCore> core, std::shared_ptr<Servable> servable);
  ~Version();
  Version(const Version&) = delete;
  Version& operator=(const Version&) = delete;

  /// Returns JSON: name, version, target, digest, table_bytes, format, torch, fbgemm, rows_pages,
  /// signature.
  std::string Description() const;
  /// Replaces rows between two batches; returns how many dense weights had changed but keep their
  /// exported values. Blocks. Throws Error; then nothing has changed.
  std::int64_t ApplyDelta(const std::string& path);
  /// Returns how many of the int64 IDs in `ids` own a row of a managed table; -1 where that is not
  /// known.
  std::int64_t NumOwned(const std::string& table, const std::string& ids) const;
  /// Returns JSON: a snapshot of this version's counters.
  std::string Totals() const;
  /// Answers accepted requests and ends the threads; idempotent. Blocks. Withdraw its routes first.
  void Close();

 private:
  friend class Engine;
  /// Outlives the servable.
  const std::shared_ptr<EngineCore> core_;
  const std::shared_ptr<Servable> servable_;
};

/// Thread-safe, except for Close, which must be the last call.
class Engine {
 public:
  /// Opens an artifact: OpenArtifact (engine/artifact/artifact_model.h), or a test's own function.
  /// Blocks; throws Error.
  using Opener = std::function<OpenedModel(const std::string& path, const VersionSettings&)>;

  Engine(const EngineSettings& settings, Opener open);
  /// Closes without a grace period.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Returns a file descriptor that is readable while events are pending.
  int event_fd() const;
  /// Takes pending events, oldest first within each kind. Never blocks. Blocks of answers make
  /// event_fd() readable once they are full; with `all_answers` it takes the others too.
  std::vector<Event> Take(std::size_t at_most, bool all_answers = false);

  /// Opens the inference port and returns its number. `calls` and `streams`: full names such as
  /// "/package.Service/Method" of the unary and streaming methods that the owner answers. Throws
  /// Error (kConfig: settings or TLS material; kListen: the port is in use or the address is not
  /// this machine's). May be called once.
  /// `balance`: when polling threads are busy.
  int Listen(const PortSettings& settings, const std::vector<std::string>& calls,
             const std::vector<std::string>& streams, const std::optional<TlsPem>& tls,
             const http2::BalanceLimits& balance = {});
  /// Answers predictions over HTTP/1.1 on a listening socket, which it then owns, in the threads of
  /// the inference port and with its limits: call it once, after Listen. Connections that send
  /// anything else become ConnectionEvents. `max_json_bytes`: the largest JSON of a body.
  void ListenHttp(int file, std::int64_t max_json_bytes);
  /// A connection that was taken from a ConnectionEvent is closed.
  void ReleaseConnection();
  /// Uses this material for new connections. Throws Error (kConfig); then the port keeps its
  /// material.
  void SetTls(const TlsPem& tls);
  /// Sets the grpc.health.v1 status of a service; an empty name stands for the whole server.
  void SetHealth(const std::string& service, bool is_serving);

  /// Loads an artifact and warms it up with batches of its own and with `warm_up` (serialized
  /// recsys.v1.PredictRequests; those that do not match the model are skipped). Blocks. Throws
  /// Error.
  std::shared_ptr<Version> Open(const std::string& path, const VersionSettings& settings,
                                std::vector<std::string> warm_up = {});
  /// Routes a model's requests as `spec` says; `versions`: all that are ready, which requests may
  /// also name.
  void Publish(const RouteSpec& spec, const std::vector<std::shared_ptr<Version>>& versions);
  /// Removes a model's routes.
  void Withdraw(const std::string& model);

  /// Answers a request that did not come through the port: exactly one AnswerEvent with `ticket`
  /// follows.
  void Submit(std::int64_t ticket, const SubmitOptions& options, std::string message);
  /// Cancels a submitted request; its AnswerEvent still follows.
  void Cancel(std::int64_t ticket);
  /// Answers a CallEvent. Ignored if the call has already ended.
  void Answer(std::int64_t call, std::string message);
  void Fail(std::int64_t call, const Status& status);

  /// Returns JSON: unrouted (requests that reached no version, by outcome), active (requests),
  /// calls (waiting for the owner's answer), dropped (events by ring) and, once listening, port.
  std::string Counts() const;
  std::int64_t num_active() const;

  /// Refuses new requests and connections; accepted requests are still answered. Health reports
  /// NOT_SERVING.
  void Drain();
  /// Waits until every accepted request is answered and its answer was sent, or until the timeout.
  bool WaitUntilIdle(double timeout_s);
  /// Drains, waits at most `grace_s`, ends the remaining calls and closes the port. Blocks. Returns
  /// whether everything was answered. Idempotent. Versions stay open.
  bool Close(double grace_s);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_ENGINE_H_
