#ifndef RECSYS_OUTSIDE_LINE_H_
#define RECSYS_OUTSIDE_LINE_H_

#include <hiredis/hiredis.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace recsys {

/// Where a node listens.
struct NodeAddress {
  std::string host;
  std::int64_t port = 0;
};

/// A connection to a node, which never blocks but for a host's name. Not thread-safe.
class Line {
 public:
  struct FreeReply {
    void operator()(redisReply* reply) const { freeReplyObject(reply); }
  };
  using Reply = std::unique_ptr<redisReply, FreeReply>;

  explicit Line(NodeAddress address) : address_(std::move(address)) {}

  /// Sends commands as soon as it is possible; connects first if it is not connected. Returns
  /// whether it may work.
  bool Send(const std::string& commands);
  /// Writes and reads what is possible at once. Returns whether it may still work.
  bool Turn();
  /// Returns the next reply; null if there is none yet. `*is_lost`: set if there will be none.
  Reply Next(bool* is_lost);
  void Close();

  /// For poll().
  int file() const { return context_->fd; }
  bool has_to_write() const { return sent_ < out_.size(); }

 private:
  struct FreeContext {
    void operator()(redisContext* context) const { redisFree(context); }
  };

  bool Write();
  bool Read();

  const NodeAddress address_;
  std::unique_ptr<redisContext, FreeContext> context_;
  std::string out_;
  std::size_t sent_ = 0;
};

/// Appends a command in the nodes' protocol.
void AppendCommand(std::initializer_list<std::string_view> words, std::string* to);

/// Returns the bytes of a reply; null where it is something else than a text.
inline const redisReply* AsText(const Line::Reply& reply) {
  return reply != nullptr && reply->type == REDIS_REPLY_STRING ? reply.get() : nullptr;
}

}  // namespace recsys

#endif  // RECSYS_OUTSIDE_LINE_H_
