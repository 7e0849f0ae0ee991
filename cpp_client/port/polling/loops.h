#ifndef RECSYS_PORT_POLLING_LOOPS_H_
#define RECSYS_PORT_POLLING_LOOPS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "port/polling/balance.h"
#include "port/polling/loop.h"
#include "port/service.h"

namespace recsys::http2 {

/// The polling threads of a process, which its ports share. Each connection belongs to one of them,
/// and moves to another one as the load asks for it (Balance). Thread-safe, but no method may be
/// called from a polling thread unless it says so.
class Loops {
 public:
  /// Starts the threads. `make_deferred_work` makes the deferred work of a thread, in that thread;
  /// empty for none. Throws std::system_error if the process has no files or threads left.
  Loops(int num_threads, std::function<std::unique_ptr<DeferredWork>()> make_deferred_work,
        BalanceLimits limits = {});
  ~Loops() { Stop(); }
  Loops(const Loops&) = delete;
  Loops& operator=(const Loops&) = delete;

  std::size_t size() const { return loops_.size(); }
  /// Any thread: returns the time in which the threads had something to do, added up.
  double busy_s() const;
  /// Any thread: returns how many connections were moved from one thread to another.
  std::int64_t num_moved() const;
  /// Has the first loop accept the listener's connections. Throws std::system_error.
  void Watch(Listener* listener);
  /// Any thread: hands a new connection to one of the loops.
  void Adopt(FileHandle file, PortState* port);
  /// Any thread: moves connections. It is for tests; the loops do so by themselves.
  void Move(const LoopMove& move);
  /// Any thread: drains the connections of a port, and stops its listener.
  void Drain(const PortState* port);
  /// Stops the listener of a port and ends its connections. Returns once they are gone.
  void End(PortState* port);
  /// Ends all connections, then the threads. Idempotent; one caller at a time.
  void Stop();

 private:
  /// Called by a loop after a round: returns when to call it again.
  double Look(double now_s);
  std::vector<LoopLoad> Loads() const;

  std::vector<std::unique_ptr<Loop>> loops_;
  std::mutex mutex_;
  Balance balance_;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_LOOPS_H_
