#ifndef RECSYS_SERVER_RPC_ACCEPTOR_H_
#define RECSYS_SERVER_RPC_ACCEPTOR_H_

#include <cstdint>
#include <functional>
#include <thread>

#include "server/rpc/connection_count.h"
#include "server/rpc/listening.h"

namespace recsys {

/// A thread that accepts the connections of a port and hands them on; one too many is closed at
/// once.
class Acceptor {
 public:
  /// `take` gets the socket (non-blocking), which is its own from then on; called by the thread.
  Acceptor(ListeningSocket listening, std::int64_t max_connections,
           std::function<void(int listener, int file)> take);
  /// Stops.
  ~Acceptor();
  /// Accepts nothing more and closes the port; those that wait unaccepted are refused. Any number
  /// of times, one at a time.
  void Stop();

 private:
  void Loop();
  bool AcceptAll();

  ListeningSocket listening_;
  ConnectionCount count_;
  std::function<void(int, int)> take_;
  /// Readable once the thread has to end.
  FileHandle stop_;
  std::thread thread_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_ACCEPTOR_H_
