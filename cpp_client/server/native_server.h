#ifndef RECSYS_SERVER_NATIVE_SERVER_H_
#define RECSYS_SERVER_NATIVE_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "config/settings.h"
#include "server/core/hosted.h"
#include "server/models/repository.h"

namespace recsys {

/// What the line says that tells that the server is ready.
struct ReadyFacts {
  std::string model;
  std::string version;
  std::string target;
  std::int64_t num_models = 0;
  int port = 0;
  std::optional<int> metrics_port;
  std::optional<int> http_port;
  std::optional<int> admin_port;
};

/// The server: ports, protocols, models, and the order in which they start and stop
/// (serve/server.py).
class NativeServer {
 public:
  /// What makes an artifact a model: OpenArtifact.
  using Opener = std::function<OpenedModel(const std::string& path, const ModelSettings& settings)>;

  /// Listens; health says NOT_SERVING until Load has returned. Throws std::system_error (a port is
  /// taken), Error (a file that the settings name cannot be used). `log_counts`: of the log, for
  /// the metrics.
  NativeServer(std::unique_ptr<ModelSource> source, const ServerSettings& settings, Opener opener,
               std::function<std::map<std::string, std::int64_t>()> log_counts);
  ~NativeServer();

  /// Runs in a thread of the server's own: loads what the repository holds and warms it up, then
  /// calls `done` with what went wrong, or null: a NotServingError where no model could be made
  /// ready.
  void Load(std::function<void(std::exception_ptr)> done);
  /// What is ready now; to be called once Load is done.
  ReadyFacts ready_facts() const;
  /// Looks for new models and versions, in a thread of the server's own.
  void Rescan();
  /// Takes no further requests, answers every accepted one, closes all ports. Whether every
  /// accepted request was answered within the drain time.
  bool Stop();
  /// Requests so far by outcome.
  std::map<std::string, std::int64_t> outcomes() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_NATIVE_SERVER_H_
