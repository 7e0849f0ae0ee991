#ifndef RECSYS_ENGINE_RECORDS_H_
#define RECSYS_ENGINE_RECORDS_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "engine/answers/answer_recorder.h"
#include "engine/core/gateway.h"
#include "engine/core/shadow.h"
#include "engine/counters/ring.h"
#include "engine/events.h"
#include "engine/settings/settings.h"
#include "port/net/listening.h"

namespace recsys {

/// Whether a W3C traceparent header requests a trace; kNone if it is missing or malformed.
enum class TraceFlag { kNone, kNotSampled, kSampled };
TraceFlag TraceFlagOf(std::string_view trace_parent);

/// The events pending for the engine's owner. Thread-safe.
class Records final : public Observer {
 public:
  /// Throws std::system_error if the process has no file descriptors left.
  explicit Records(const EngineSettings& settings, Clock clock = MonotonicSeconds);

  int event_fd() const { return wake_.number(); }
  /// Takes pending events, and full blocks of answers; with `all_answers` those too that are not
  /// full.
  std::vector<Event> Take(std::size_t at_most, bool all_answers = false);

  /// Return false if there is no room.
  bool Add(CallEvent event);
  bool Add(ShadowEvent event);
  /// Closes the connection if there is no room.
  void Add(ConnectionEvent event);
  void Add(AnswerEvent event);
  void Add(LogRecord record);

  bool reads_trace() const override;
  bool KeepsAnswer(Request& request) override;
  void Accepted(const Request& request) override;
  void Ended(const Request& request, const Status& status) override;

  /// Events dropped for lack of room.
  struct Dropped {
    std::int64_t calls, ended, captured, answered, inputs, shadow, log;
  };
  Dropped dropped() const;

 private:
  /// Makes event_fd() readable.
  void Wake();
  /// Returns whether one more failed request may leave a record for the log; then `num_left_out`
  /// receives how many before it left none.
  bool MayLogError(double now_s, std::int64_t* num_left_out);

  const EngineSettings settings_;
  const Clock clock_;
  FileHandle wake_;
  std::atomic<bool> is_awake_{false};
  std::mutex errors_;
  /// The errors that were logged in the second from `errors_began_s_` on.
  double errors_began_s_ = -kNever;
  int num_errors_ = 0;
  std::int64_t num_left_out_ = 0;
  Ring<AnswerEvent> answers_;
  Ring<CallEvent> calls_;
  Ring<EndedEvent> ended_;
  Ring<ConnectionEvent> connections_;
  Ring<ShadowEvent> shadow_;
  Ring<CapturedEvent> captured_;
  AnswerRecorder answered_;
  Ring<LogEvent> log_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_RECORDS_H_
