#ifndef RECSYS_PORT_FRAMING_MESSAGE_READER_H_
#define RECSYS_PORT_FRAMING_MESSAGE_READER_H_

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

/// Splits the bytes of a call into gRPC's messages: a flag, a big-endian length, the message.
/// Memory grows with the bytes received, not with the announced length. Not thread-safe.
class MessageReader {
 public:
  explicit MessageReader(std::int64_t max_message_bytes, MessageEncoding encoding)
      : max_bytes_(static_cast<std::size_t>(max_message_bytes)), encoding_(encoding) {}

  /// Adds bytes; those after the first complete message are kept until Take.
  void Add(std::string_view data);
  /// Why the call ends once the preceding messages were taken: the next one is too large or
  /// malformed. OK if there is no failure.
  const Status& failure() const { return failure_; }
  /// Whether a message is complete.
  bool has_message() const { return is_complete_ && failure_.ok(); }
  /// Returns the complete message, decompressed if needed. Afterwards the next one may be complete.
  /// If it cannot be decompressed, the call ends with the returned status.
  Status Take(Bytes* message);

  /// Whether a message has begun and is not complete.
  bool is_unfinished() const { return !is_complete_ && num_prefix_ > 0 && failure_.ok(); }
  /// Length of the message that has begun, once its prefix is complete; otherwise 0.
  std::size_t announced_bytes() const { return num_prefix_ == kPrefixBytes ? length_ : 0; }
  /// Frees all bytes: no message will be taken any more.
  void Drop();
  /// Bytes added and not yet taken.
  std::size_t held_bytes() const { return num_prefix_ + size_ + rest_.size() - rest_at_; }

  /// Memory for them.
  std::size_t memory_bytes() const { return capacity_ + rest_.capacity(); }

  static constexpr std::size_t kPrefixBytes = 5;

 private:
  /// Returns the number of bytes used.
  std::size_t AddToMessage(std::string_view data);
  Status CheckPrefix();
  void Reserve(std::size_t size);

  const std::size_t max_bytes_;
  const MessageEncoding encoding_;
  std::uint8_t prefix_[kPrefixBytes] = {};
  std::size_t num_prefix_ = 0;
  /// The length in the prefix.
  std::size_t length_ = 0;
  std::shared_ptr<char> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  bool is_complete_ = false;
  Status failure_;
  /// Data after the message, from `rest_at_` on.
  std::string rest_;
  std::size_t rest_at_ = 0;
};

/// Decompresses one message of at most `max_bytes`. Returns OK, or the failure that ends the call.
Status Inflate(std::string_view data, MessageEncoding encoding, std::size_t max_bytes,
               std::string* inflated);

}  // namespace recsys::http2

#endif  // RECSYS_PORT_FRAMING_MESSAGE_READER_H_
