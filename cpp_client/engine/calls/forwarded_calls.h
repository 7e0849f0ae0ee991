#ifndef RECSYS_ENGINE_CALLS_FORWARDED_CALLS_H_
#define RECSYS_ENGINE_CALLS_FORWARDED_CALLS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/events.h"
#include "engine/rpc/service.h"

namespace recsys {

/// Calls answered by the engine's owner: each becomes a CallEvent, and its ID identifies the
/// answer. The messages of a stream are forwarded one at a time: the next one is read once the
/// answer was sent. Thread-safe.
class ForwardedCalls : public std::enable_shared_from_this<ForwardedCalls> {
 public:
  /// Takes an event; returns false if there is no room. Must be fast and must not throw.
  using Take = std::function<bool(CallEvent)>;

  explicit ForwardedCalls(Take take) : take_(std::move(take)) {}

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
  };

  std::int64_t Add(Open open);
  /// Removes the call; returns an empty one if it has ended.
  Open Remove(std::int64_t id);
  std::shared_ptr<Stream> FindStream(std::int64_t id);
  /// Creates the call's event; returns false if there is no room.
  bool Hand(std::int64_t id, const Call& call, const Bytes& message, bool is_last);

  const Take take_;
  mutable std::mutex mutex_;
  std::int64_t next_id_ = 1;
  std::unordered_map<std::int64_t, Open> open_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CALLS_FORWARDED_CALLS_H_
