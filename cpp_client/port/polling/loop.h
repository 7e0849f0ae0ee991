#ifndef RECSYS_PORT_POLLING_LOOP_H_
#define RECSYS_PORT_POLLING_LOOP_H_

#include <sys/epoll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "port/connection/connection.h"
#include "port/polling/freed_memory.h"
#include "port/polling/outbox.h"
#include "port/polling/posted_calls.h"
#include "port/polling/timers.h"
#include "port/port_state.h"

namespace recsys::http2 {

class Listener;

/// A thread that polls connections: each belongs to one loop for its whole life.
class Loop {
 public:
  /// Throws std::system_error if the process has no file descriptors left.
  explicit Loop(PortState* port);
  /// Stops the loop.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void Start();
  /// Ends all calls and connections, then the thread. Idempotent; any thread but its own.
  void Stop();
  std::int64_t num_connections() const { return num_connections_.load(); }
  const std::shared_ptr<Outbox>& outbox() const { return outbox_; }
  /// Any thread, like the three above: takes over an accepted connection.
  void Adopt(FileHandle file);
  /// Any thread: drains all connections.
  void Drain();
  /// Before Start: notifies `listener` when a connection is waiting.
  void Watch(Listener* listener);

  // Polling thread only, like everything below.
  Timers& timers() { return timers_; }
  PortState& port() { return *port_; }
  /// Time at the beginning of this round of events.
  double now_s() const { return now_s_; }
  /// Whether this round has taken so long that turns should be short.
  bool IsRoundLong() const;
  /// Connections with input in this round.
  int num_busy() const { return num_busy_; }
  /// Notes that a connection has more input than a turn takes, and counts as busy so long.
  void BusyUntil(double time_s) { busy_until_s_ = time_s; }
  /// Whether any connection is busy.
  bool IsBusy() const { return now_s_ < busy_until_s_; }
  /// Read buffer shared by the connections.
  std::vector<char>& buffer() { return buffer_; }
  /// Schedules the connection to be flushed and checked at the end of this round.
  void MarkDirty(std::int64_t id) { dirty_.push_back(id); }
  /// Schedules the connection to be flushed further in the next round.
  void FlushLater(std::int64_t id) { unflushed_.push_back(id); }
  /// Gives the connection a turn in a later round (Connection::OnTurn), after those that are
  /// already in the backlog.
  void AddBacklog(std::int64_t id) { backlog_.push_back(id); }
  int epoll() const { return epoll_.number(); }
  void CloseForMemory(std::int64_t id);
  /// The listener's ID in epoll; connections have larger numbers.
  static constexpr std::int64_t kListenerId = 1;

 private:
  static constexpr std::int64_t kOutboxId = 0;
  void Run();
  /// Returns how long epoll may sleep, in seconds; infinite for no limit.
  double PatienceS(const DeferredWork& deferred);
  int Wait(double seconds, epoll_event* events);
  void PauseAfter(int error);
  void Dispatch(const epoll_event& event);
  /// Gives the first connections of the backlog a turn each; returns whether there were any.
  bool TakeTurns();
  void RunTasks();
  void DeliverPosted(std::size_t at_most);
  void FlushDirty();
  void Open(FileHandle file);
  void EndAll();
  Connection* Find(std::int64_t id);

  PortState* const port_;
  FileHandle epoll_;
  const std::shared_ptr<Outbox> outbox_;
  std::thread thread_;
  std::atomic<std::int64_t> num_connections_{0};
  Listener* listener_ = nullptr;
  Timers timers_;
  FreedMemory freed_memory_;
  double now_s_ = 0;
  std::vector<char> buffer_;
  /// By ID, which is never reused, unlike a file's number.
  std::unordered_map<std::int64_t, std::unique_ptr<Connection>> connections_;
  std::int64_t last_id_ = kListenerId;
  std::vector<std::int64_t> dirty_;
  std::vector<std::int64_t> unflushed_;
  std::deque<std::int64_t> backlog_;
  int num_busy_ = 0;
  double busy_until_s_ = 0;
  /// Calls with answers: just posted, and those that were posted before.
  std::vector<std::shared_ptr<WireCall>> posted_;
  PostedCalls<WireCall> posted_before_;
  std::vector<std::function<void()>> tasks_;
  bool is_ending_ = false;
  int logged_error_ = 0;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_LOOP_H_
