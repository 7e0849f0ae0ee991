#ifndef RECSYS_SERVER_HTTP_REST_SERVER_H_
#define RECSYS_SERVER_HTTP_REST_SERVER_H_

#include <memory>
#include <optional>
#include <string>

#include "config/settings.h"
#include "server/core/gateway.h"
#include "server/protocols/services.h"

namespace recsys {

/// How the HTTP port listens.
struct RestOptions {
  std::string host = "127.0.0.1";
  /// 0 lets the system choose.
  int port = 0;
  /// Of a request's body, as of a gRPC message; and of connections, beside those of other ports.
  ConnectionLimits connections;
  /// None for plain text; files are read again when they change.
  std::optional<TlsSettings> tls;
  /// Threads that read bodies.
  int num_threads = 2;
  /// How long a body may take.
  double body_timeout_s = 30.0;
};

/// HTTP: Open Inference's REST form, and plain JSON for people with curl (serve/rest.py). Every
/// request takes the same road as those over gRPC.
///
/// One thread has all connections; a few others read what they sent. From when on the gateway
/// drains, new requests get 503 and connections are closed, so that clients go elsewhere.
class RestServer {
 public:
  /// Listens and answers. Throws Error (kConfig: a file of the TLS settings cannot be used),
  /// std::system_error (the port is taken, or the address not this machine's). Gateway and models
  /// live longer.
  RestServer(Gateway& gateway, ModelsView models, const RestOptions& options);
  /// As Close.
  ~RestServer();

  int port() const;
  /// Closes the port, and what is left of its connections after a moment; idempotent. To be called
  /// once the gateway is idle.
  void Close();

 private:
  class Handler;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_REST_SERVER_H_
