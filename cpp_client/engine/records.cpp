#include "engine/records.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/hash/xxh64.h"
#include "base/random.h"
#include "engine/core/servable.h"
#include "wire/predict_messages.h"

namespace recsys {
namespace {

// Approximate size of a record without its texts.
constexpr std::int64_t kRecordBytes = 256;
// Failed requests a second that leave a record for the log (as in serve/observe/logs.py): a refusal
// must not cost more than the call that caused it.
constexpr int kMaxErrorsPerS = 100;
constexpr std::int64_t kNoBound = std::numeric_limits<std::int64_t>::max();

template <typename... Texts>
std::int64_t BytesOf(const Texts&... texts) {
  return kRecordBytes + static_cast<std::int64_t>((texts.size() + ... + 0));
}

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(std::string_view text) { return text.find_first_not_of('0') == text.npos; }

int DigitOf(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

EndedEvent EndedOf(const Request& request, const Status& status, double now_s) {
  EndedEvent event;
  const Servable* const servable = request.servable.get();
  event.trace_parent = request.trace_parent;
  event.protocol = request.protocol;
  event.model = servable == nullptr ? request.model : servable->name();
  event.version = servable == nullptr ? request.version : servable->version();
  event.request_id = request.request_id;
  event.outcome = OutcomeName(OutcomeOf(status.code));
  event.code = StatusName(status.code);
  event.reason = status.text;
  event.started_s = request.started_s;
  event.ended_s = now_s;
  event.enqueued_s = request.enqueued_s;
  // A refused request has no checked size.
  if (servable != nullptr && status.code != StatusCode::kInvalidArgument) {
    event.num_rows = request.checked.num_rows;
    event.num_ids = request.checked.num_ids;
  }
  if (request.times.num_requests > 0) event.times = request.times;
  return event;
}

}  // namespace

TraceFlag TraceFlagOf(std::string_view header) {
  // version 2, trace ID 32, parent ID 16, flags 2, in lower-case hexadecimal digits separated by
  // dashes; later versions may add fields.
  constexpr std::size_t kVersion0Chars = 55, kMaxChars = 256;
  if (header.size() < kVersion0Chars || header.size() > kMaxChars) return TraceFlag::kNone;
  const std::string_view version = header.substr(0, 2), trace = header.substr(3, 32),
                         parent = header.substr(36, 16), flags = header.substr(53, 2);
  const bool is_shaped = header[2] == '-' && header[35] == '-' && header[52] == '-' &&
                         IsHex(version) && IsHex(trace) && IsHex(parent) && IsHex(flags);
  const bool is_long = header.size() > kVersion0Chars;
  if (!is_shaped || version == "ff" || IsZero(trace) || IsZero(parent)) return TraceFlag::kNone;
  if (is_long && (version == "00" || header[kVersion0Chars] != '-')) return TraceFlag::kNone;
  return (DigitOf(flags[1]) & 1) != 0 ? TraceFlag::kSampled : TraceFlag::kNotSampled;
}

Records::Records(const EngineSettings& settings, Clock clock)
    : settings_(settings),
      clock_(std::move(clock)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      answers_(kNoBound, kNoBound),
      calls_(settings.call_ring.max_entries, settings.call_ring.max_bytes),
      ended_(settings.ended_ring.max_entries, settings.ended_ring.max_bytes),
      connections_(settings.call_ring.max_entries, settings.call_ring.max_bytes),
      shadow_(settings.shadow_ring.max_entries, settings.shadow_ring.max_bytes),
      captured_(settings.captured_ring.max_entries, settings.captured_ring.max_bytes),
      answered_(settings.answered_bytes),
      log_(settings.log_ring.max_entries, settings.log_ring.max_bytes) {
  if (!wake_.is_open()) throw std::system_error(errno, std::generic_category(), "eventfd");
}

void Records::Wake() {
  if (!is_awake_.exchange(true)) eventfd_write(wake_.number(), 1);
}

std::vector<Event> Records::Take(std::size_t at_most, bool all_answers) {
  // In this order: an event added before the store is taken below, one added after it wakes the
  // owner again. The other way round, the read could clear the wake-up of an event that is taken
  // here, and no later event would wake the owner.
  eventfd_t count = 0;
  static_cast<void>(eventfd_read(wake_.number(), &count));
  is_awake_.store(false);
  std::vector<Event> events;
  const auto take = [&](auto& ring) { return ring.Take(at_most - events.size(), &events); };
  bool is_left = take(answers_);
  is_left |= take(calls_);
  is_left |= take(connections_);
  is_left |= take(log_);
  is_left |= take(ended_);
  is_left |= take(shadow_);
  is_left |= take(captured_);
  if (is_left) Wake();
  AnswerBlocks blocks;
  answered_.Take(all_answers, &blocks);
  for (std::shared_ptr<AnswerBlock>& block : blocks)
    events.push_back(AnsweredEvent{std::move(block)});
  return events;
}

bool Records::Add(CallEvent event) {
  const std::int64_t num_bytes = BytesOf(event.method, event.message);
  if (!calls_.Push(std::move(event), num_bytes)) return false;
  Wake();
  return true;
}

bool Records::Add(ShadowEvent event) {
  const std::int64_t num_bytes = event.num_bytes() + kRecordBytes;
  if (!shadow_.Push(std::move(event), num_bytes)) return false;
  Wake();
  return true;
}

void Records::Add(ConnectionEvent event) {
  const std::int64_t num_bytes = BytesOf(event.received);
  if (connections_.Push(std::move(event), num_bytes)) Wake();
}

void Records::Add(AnswerEvent event) {
  answers_.Push(std::move(event), 0);
  Wake();
}

void Records::Add(LogRecord record) {
  LogEvent event{record.level, std::move(record.logger), std::move(record.message)};
  if (!record.exception.empty()) event.text += "\n" + record.exception;
  const std::int64_t num_bytes = BytesOf(event.text);
  if (log_.Push(std::move(event), num_bytes)) Wake();
}

bool Records::reads_trace() const {
  return settings_.ended != "none" || settings_.trace_share.has_value();
}

void Records::Accepted(const Request& request) {
  if (settings_.capture_share <= 0 || RandomShare() >= settings_.capture_share) return;
  const auto num_bytes = static_cast<std::int64_t>(NumBytesOf(request.raw)) + kRecordBytes;
  if (!captured_.HasRoom(num_bytes)) return;
  CapturedEvent event{clock_(), request.servable->name(), request.servable->version(),
                      WritePredictRequest(request.raw)};
  if (captured_.Push(std::move(event), num_bytes)) Wake();
}

bool Records::KeepsAnswer(Request& request) {
  const bool has_id = !request.request_id.empty();
  const double share =
      has_id ? std::max(settings_.answered_share, settings_.inputs_share) : settings_.inputs_share;
  if (share <= 0) return false;
  // By its ID where it has one, so that all servers choose the same requests (draw_of in
  // serve/engine/records.py).
  request.answered_draw =
      has_id ? static_cast<double>(Xxh64(request.request_id) >> 11) * 0x1.0p-53 : RandomShare();
  request.keeps_inputs = request.answered_draw < settings_.inputs_share;
  return request.answered_draw < share;
}

bool Records::MayLogError(double now_s, std::int64_t* num_left_out) {
  const std::lock_guard<std::mutex> lock(errors_);
  if (now_s >= errors_began_s_ + 1) {
    errors_began_s_ = now_s;
    num_errors_ = 0;
  }
  if (num_errors_ >= kMaxErrorsPerS) {
    ++num_left_out_;
    return false;
  }
  ++num_errors_;
  *num_left_out = std::exchange(num_left_out_, 0);
  return true;
}

void Records::Ended(const Request& request, const Status& status) {
  // Those that are too few to fill a block wake nobody: the owner looks for them at intervals.
  if (status.ok() && request.keeps_answer && answered_.Add(request)) Wake();
  std::int64_t num_left_out = 0;
  bool is_logged = settings_.ended == "all";
  if (!status.ok() && settings_.ended != "none") {
    is_logged = MayLogError(clock_(), &num_left_out);
  }
  bool is_traced = false;
  if (settings_.trace_share) {
    const TraceFlag flag = TraceFlagOf(request.trace_parent);
    is_traced = flag == TraceFlag::kNone ? RandomShare() < *settings_.trace_share
                                         : flag == TraceFlag::kSampled;
  }
  // Most requests leave no record.
  if (!is_logged && !is_traced) return;
  if (!ended_.HasRoom(BytesOf(request.trace_parent, request.request_id, status.text))) {
    const std::lock_guard<std::mutex> lock(errors_);
    num_left_out_ += num_left_out;
    return;
  }
  EndedEvent event = EndedOf(request, status, clock_());
  event.is_logged = is_logged;
  event.is_traced = is_traced;
  event.num_left_out = num_left_out;
  const std::int64_t num_bytes =
      BytesOf(event.trace_parent, event.model, event.version, event.request_id, event.reason);
  if (ended_.Push(std::move(event), num_bytes)) Wake();
}

Records::Dropped Records::dropped() const {
  return {calls_.num_dropped(),    ended_.num_dropped(),           captured_.num_dropped(),
          answered_.num_dropped(), answered_.num_inputs_dropped(), shadow_.num_dropped(),
          log_.num_dropped()};
}

}  // namespace recsys
