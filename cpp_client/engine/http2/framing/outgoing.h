#ifndef RECSYS_ENGINE_HTTP2_FRAMING_OUTGOING_H_
#define RECSYS_ENGINE_HTTP2_FRAMING_OUTGOING_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace recsys::http2 {

/// Told once a message has left for the wire, or never will.
using Written = std::function<void(bool)>;

/// Messages of one call on their way out, with gRPC's prefixes. Large parts are copied once, when
/// there is room for them on the wire. Not thread-safe.
class OutgoingMessages {
 public:
  /// Returns the bytes that it takes.
  std::size_t Add(Message message, Written written);
  std::size_t num_bytes() const { return num_bytes_; }
  /// Appends the next `size` bytes, at most num_bytes(), to `out`. Owners of parts that have left
  /// are released; what waits for messages that have left is moved to `written`.
  void CopyTo(std::size_t size, std::string* out, std::vector<Written>* written);
  /// Forgets all; what waits for them is moved to `written`.
  void Clear(std::vector<Written>* written);

 private:
  struct Part {
    Bytes bytes;
    /// Set where the message ends with this part.
    bool is_last = false;
    Written written;
  };

  std::deque<Part> parts_;
  /// In the first part.
  std::size_t at_ = 0;
  std::size_t num_bytes_ = 0;
};

}  // namespace recsys::http2

#endif  // RECSYS_ENGINE_HTTP2_FRAMING_OUTGOING_H_
