#ifndef RECSYS_ENGINE_CALLS_HOST_CALLS_H_
#define RECSYS_ENGINE_CALLS_HOST_CALLS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/events.h"
#include "engine/settings/settings.h"
#include "port/service.h"

namespace recsys {

/// Calls answered by the engine's owner: each becomes a CallEvent, and its ID identifies the
/// answer. The messages of a stream are forwarded one at a time: the next one is read once the
/// answer was sent. Of the unary calls of a connection a few are forwarded at a time, so that
/// connections take turns; of those that wait, a full room refuses the connections that have more
/// than their even share. Thread-safe.
class HostCalls : public std::enable_shared_from_this<HostCalls> {
 public:
  /// Takes an event; returns false if there is no room. Must be fast and must not throw.
  using Take = std::function<bool(CallEvent)>;

  /// Unary calls of one connection that are forwarded at a time.
  static constexpr int kAtOnce = 4;

  /// `most_waiting`: of unary calls and of their messages' bytes.
  explicit HostCalls(Take take, RingLimits most_waiting = EngineSettings().call_ring)
      : most_waiting_(most_waiting), take_(std::move(take)) {}

  Method UnaryMethod();
  Method StreamMethod();

  /// Ignored if the call has ended.
  void Answer(std::int64_t id, std::string message);
  void Fail(std::int64_t id, const Status& status);
  std::int64_t num_open() const;

 private:
  class Unary;
  class Stream;
  /// One of the two is set.
  struct Open {
    std::shared_ptr<UnaryCall> unary;
    std::shared_ptr<Stream> stream;
    std::uint64_t connection_number = 0;
    /// The message of a unary call that is not forwarded yet.
    Bytes waiting;
    bool is_waiting = false;
  };
  /// The unary calls of a connection.
  struct Line {
    int num_handed = 0;
    std::deque<std::int64_t> waiting;
    std::int64_t num_waiting = 0;
    std::int64_t num_bytes = 0;
  };

  std::int64_t Add(Open open);
  /// Removes the call, and forwards the next of its connection; returns an empty one if it has
  /// ended.
  Open Remove(std::int64_t id);
  Open RemoveAlone(std::int64_t id);
  /// Counts calls that wait. The lock must be held.
  void Count(Line* line, int num, const Bytes& message);
  std::shared_ptr<Stream> FindStream(std::int64_t id);
  /// Forwards a unary call, or has it wait for others of its connection. Returns false if there is
  /// no room.
  bool HandOrKeep(std::int64_t id, const std::shared_ptr<UnaryCall>& call, const Bytes& message);
  /// Whether one more call of a connection may wait. The lock must be held.
  bool HasRoom(const Line& line, std::int64_t num_bytes) const;
  void HandNext(std::uint64_t connection_number);
  /// Returns the next call of a connection to be forwarded; null if there is none.
  std::shared_ptr<UnaryCall> TakeNext(std::uint64_t connection_number, std::int64_t* id,
                                      Bytes* message);
  /// Creates the call's event; returns false if there is no room.
  bool Hand(std::int64_t id, const Call& call, const Bytes& message, bool is_last);

  const RingLimits most_waiting_;
  const Take take_;
  mutable std::mutex mutex_;
  std::int64_t next_id_ = 1;
  std::unordered_map<std::int64_t, Open> open_;
  /// By number of connection; those without calls have none.
  std::unordered_map<std::uint64_t, Line> lines_;
  std::int64_t num_waiting_ = 0;
  std::int64_t num_bytes_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CALLS_HOST_CALLS_H_
