#ifndef RECSYS_ENGINE_HTTP2_FRAMING_MESSAGE_READER_H_
#define RECSYS_ENGINE_HTTP2_FRAMING_MESSAGE_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"

namespace recsys::http2 {

/// How a call's messages may be compressed (grpc-encoding).
enum class MessageEncoding { kIdentity, kGzip, kDeflate };

/// Cuts the bytes of a call into gRPC's messages: a flag, a big-endian length, the message. Memory
/// grows with the bytes that came, not with the length that they announce. Not thread-safe.
class MessageReader {
 public:
  explicit MessageReader(std::int64_t max_message_bytes, MessageEncoding encoding)
      : max_bytes_(static_cast<std::size_t>(max_message_bytes)), encoding_(encoding) {}

  /// Takes bytes; those behind the first complete message wait for Take.
  void Add(std::string_view data);
  /// Why the call ends once the messages before have been taken: the next one is too large, or is
  /// no message. OK where it goes on.
  const Status& failure() const { return failure_; }
  /// Whether a message is complete.
  bool has_message() const { return is_complete_ && failure_.ok(); }
  /// The complete message, inflated where it was compressed. Afterwards the next one may be
  /// complete. Where it cannot be inflated the call ends with the status.
  Status Take(Bytes* message);

  /// Whether a message has begun and is not complete.
  bool is_unfinished() const { return !is_complete_ && num_prefix_ > 0 && failure_.ok(); }
  /// Of the message that has begun, once its prefix is there; else 0.
  std::size_t announced_bytes() const { return num_prefix_ == kPrefixBytes ? length_ : 0; }
  /// Frees what was added: nothing will be taken any more.
  void Drop();
  /// Bytes that were added and not taken.
  std::size_t held_bytes() const { return num_prefix_ + size_ + rest_.size() - rest_at_; }

  static constexpr std::size_t kPrefixBytes = 5;

 private:
  /// Returns how much it took.
  std::size_t AddToMessage(std::string_view data);
  Status CheckPrefix();
  void Reserve(std::size_t size);

  const std::size_t max_bytes_;
  const MessageEncoding encoding_;
  std::uint8_t prefix_[kPrefixBytes] = {};
  std::size_t num_prefix_ = 0;
  /// What the prefix says.
  std::size_t length_ = 0;
  std::shared_ptr<char> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  bool is_complete_ = false;
  Status failure_;
  /// What follows the message, from `rest_at_` on.
  std::string rest_;
  std::size_t rest_at_ = 0;
};

/// Inflates one message of at most `max_bytes`. OK, or the failure that ends the call.
Status Inflate(std::string_view data, MessageEncoding encoding, std::size_t max_bytes,
               std::string* inflated);

}  // namespace recsys::http2

#endif  // RECSYS_ENGINE_HTTP2_FRAMING_MESSAGE_READER_H_
