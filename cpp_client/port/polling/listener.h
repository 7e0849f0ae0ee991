#ifndef RECSYS_PORT_POLLING_LISTENER_H_
#define RECSYS_PORT_POLLING_LISTENER_H_

#include <memory>
#include <vector>

#include "port/net/listening.h"
#include "port/polling/loop.h"

namespace recsys::http2 {

/// Accepts a port's connections in the thread of its first loop, and distributes them over all
/// loops. Connections above the maximum are closed at once.
class Listener final : public Timed {
 public:
  Listener(ListeningSocket socket, PortState* port, std::vector<std::unique_ptr<Loop>>* loops);

  int file() const { return socket_.file.number(); }
  /// Any thread: refuses further connections.
  void Refuse();

  // First loop's thread only, like everything below.
  void AcceptAll(double now_s);
  void Stop();
  void OnDue(double now_s) override;

 private:
  void Pause(double now_s, int error);
  void Take(FileHandle file);
  void Watch(std::uint32_t events);
  Loop& first() { return *loops_->front(); }

  const ListeningSocket socket_;
  PortState* const port_;
  std::vector<std::unique_ptr<Loop>>* const loops_;
  bool is_stopped_ = false;
  double logs_at_s_ = 0;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_LISTENER_H_
