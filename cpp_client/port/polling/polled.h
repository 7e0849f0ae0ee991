#ifndef RECSYS_PORT_POLLING_POLLED_H_
#define RECSYS_PORT_POLLING_POLLED_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "port/bounds/memory_ledger.h"
#include "port/net/socket.h"
#include "port/polling/outbox.h"
#include "port/polling/timers.h"

namespace recsys::http2 {

class Loop;
struct PortState;

/// A connection as its loop sees it, of whatever protocol. Constructed, called and destroyed in the
/// thread of the loop that has it.
class Polled : public Timed {
 public:
  /// With TLS if the port has it. The protocol then calls StartPolling.
  Polled(Loop* loop, std::int64_t id, FileHandle file, PortState* port);
  Polled(const Polled&) = delete;
  Polled& operator=(const Polled&) = delete;

  /// Names it among all connections of the process.
  std::int64_t id() const { return id_; }
  /// The port that it came through.
  PortState& port() const { return *port_; }
  /// Whether it can be deleted: its loop does so at the end of the round, if it is marked dirty.
  virtual bool is_closed() const = 0;
  /// Handles epoll's events.
  virtual void OnReady(std::uint32_t events) = 0;
  /// Takes the turn that it has asked for with Loop::AddBacklog.
  virtual void OnTurn() = 0;
  /// Sends pending data, after Loop::MarkDirty.
  virtual void Flush() = 0;
  /// Lets what is open finish, accepts nothing new, then closes.
  virtual void Drain() = 0;
  /// Ends what is open, sends what can be sent at once, and closes.
  virtual void End() = 0;
  /// Closes, because the ledger of the port has chosen it.
  virtual void CloseForMemory() = 0;
  /// Whether it can move to another loop now, with the calls that are open.
  virtual bool MayLeave() const = 0;
  /// Leaves its loop for another one, in whose thread Join is called next. From then on only that
  /// thread may touch it.
  virtual void LeaveFor(Loop* to);
  /// Has the loop poll it that it has left for.
  virtual void Join();
  /// What it has asked for lately, in calls: half of it is forgotten in about a third of a second.
  double Work(double now_s) const { return work_ * std::exp((worked_s_ - now_s) / kWorkS); }

 protected:
  /// Closes at once; idempotent.
  virtual void CloseNow() = 0;
  /// Returns when OnDue is to be called next; infinite for never.
  virtual double NextTime() const = 0;
  /// Adds its file to the loop's epoll, under its ID, and its time to the loop's timers; closes if
  /// the system refuses.
  void StartPolling();
  void StopPolling();
  /// Waits for these events of epoll from now on; closes if the system refuses.
  void PollFor(std::uint32_t events);
  /// Has the loop flush it.
  void MarkDirty();
  /// Writes `out_`; returns false if the socket currently accepts no more, or if it has closed.
  bool WriteOut();
  /// Replaces what it has counted in its account.
  void CountHeld(std::int64_t num_bytes);
  /// Notes so many calls. A message costs as much as another call by so many bytes.
  void NoteWork(double now_s, double num_calls, std::size_t num_bytes) {
    work_ = Work(now_s) + num_calls + static_cast<double>(num_bytes) / kBytesPerCall;
    worked_s_ = now_s;
  }

  Loop* loop_;
  const std::shared_ptr<Home> home_;
  Socket socket_;
  MemoryLedger::Account account_;
  /// What is to be written to the socket, from `out_at_` on.
  std::string out_;
  std::size_t out_at_ = 0;
  bool is_blocked_ = false;
  /// Whether the loop will flush it.
  bool is_dirty_ = false;

 private:
  static constexpr double kWorkS = 0.5;
  static constexpr double kBytesPerCall = 16 << 10;

  PortState* const port_;
  const std::int64_t id_;
  std::uint32_t interest_;
  std::int64_t counted_bytes_ = 0;
  double work_ = 0;
  double worked_s_ = 0;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_POLLED_H_
