#ifndef RECSYS_PORT_FRAMING_OUTGOING_H_
#define RECSYS_PORT_FRAMING_OUTGOING_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace recsys::http2 {

/// Called once the message was sent, or cannot be sent any more (false).
using Written = std::function<void(bool)>;

/// Outgoing messages of one call, with gRPC's prefixes. Large parts are copied once, when they can
/// be sent. Not thread-safe.
class OutgoingMessages {
 public:
  /// Returns the bytes used by the message.
  std::size_t Add(Message message, Written written);
  std::size_t num_bytes() const { return num_bytes_; }
  /// Appends the next `size` bytes, at most num_bytes(), to `out`. Releases the owners of sent
  /// parts, and moves the callbacks of sent messages to `written`. Returns how many messages end
  /// with them.
  std::size_t CopyTo(std::size_t size, std::string* out, std::vector<Written>* written);
  /// Drops all messages; moves their callbacks to `written`.
  void Clear(std::vector<Written>* written);

 private:
  struct Part {
    Bytes bytes;
    /// Whether the message ends with this part.
    bool is_last = false;
    Written written;
  };

  std::deque<Part> parts_;
  /// Offset in the first part.
  std::size_t at_ = 0;
  std::size_t num_bytes_ = 0;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_FRAMING_OUTGOING_H_
