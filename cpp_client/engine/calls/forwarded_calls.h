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

/// Calls that the engine's owner answers: each becomes a CallEvent, and the answer comes back by
/// its id. The messages of a stream are handed over one at a time: the next one is read once the
/// answer has left. Thread-safe.
class ForwardedCalls : public std::enable_shared_from_this<ForwardedCalls> {
 public:
  /// Takes an event; false where there is no room for it. Must be quick and must not throw.
  using Take = std::function<bool(CallEvent)>;

  explicit ForwardedCalls(Take take) : take_(std::move(take)) {}

  Method UnaryMethod();
  Method StreamMethod();

  /// Ignored where the call has ended.
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
  /// Forgets the call; empty where it has ended.
  Open Remove(std::int64_t id);
  std::shared_ptr<Stream> FindStream(std::int64_t id);
  /// False where there is no room.
  bool Hand(std::int64_t id, const Call& call, const Bytes& message, bool is_last);

  const Take take_;
  mutable std::mutex mutex_;
  std::int64_t next_id_ = 1;
  std::unordered_map<std::int64_t, Open> open_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CALLS_FORWARDED_CALLS_H_
