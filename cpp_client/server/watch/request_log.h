#ifndef RECSYS_SERVER_WATCH_REQUEST_LOG_H_
#define RECSYS_SERVER_WATCH_REQUEST_LOG_H_

#include <cstdint>
#include <limits>
#include <mutex>

#include "base/clock.h"
#include "config/settings.h"
#include "server/core/gateway.h"

namespace recsys {

/// A line for each request, as LogSettings::requests asks (serve/logs.py, RequestLog). Thread-safe.
///
/// Lines of refused and failed requests are at most a hundred a second; the next line says how many
/// there were more.
class RequestLog : public Watcher {
 public:
  explicit RequestLog(const LogSettings& settings, Clock clock = MonotonicSeconds);

  void Accepted(const Request& /*request*/) override {}
  void Ended(const Request& request, const char* outcome, const Status& status) override;

 private:
  /// Whether there is a line left in this second; `left_out`: how many requests had none before.
  bool HasTurn(std::int64_t* left_out);

  const bool wants_ok_;
  const bool wants_errors_;
  const Clock clock_;
  std::mutex mutex_;
  double second_s_ = -std::numeric_limits<double>::infinity();
  std::int64_t num_lines_ = 0;
  std::int64_t num_left_out_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_WATCH_REQUEST_LOG_H_
