#ifndef RECSYS_SERVER_WATCH_WATCHERS_H_
#define RECSYS_SERVER_WATCH_WATCHERS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/settings.h"
#include "server/core/gateway.h"
#include "server/observe/metrics.h"
#include "server/watch/capture.h"
#include "server/watch/request_log.h"

namespace recsys {

/// Who sees requests come and go: the log, captures. Made of a server's settings, each only where
/// asked for (serve/watchers.py). Must outlive the gateway that has its watchers, and not the
/// metrics that read its counts.
class Watchers {
 public:
  using ReadCounts = std::function<std::map<std::string, std::int64_t>()>;

  /// `log_counts`: what the log has lost (ProcessLog::Counts); may be empty. Throws
  /// std::system_error: the capture's file cannot be made.
  Watchers(const ServerSettings& settings, Metrics& metrics, ReadCounts log_counts = nullptr);
  /// Closes.
  ~Watchers();
  /// Writes what is left; blocks, for a few seconds at most. Requests may come and go all the same:
  /// they are not captured any more. Idempotent.
  void Close();

  /// For the gateway.
  std::vector<Watcher*> all() const;

 private:
  class CaptureWatcher;

  std::shared_ptr<Capture> capture_;
  std::unique_ptr<CaptureWatcher> capture_watcher_;
  std::unique_ptr<RequestLog> request_log_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_WATCH_WATCHERS_H_
