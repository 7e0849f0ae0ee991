#ifndef RECSYS_ENGINE_ENGINE_H_
#define RECSYS_ENGINE_ENGINE_H_

// The engine as a library: the inference port, the three protocols, routing, queues, batches,
// executors and counters. Its owner (the Python server through binding/, or a C++ program, see
// examples/server.cpp) decides what is loaded and where requests go.
//
// The engine never calls into its owner. What it has to say waits in bounded rings; event_fd()
// becomes readable, and the owner takes the events.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/core/served_model.h"
#include "engine/events.h"
#include "engine/settings/settings.h"

namespace recsys {

/// One loaded version of a model. Thread-safe. The last reference frees its memory: drop it where
/// that may block.
class Version {
 public:
  struct Parts;
  explicit Version(std::shared_ptr<Parts> parts);
  ~Version();
  Version(const Version&) = delete;
  Version& operator=(const Version&) = delete;

  /// JSON: name, version, target, digest, table_bytes, format, torch, fbgemm, signature.
  std::string Description() const;
  /// Exchanges rows between two batches; returns how many dense weights stay as they were exported
  /// although they had changed. Blocks. Throws Error; nothing has changed then.
  std::int64_t ApplyDelta(const std::string& path);
  /// JSON: the numbers of this version at one moment.
  std::string Totals() const;
  /// Answers what was accepted and ends the threads; idempotent. Blocks. Withdraw its routes first.
  void Close();

 private:
  friend class Engine;
  std::shared_ptr<Parts> parts_;
};

/// Thread-safe, but for Close, which must be the last call.
class Engine {
 public:
  /// Opens an artifact: OpenArtifact (engine/artifact/artifact_model.h), or a test's own. Blocks;
  /// throws Error.
  using Opener = std::function<OpenedModel(const std::string& path, const VersionSettings&)>;

  Engine(const EngineSettings& settings, Opener open);
  /// Closes without a grace period.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// A file descriptor that is readable while events wait.
  int event_fd() const;
  /// Takes events that wait, oldest first within each kind. Never blocks.
  std::vector<Event> Take(std::size_t at_most);

  /// Opens the inference port; returns its number. `calls` and `streams`: full names such as
  /// "/package.Service/Method" of the unary and streaming methods that the owner answers. Throws
  /// Error (kConfig: settings or TLS material; kListen: the port is taken or the address is not
  /// this machine's). Once.
  int Listen(const PortSettings& settings, const std::vector<std::string>& calls,
             const std::vector<std::string>& streams, std::optional<TlsPem> tls);
  /// New connections use this material. Throws Error (kConfig), and the port keeps what it has.
  void SetTls(TlsPem tls);
  /// What grpc.health.v1 says of a service; empty for the server as a whole.
  void SetHealth(const std::string& service, bool is_serving);

  /// Loads an artifact and warms it up with made batches and with `warm_up` (serialized
  /// recsys.v1.PredictRequests; those that do not fit the model are left out). Blocks. Throws
  /// Error.
  std::shared_ptr<Version> Open(const std::string& path, const VersionSettings& settings,
                                std::vector<std::string> warm_up = {});
  /// Sends the requests of a model where `spec` says; `versions`: all that may answer, by name.
  void Publish(const RouteSpec& spec, const std::vector<std::shared_ptr<Version>>& versions);
  /// Forgets a model.
  void Withdraw(const std::string& model);

  /// Answers a request from another door: an AnswerEvent with `ticket` follows, once.
  void Submit(std::int64_t ticket, const SubmitOptions& options, std::string message);
  /// Gives a submitted request up; its AnswerEvent still follows.
  void Cancel(std::int64_t ticket);
  /// Answers a CallEvent. Ignored where the call has ended meanwhile.
  void Answer(std::int64_t call, std::string message);
  void Fail(std::int64_t call, const Status& status);

  /// JSON: unrouted (requests that reached no version, by outcome), active (requests), calls (that
  /// wait for the owner's answer), dropped (events by ring) and, once it listens, port.
  std::string Counts() const;
  std::int64_t num_active() const;

  /// Refuses requests and connections from now on; what was accepted is answered. Health says
  /// NOT_SERVING.
  void Drain();
  /// Waits until every accepted request is answered and its answer has left, or for so long.
  bool WaitUntilIdle(double timeout_s);
  /// Drains, waits for at most `grace_s`, ends the calls that are left and closes the port. Blocks.
  /// Whether everything was answered. Idempotent. Versions stay open.
  bool Close(double grace_s);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_ENGINE_H_
