#include "server/watch/request_log.h"

#include <cmath>
#include <string>
#include <utility>

#include "base/log.h"
#include "server/core/hosted.h"

namespace recsys {
namespace {

// Of refused or failed requests: under overload there may be thousands a second, all of the same
// kind.
constexpr std::int64_t kMaxErrorsPerSecond = 100;

/// Refused ones have none that anybody vouches for.
std::int64_t NumRows(const Request& request, const Status& status) {
  const bool is_checked = request.hosted != nullptr && status.code != StatusCode::kInvalidArgument;
  return is_checked ? request.checked.num_rows : 0;
}

LogLevel LevelOf(const Status& status) {
  if (status.ok()) return LogLevel::kInfo;
  return status.code == StatusCode::kInternal ? LogLevel::kError : LogLevel::kWarning;
}

}  // namespace

RequestLog::RequestLog(const LogSettings& settings, Clock clock)
    : wants_ok_(settings.requests == "all"),
      wants_errors_(settings.requests != "none"),
      clock_(std::move(clock)) {}

void RequestLog::Ended(const Request& request, const char* outcome, const Status& status) {
  std::int64_t left_out = 0;
  // Most requests: nothing is built for them.
  if (status.ok() ? !wants_ok_ : !wants_errors_ || !HasTurn(&left_out)) return;
  const Hosted* const hosted = request.hosted.get();
  LogRecord record;
  record.level = LevelOf(status);
  record.logger = "serve.requests";
  record.message = "request";
  record.fields = {
      {"model", hosted == nullptr ? request.model : hosted->name()},
      {"version", hosted == nullptr ? request.version : hosted->version()},
      {"request_id", request.request_id},
      {"protocol", std::string(request.protocol)},
      {"outcome", std::string(outcome)},
      {"code", std::string(NameOf(status.code))},
      {"num_rows", NumRows(request, status)},
      {"duration_ms", std::round((clock_() - request.started_s) * 1e6) / 1e3},
      {"reason", status.text},
  };
  if (left_out > 0) record.fields.emplace_back("left_out", left_out);
  Log(std::move(record));
}

bool RequestLog::HasTurn(std::int64_t* left_out) {
  const double now_s = clock_();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (now_s >= second_s_ + 1) {
    second_s_ = now_s;
    num_lines_ = 0;
  }
  if (++num_lines_ > kMaxErrorsPerSecond) {
    ++num_left_out_;
    return false;
  }
  *left_out = std::exchange(num_left_out_, 0);
  return true;
}

}  // namespace recsys
