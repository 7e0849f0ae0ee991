#ifndef RECSYS_SERVER_HTTP_HTTP_SERVER_H_
#define RECSYS_SERVER_HTTP_HTTP_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "server/http/http_connection.h"
#include "server/http/http_exchange.h"
#include "server/rpc/tls_files.h"

namespace recsys {

/// How one HTTP port listens.
struct HttpOptions {
  std::string host = "127.0.0.1";
  /// 0 lets the system choose.
  int port = 0;
  HttpLimits limits;
  HttpTimes times;
  /// Open at the same time; 0 for any number.
  std::int64_t max_connections = 0;
  /// Where there are so many, the oldest gives way to the newest; else the newest is closed at
  /// once.
  bool oldest_gives_way = false;
  /// Whether a connection may have more than one request.
  bool keeps_alive = true;
  int backlog = 128;
  /// None for plain text. Handshakes have the files as they are then.
  std::shared_ptr<TlsFiles> tls;
  Clock clock = MonotonicSeconds;
};

/// A port that speaks HTTP/1.1, with one thread for all connections: one that says nothing, reads
/// slowly or never ends its request takes a place, a few kilobytes and nothing else.
class HttpServer {
 public:
  /// Listens and answers. Throws std::system_error: the port is taken, or the address not this
  /// machine's. The handler lives longer than the server.
  HttpServer(HttpOptions options, HttpHandler& handler);
  /// As Close(0).
  ~HttpServer();

  int port() const;
  /// Stops listening, lets what is being answered or written come to its end for so long, closes
  /// everything and ends the thread; idempotent. Answers that come later are dropped.
  void Close(double patience_s);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_HTTP_SERVER_H_
