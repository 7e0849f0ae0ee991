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

/// Settings of one gRPC port.
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

/// A gRPC port over HTTP/2 (engine/http2): every method takes and returns bytes.
class RpcServer {
 public:
  /// Starts listening. Throws Error (kListen) if the port is in use, or the address is not this
  /// machine's. Calls of unknown methods end with UNIMPLEMENTED.
  RpcServer(RpcOptions options, std::vector<Service> services);
  /// Closes the port.
  ~RpcServer();

  int port() const;
  const PortCounters& counters() const;
  /// Accepts no further connections and calls (GOAWAY); open calls continue. Returns at once.
  void Drain();
  /// Waits until no call is open, or until then (MonotonicSeconds); returns whether none is.
  bool WaitUntilIdle(double until_s);
  /// Ends all remaining calls with CANCELLED, and closes. Idempotent. Must not be called from a
  /// polling thread.
  void Close();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_RPC_RPC_SERVER_H_
