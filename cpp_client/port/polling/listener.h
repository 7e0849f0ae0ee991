#ifndef RECSYS_PORT_POLLING_LISTENER_H_
#define RECSYS_PORT_POLLING_LISTENER_H_

#include <cstdint>

#include "port/net/listening.h"
#include "port/polling/timers.h"
#include "port/port_state.h"

namespace recsys::http2 {

class Loops;

/// Accepts a port's connections in the thread of the first loop, and hands each to one of the
/// loops. Connections above the maximum are closed at once.
///
/// The kernel could spread them over sockets of their own (SO_REUSEPORT), but it does so by a hash
/// of the addresses: of a dozen connections, which is what a few clients open, one thread would get
/// several times as many as another.
class Listener final : public Timed {
 public:
  Listener(ListeningSocket socket, PortState* port, Loops* loops);

  int file() const { return socket_.file.number(); }
  /// Any thread: refuses further connections.
  void Refuse();

  PortState& port() const { return *port_; }

  // First loop's thread only, like everything below.
  /// Begins to accept, under an ID of the loop. Throws std::system_error.
  void Begin(Loop* loop, std::int64_t id);
  void AcceptAll(double now_s);
  void Stop();
  void OnDue(double now_s) override;

 private:
  void Pause(double now_s, int error);
  void Take(FileHandle file);
  void Watch(std::uint32_t events);

  const ListeningSocket socket_;
  PortState* const port_;
  Loops* const loops_;
  /// Null before Begin.
  Loop* loop_ = nullptr;
  std::int64_t id_ = 0;
  bool is_stopped_ = false;
  double logs_at_s_ = 0;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_LISTENER_H_
