#ifndef RECSYS_ENGINE_CORE_REQUEST_H_
#define RECSYS_ENGINE_CORE_REQUEST_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "engine/core/queue/amounts.h"
#include "recsys/request.h"

namespace recsys {

class Gateway;
class Servable;
class ShadowRequest;
struct QueueClient;

enum class Priority { kHigh = 1, kNormal = 2, kLow = 3 };

/// One request's rows of a batch's outputs: views into the batch's memory, which is valid as long
/// as `owner` lives.
struct Rows {
  std::int64_t num_rows = 0;
  /// Per output of the signature, its numbers, little-endian, row-major [B, *shape].
  std::vector<std::string_view> values;
  std::shared_ptr<const void> owner;
};

/// Copies of one request's outputs: per output of a signature its numbers, little-endian,
/// row-major.
using OutputCopies = std::vector<std::string>;

/// When a batch passed its stages, in seconds on the clock of MonotonicSeconds.
struct BatchTimes {
  double taken_s = 0;
  double collated_s = 0;
  double executed_s = 0;
  double responded_s = 0;
  std::int64_t num_requests = 0;
  std::int64_t num_rows = 0;
};

/// Returns how many rows a request counts as where requests wait: at least one.
inline std::int64_t CountedRows(const CheckedRequest& checked) {
  return std::max<std::int64_t>(checked.num_rows, 1);
}

/// A request being processed: what a protocol's adapter made of it, and its state. Adapters derive
/// from it.
///
/// One thread at a time owns it: first the adapter's, then the gateway's, then an executor's. Only
/// Gateway::Cancel may be called from another thread meanwhile.
class Request {
 public:
  virtual ~Request() = default;

  /// Fills `raw` (a protocol that needs no model may have done so earlier); may look at the model.
  /// Called again with another version if the first was closed meanwhile: it must then start over.
  /// Throws Error.
  virtual void Read(const Servable& servable) = 0;
  /// Encodes the answer in the protocol's format, in an executor's thread; an exception becomes the
  /// answer.
  virtual Message Encode(const Servable& servable, const Rows& rows) = 0;
  /// Receives the answer: `status` is OK and `answer` contains the message, or `status` is the
  /// error. Called exactly once for each request passed to the gateway, including cancelled ones;
  /// from any thread, possibly before Gateway::Predict returns. Must be fast and must not throw.
  /// Must not change the fields set by the adapter (`payload`, `raw`): others may still read them.
  virtual void Done(const Status& status, Message answer) = 0;

  // What the queue reads and writes under its lock (engine/core/queue/batch_queue.h) lies together:
  // each cache line comes from another processor. The first three are set by the adapter.
  /// Number of the client, such as its connection: clients take turns. 0 for the server's own.
  std::uint64_t client = 0;
  /// On the clock of MonotonicSeconds; infinite for none.
  double deadline_s = std::numeric_limits<double>::infinity();
  /// Whether the client has sent little while others have sent more than can be read at once.
  bool is_light = false;
  /// The line of deadlines that it is in; 0 for none.
  std::uint8_t deadline_line = 0;
  int level = 0;
  /// The round of the queue that it waits in, from 1; a request of another round does not wait.
  std::uint64_t waits_in = 0;
  /// The room that it takes in the queue.
  Amounts room;
  double enqueued_s = 0;
  /// Keeps the request alive while it waits.
  std::shared_ptr<Request> self;
  QueueClient* queue_client = nullptr;
  /// Neighbours in its client's line, in the order of arrival, and in its line of deadlines.
  Request* previous = nullptr;
  Request* next = nullptr;
  Request* older = nullptr;
  Request* newer = nullptr;
  Request* sooner = nullptr;
  Request* later = nullptr;
  /// The deadline on the queue's clock; counts up over all requests with deadlines.
  double expires_s = 0;
  std::uint64_t deadline_number = 0;

  // Set by the adapter.
  /// Owns the memory that `raw` points into.
  Bytes payload;
  RawRequest raw;
  /// Whether `payload` is a recsys.v1.PredictRequest.
  bool is_predict_request = false;
  /// Empty for the only model.
  std::string model;
  /// Empty for the version that the routing chooses.
  std::string version;
  /// The client's own ID for it.
  std::string request_id;
  Priority priority = Priority::kNormal;
  /// Size of the serialized request.
  std::int64_t num_bytes = 0;
  /// "recsys", "kserve", "torchrec" or another source's name, for records. Must have static
  /// lifetime.
  const char* protocol = "recsys";
  /// The W3C traceparent header; empty if the client sent none or it is not needed.
  std::string trace_parent;
  /// Whether `version` was drawn by the routing, so that the shadow's share applies.
  bool drew_version = false;
  /// Decides between a canary and the version that serves; not set if it is not known.
  std::optional<std::int64_t> key;

  // Set by the gateway and the executor.
  double started_s = 0;
  /// Of the gateway's count of active requests.
  std::size_t active_stripe = 0;
  /// In [0, 1): compared with the shares of the answers that leave a record.
  double answered_draw = 0;
  /// Whether its answer leaves a record, so that the executor copies `outputs`; whether the record
  /// has its inputs too.
  bool keeps_answer = false;
  bool keeps_inputs = false;
  /// The numbers of each output of the signature, one after the other: little-endian, row-major.
  std::string outputs;
  /// The version that answers; null until it is known.
  std::shared_ptr<Servable> servable;
  CheckedRequest checked;
  BatchTimes times;
  /// The same request for a shadow version; null for most.
  std::shared_ptr<ShadowRequest> shadow;

  /// Its place in the queue's map of deadlines, if it is there.
  std::multimap<double, Request*>::iterator deadline_at;

  /// Whether the client has cancelled, or the answer is being sent: the thread that sets it ends
  /// the request.
  std::atomic<bool> is_ended{false};

  /// Bits of `progress`. The thread that sets the second of the two ends a cancelled request.
  static constexpr int kAccepted = 1;
  static constexpr int kCancelled = 2;
  /// Whether it has joined a queue, so that `servable` no longer changes; whether the client
  /// cancelled it.
  std::atomic<int> progress{0};
  /// The gateway that it was passed to: null for shadow requests.
  Gateway* counted_by = nullptr;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_REQUEST_H_
