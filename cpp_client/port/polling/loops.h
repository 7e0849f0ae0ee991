#ifndef RECSYS_PORT_POLLING_LOOPS_H_
#define RECSYS_PORT_POLLING_LOOPS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "port/deferred_work.h"
#include "port/polling/loop.h"

namespace recsys::http2 {

/// The polling threads of a process, which its ports share. Each connection belongs to one of them
/// for its whole life. Thread-safe, but no method may be called from a polling thread unless it
/// says so.
class Loops {
 public:
  /// Starts the threads. `make_deferred_work` makes the deferred work of a thread, in that thread;
  /// empty for none. Throws std::system_error if the process has no files or threads left.
  Loops(int num_threads, std::function<std::unique_ptr<DeferredWork>()> make_deferred_work);
  ~Loops() { Stop(); }
  Loops(const Loops&) = delete;
  Loops& operator=(const Loops&) = delete;

  std::size_t size() const { return loops_.size(); }
  /// Any thread: returns the time in which the threads had something to do, added up.
  double busy_s() const;
  /// Has the first loop accept the listener's connections. Throws std::system_error.
  void Watch(Listener* listener);
  /// Any thread: hands a connection to the loop that has the fewest; loops with equally many take
  /// turns. One caller at a time.
  void Adopt(FileHandle file, PortState* port);
  /// Any thread: drains the connections of a port, and stops its listener.
  void Drain(const PortState* port);
  /// Stops the listener of a port and ends its connections. Returns once they are gone.
  void End(const PortState* port);
  /// Ends all connections, then the threads. Idempotent; one caller at a time.
  void Stop();

 private:
  std::vector<std::unique_ptr<Loop>> loops_;
  std::size_t next_ = 0;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_LOOPS_H_
