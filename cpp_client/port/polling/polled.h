#ifndef RECSYS_PORT_POLLING_POLLED_H_
#define RECSYS_PORT_POLLING_POLLED_H_

#include <cstdint>
#include <memory>

#include "port/polling/timers.h"

namespace recsys::http2 {

struct PortState;

/// A connection as its loop sees it, of whatever protocol. Constructed, called and destroyed in the
/// loop's thread. It adds its file to the loop's epoll, under its ID, and removes it.
class Polled : public Timed {
 public:
  explicit Polled(PortState* port) : port_(port) {}
  Polled(const Polled&) = delete;
  Polled& operator=(const Polled&) = delete;

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

 private:
  PortState* const port_;
};

/// What another thread may post to a loop, such as a call with its answer.
class Posted {
 public:
  virtual ~Posted() = default;
  /// Connections take turns by their numbers.
  virtual std::uint64_t connection_number() const = 0;
  /// Called in the loop's thread.
  virtual void Deliver() = 0;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_POLLING_POLLED_H_
