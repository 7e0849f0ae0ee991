#ifndef RECSYS_PORT_RPC_SERVER_H_
#define RECSYS_PORT_RPC_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "port/bounds/counters.h"
#include "port/limits.h"
#include "port/net/tls.h"
#include "port/polling/balance.h"
#include "port/service.h"

namespace recsys {
namespace http2 {
class Loops;
}

/// Settings of one gRPC port.
struct RpcOptions {
  std::string host = "127.0.0.1";
  /// 0 lets the system choose.
  int port = 0;
  ConnectionLimits connections;
  /// Null for plain text.
  std::shared_ptr<TlsStore> tls;
  /// The threads that poll connections, which other ports may share; null for its own.
  std::shared_ptr<http2::Loops> loops;
  /// How many it starts, if they are its own, and when they are busy.
  int num_threads = 1;
  http2::BalanceLimits balance;
};

/// A gRPC port over HTTP/2: every method takes and returns bytes.
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

#endif  // RECSYS_PORT_RPC_SERVER_H_
