#ifndef RECSYS_ENGINE_RPC_RPC_SERVER_H_
#define RECSYS_ENGINE_RPC_RPC_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/http2/bounds/counters.h"
#include "engine/rpc/net/tls.h"
#include "engine/rpc/service.h"
#include "engine/settings/settings.h"

namespace recsys {

/// How one gRPC port listens.
struct RpcOptions {
  std::string host = "127.0.0.1";
  /// 0 lets the system choose.
  int port = 0;
  ConnectionLimits connections;
  /// Null for plain text.
  std::shared_ptr<TlsStore> tls;
  /// Threads that poll connections; each connection belongs to one of them.
  int num_threads = 1;
};

/// A gRPC port over HTTP/2 (engine/http2): every method is bytes in and bytes out.
class RpcServer {
 public:
  /// Listens and answers. Throws Error (kListen): the port is taken, or the address is not this
  /// machine's. Unknown methods are UNIMPLEMENTED.
  RpcServer(RpcOptions options, std::vector<Service> services);
  /// Closes.
  ~RpcServer();

  int port() const;
  const PortCounters& counters() const;
  /// Takes no further connections and calls (GOAWAY); open calls go on. Returns at once.
  void Drain();
  /// Waits until no call is open, or until then (MonotonicSeconds); whether none is.
  bool WaitUntilIdle(double until_s);
  /// Ends every call that is left as CANCELLED, and closes. Idempotent. Not for polling threads.
  void Close();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_RPC_RPC_SERVER_H_
