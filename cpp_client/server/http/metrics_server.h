#ifndef RECSYS_SERVER_HTTP_METRICS_SERVER_H_
#define RECSYS_SERVER_HTTP_METRICS_SERVER_H_

#include <memory>
#include <string>

#include "server/http/http_exchange.h"
#include "server/observe/metrics.h"

namespace recsys {

class HttpServer;

/// Shows metrics over HTTP at /metrics, in a thread of its own (serve/metrics_server.py).
///
/// Whoever can reach the port may open connections and say nothing. So each has ten seconds in all
/// for one request and its answer, and where 64 are open the oldest gives way to the newest.
class MetricsServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    /// 0 lets the system choose.
    int port = 0;
    /// How long one connection may take in all.
    double timeout_s = 10.0;
  };

  /// Throws std::system_error: the port is taken, or the address not this machine's. `metrics`
  /// lives longer.
  MetricsServer(const Metrics& metrics, const Options& options);
  /// Ends what is open.
  ~MetricsServer();

  int port() const;

 private:
  class Handler;
  std::unique_ptr<Handler> handler_;
  std::unique_ptr<HttpServer> server_;
};

/// Which form of the page a client wants, by its Accept header: the Content-Type of the answer.
struct PageForm {
  bool is_open_metrics = false;
  std::string content_type;
};
PageForm ChoosePageForm(const std::string& accept);

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_METRICS_SERVER_H_
