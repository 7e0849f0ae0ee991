#ifndef RECSYS_PORT_PORT_STATE_H_
#define RECSYS_PORT_PORT_STATE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/stripes.h"
#include "port/bounds/counters.h"
#include "port/bounds/memory_ledger.h"
#include "port/limits.h"
#include "port/net/listening.h"
#include "port/net/tls.h"

namespace recsys::http2 {

class Loop;
class Polled;

/// Returns a bound on memory that takes two messages of the largest size; 0 for none.
inline std::int64_t MemoryBound(const ConnectionLimits& limits, std::int64_t bound) {
  return bound == 0 ? 0 : std::max(bound, 2 * limits.max_message_bytes);
}

/// State shared by the connections of one port, whatever its protocol. Outlives them.
struct PortState {
  explicit PortState(const ConnectionLimits& the_limits)
      : limits(the_limits),
        ledger(MemoryBound(the_limits, the_limits.max_port_bytes), &counters.held_bytes) {}
  virtual ~PortState() = default;
  PortState(const PortState&) = delete;
  PortState& operator=(const PortState&) = delete;

  /// Makes a connection of the port's protocol, in its loop's thread. `id` names it in the loop.
  virtual std::unique_ptr<Polled> Open(Loop* loop, std::int64_t id, FileHandle file) = 0;

  const ConnectionLimits limits;
  /// Null for plain text.
  std::shared_ptr<TlsStore> tls;
  PortCounters counters;
  MemoryLedger ledger;
  OpenCount open_calls;
  /// Connections that loops have, or are about to open.
  std::atomic<std::int64_t> num_connections{0};
  std::atomic<bool> is_draining{false};
  /// Its connections stay where they are, until they are ended.
  std::atomic<bool> is_ending{false};
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_PORT_STATE_H_
