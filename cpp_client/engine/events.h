#ifndef RECSYS_ENGINE_EVENTS_H_
#define RECSYS_ENGINE_EVENTS_H_

// The engine's events for its owner. Records are plain values that own their memory. They are kept
// in bounded rings inside the engine until Engine::Take.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "engine/answers/answer_block.h"
#include "engine/core/request.h"
#include "engine/core/shadow.h"
#include "rest/handed_file.h"

namespace recsys {

/// A call of a method that the owner answers (named in Engine::Listen): call Engine::Answer or
/// Engine::Fail with `id`, once for a unary call and once for each message of a stream.
struct CallEvent {
  std::int64_t id = 0;
  /// "/package.Service/Method".
  std::string method;
  std::string message;
  /// On the clock of MonotonicSeconds; not set if the client set no deadline.
  std::optional<double> deadline_s;
  std::vector<std::pair<std::string, std::string>> metadata;
  /// Such as "ipv4:127.0.0.1:1234".
  std::string peer;
  /// Whether this is the last message with this ID: true for unary calls. A stream ends by itself
  /// once the client has half-closed it and every message is answered.
  bool is_last = true;
};

/// The result of a request passed to Engine::Submit.
struct AnswerEvent {
  std::int64_t ticket = 0;
  Status status;
  std::string message;
};

/// A request that has ended, for logs and traces.
struct EndedEvent {
  /// The W3C traceparent header; empty if the client sent none.
  std::string trace_parent;
  std::string protocol;
  std::string model;
  std::string version;
  std::string request_id;
  std::string outcome;
  /// Name of the status code, such as "INVALID_ARGUMENT".
  std::string code;
  std::string reason;
  std::int64_t num_rows = 0;
  std::int64_t num_ids = 0;
  double started_s = 0;
  double ended_s = 0;
  /// 0 if it never joined a queue.
  double enqueued_s = 0;
  /// Not set if it was in no batch that ran.
  std::optional<BatchTimes> times;
  /// Whether the settings require a log line for it.
  bool is_logged = false;
  /// How many failed requests before it should have been logged and were not: they came too fast.
  std::int64_t num_left_out = 0;
  /// Whether it is traced: as its client requests, otherwise by the sampled share.
  bool is_traced = false;
};

/// A sampled request that was accepted.
struct CapturedEvent {
  /// Arrival time, on the clock of MonotonicSeconds.
  double time_s = 0;
  std::string model;
  std::string version;
  /// A serialized recsys.v1.PredictRequest with the inputs, for requests of every protocol.
  std::string message;
};

/// Sampled requests that were answered, of one version.
struct AnsweredEvent {
  std::shared_ptr<AnswerBlock> block;
};

/// A connection of the HTTP port that its owner has to serve.
struct ConnectionEvent {
  std::shared_ptr<HandedFile> file;
  /// What its client has sent and nobody answered.
  std::string received;
};

struct LogEvent {
  LogLevel level = LogLevel::kInfo;
  std::string logger;
  std::string text;
};

using Event = std::variant<CallEvent, AnswerEvent, EndedEvent, CapturedEvent, AnsweredEvent,
                           ShadowEvent, ConnectionEvent, LogEvent>;

}  // namespace recsys

#endif  // RECSYS_ENGINE_EVENTS_H_
