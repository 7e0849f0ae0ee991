#ifndef RECSYS_SERVER_RPC_RPC_SERVER_H_
#define RECSYS_SERVER_RPC_RPC_SERVER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/settings.h"
#include "server/rpc/service.h"

namespace recsys {

/// How one gRPC port listens.
struct RpcOptions {
  std::string host = "127.0.0.1";
  /// 0 lets the system choose.
  int port = 0;
  ConnectionLimits connections;
  /// None for plain text; files are read again when they change.
  std::optional<TlsSettings> tls;
  /// Threads that poll completion queues.
  int num_threads = 1;
  /// Looks at each call before its method; where it is not OK the call ends so (the admin port's
  /// token). May be empty.
  std::function<Status(const Call&)> authorize;
  /// Whether answers of other threads are sent by those that poll, which takes less processor time:
  /// with 64 calls at a time 16 to 22 us a call instead of 21 to 30, alone the same latency.
  bool hands_over_answers = true;
  /// What the text of a port that cannot be had begins with.
  std::string purpose = "listen on";
};

/// A gRPC port over completion queues: every method is generic, bytes in and bytes out.
class RpcServer {
 public:
  /// Listens and answers. Throws Error (kConfig: a file of the TLS settings cannot be used),
  /// std::system_error (the port is taken, or the address not ours; its text is that of Python's
  /// server). Unknown methods are UNIMPLEMENTED.
  RpcServer(RpcOptions options, std::vector<Service> services);
  /// Ends calls that are left.
  ~RpcServer();

  int port() const;
  /// Takes no further connections and calls (GOAWAY); open calls go on. Returns at once.
  void Drain();
  /// Waits until no call is open, or until then (MonotonicSeconds); whether none is.
  bool WaitUntilIdle(double until_s);
  /// Ends every call that is left as CANCELLED, and closes.
  void Close();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_RPC_SERVER_H_
