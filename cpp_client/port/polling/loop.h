#ifndef RECSYS_PORT_POLLING_LOOP_H_
#define RECSYS_PORT_POLLING_LOOP_H_

#include <sys/epoll.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "port/net/listening.h"
#include "port/polling/freed_memory.h"
#include "port/polling/outbox.h"
#include "port/polling/polled.h"
#include "port/polling/posted_calls.h"
#include "port/polling/timers.h"
#include "port/port_state.h"
#include "port/service.h"

namespace recsys::http2 {

class Listener;

/// A thread that polls connections. Each belongs to one loop, and may move to another one.
class Loop {
 public:
  /// Throws std::system_error if the process has no file descriptors left.
  explicit Loop(std::function<std::unique_ptr<DeferredWork>()> make_deferred_work);
  /// Stops the loop.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Before Start: has its thread call `look` after a round of events, and then again at the time
  /// that it returns.
  void LookWith(std::function<double(double now_s)> look) { look_ = std::move(look); }
  /// Starts its thread under a name.
  void Start(std::string name);
  /// Ends all calls and connections, then the thread. Idempotent; any thread but its own.
  void Stop();
  std::int64_t num_connections() const { return num_connections_.load(); }
  /// Time in which its thread had something to do.
  double busy_s() const { return static_cast<double>(busy_ns_.load()) * 1e-9; }
  /// Processor time of its thread.
  double processor_s() const;
  /// Connections that it has handed to other loops.
  std::int64_t num_moved() const { return num_moved_.load(); }
  const std::shared_ptr<Outbox>& outbox() const { return outbox_; }
  /// Any thread, like the six above: takes over an accepted connection of a port.
  void Adopt(FileHandle file, PortState* port);
  /// Any thread: drains all connections of a port, and stops its listener.
  void Drain(const PortState* port);

  // Polling thread only, like everything below.
  /// Notifies `listener` when a connection is waiting, until StopListening.
  void Watch(Listener* listener);
  void StopListening(const PortState* port);
  /// Hands connections with about this share of the work to another loop; 1 for all connections.
  void Move(double share, Loop* to);
  /// Ends all connections of a port; answers that were posted before are still sent.
  void EndPort(const PortState* port);
  Timers& timers() { return timers_; }
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
  /// Waits for events of a file under an ID from now on, or for other ones than before
  /// (`operation`: EPOLL_CTL_ADD, EPOLL_CTL_MOD). Returns false, with errno, if the system refuses.
  bool Poll(int operation, int file, std::uint32_t events, std::int64_t id);
  void StopPolling(int file);
  void CloseForMemory(std::int64_t id);

 private:
  static constexpr std::int64_t kOutboxId = 0;
  static constexpr clockid_t kNoClock = CLOCK_REALTIME;
  void Run();
  /// Returns how long epoll may sleep, in seconds; infinite for no limit.
  double PatienceS(const DeferredWork& deferred);
  int Wait(double seconds, epoll_event* events);
  void PauseAfter(int error);
  /// Counts the time since the beginning of this round.
  void NoteBusy();
  void Dispatch(const epoll_event& event);
  /// Gives the first connections of the backlog a turn each; returns whether there were any.
  bool TakeTurns();
  void RunTasks();
  void DeliverPosted(std::size_t at_most);
  void FlushDirty();
  void Open(FileHandle file, PortState* port);
  void Hand(std::int64_t id, Loop* to);
  void Join(std::unique_ptr<Polled> connection);
  void Delete(std::int64_t id);
  void SendPosted();
  void EndAll();
  /// Returns how many bytes the connections of all ports hold that listen here.
  std::int64_t HeldBytes() const;
  Polled* Find(std::int64_t id);

  const std::function<std::unique_ptr<DeferredWork>()> make_deferred_work_;
  FileHandle epoll_;
  const std::shared_ptr<Outbox> outbox_;
  std::thread thread_;
  std::atomic<std::int64_t> num_connections_{0};
  std::atomic<std::int64_t> busy_ns_{0};
  std::atomic<std::int64_t> num_moved_{0};
  /// Of its thread's processor time; none before it runs.
  std::atomic<clockid_t> clock_{kNoClock};
  std::function<double(double)> look_;
  double next_look_s_ = 0;
  std::unordered_map<std::int64_t, Listener*> listeners_;
  Timers timers_;
  FreedMemory freed_memory_;
  double now_s_ = 0;
  std::vector<char> buffer_;
  /// By ID, which no other loop has, and which is never reused, unlike a file's number.
  std::unordered_map<std::int64_t, std::unique_ptr<Polled>> connections_;
  std::vector<std::int64_t> dirty_;
  std::vector<std::int64_t> unflushed_;
  std::deque<std::int64_t> backlog_;
  int num_busy_ = 0;
  double busy_until_s_ = 0;
  /// Calls with answers: just posted, and those that were posted before.
  std::vector<std::shared_ptr<Posted>> posted_;
  PostedCalls<Posted> posted_before_;
  std::vector<std::function<void(Loop&)>> tasks_;
  bool is_ending_ = false;
  int logged_error_ = 0;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_LOOP_H_
