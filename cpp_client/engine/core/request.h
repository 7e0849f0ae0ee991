#ifndef RECSYS_ENGINE_CORE_REQUEST_H_
#define RECSYS_ENGINE_CORE_REQUEST_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "engine/core/served_model.h"
#include "recsys/request.h"

namespace recsys {

class Servable;
class ShadowRequest;

enum class Priority { kHigh = 1, kNormal = 2, kLow = 3 };

/// A request's own rows of a batch's outputs: views into the batch's memory, which lives as long as
/// `owner`.
struct Rows {
  std::int64_t num_rows = 0;
  /// For each of the signature's outputs its little-endian float32, row-major [B, *shape].
  std::vector<std::string_view> values;
  std::shared_ptr<const void> owner;
};

/// A request on its way: what a protocol's adapter made of it, and where it stands. An adapter
/// derives from it.
///
/// One thread at a time holds it: first the adapter's, then the gateway's, then an executor's. Only
/// Gateway::Cancel may come from another thread meanwhile.
class Request {
 public:
  virtual ~Request() = default;

  /// Fills `raw` (a protocol that needs no model may have done so before); may look at the model.
  /// Called again, with another version, where the first one was closed meanwhile: it must then
  /// begin anew. Throws Error.
  virtual void Read(const Servable& servable) = 0;
  /// Writes the answer in the protocol's own form, in an executor's thread; what it throws is the
  /// answer then.
  virtual Message Encode(const Servable& servable, const Rows& rows) = 0;
  /// Takes the answer: `status` is OK and `answer` holds the message, or it says why there is none.
  /// Called exactly once for each request that was given to the gateway, also for those that were
  /// cancelled; from any thread, perhaps before Gateway::Predict returns. Must be quick and must
  /// not throw. What the adapter has set (`payload`, `raw`) stays as it is: others may still read
  /// it.
  virtual void Done(const Status& status, Message answer) = 0;

  // What the adapter sets.
  /// Keeps what `raw` points into.
  Bytes payload;
  RawRequest raw;
  /// Empty for the only model.
  std::string model;
  /// Empty for the version that the routing chooses.
  std::string version;
  /// The client's own name for it.
  std::string request_id;
  Priority priority = Priority::kNormal;
  /// On the clock of MonotonicSeconds; infinite for none.
  double deadline_s = std::numeric_limits<double>::infinity();
  /// Of the serialized request.
  std::int64_t num_bytes = 0;
  /// "recsys", "kserve", "torchrec" or the name of another door, for records. Text that lives
  /// forever.
  const char* protocol = "recsys";
  /// The W3C traceparent header; empty where the client sent none or nobody wants it.
  std::string trace_parent;
  /// Whether `version` was drawn by the routing, so that the shadow's share applies.
  bool drew_version = false;

  // What the gateway and the executor set.
  double started_s = 0;
  /// The version that answers; null until it is known.
  std::shared_ptr<Servable> servable;
  CheckedRequest checked;
  BatchTimes times;
  /// The same request for another version; null for most.
  std::shared_ptr<ShadowRequest> shadow;

  // What the queue sets (engine/core/batch_queue.h).
  double enqueued_s = 0;
  int level = 0;
  bool is_waiting = false;
  Request* previous = nullptr;
  Request* next = nullptr;
  /// Its place among the deadlines, counted from 1; 0 for none.
  std::size_t deadline_at = 0;
  /// Holds the request while it waits.
  std::shared_ptr<Request> self;

  /// Whether the client has given up, or the answer is on its way: whoever sets it ends the
  /// request.
  std::atomic<bool> is_ended{false};

  /// Bits of `progress`. Whoever sets the second of the two lets a cancelled request end.
  static constexpr int kAccepted = 1;
  static constexpr int kCancelled = 2;
  /// Whether it has joined a queue, so that `servable` stays as it is; whether the client gave it
  /// up.
  std::atomic<int> progress{0};
  /// Whether the gateway was given it, and so counts it: not for those that compute in the shadow.
  bool is_counted = false;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_REQUEST_H_
