#ifndef RECSYS_BASE_LOG_H_
#define RECSYS_BASE_LOG_H_

#include <functional>
#include <string>

namespace recsys {

enum class LogLevel { kInfo, kWarning, kError, kCritical };

/// One log record. A plain value.
struct LogRecord {
  LogLevel level = LogLevel::kInfo;
  std::string logger = "serve";
  std::string message;
  /// Details of a failure, possibly several lines; empty if there are none.
  std::string exception;
};

/// Receives records from any thread. Must be fast and must not throw.
using LogSink = std::function<void(LogRecord)>;

/// Logs a record, from any thread. Never waits for the log's reader, and never throws. Without a
/// sink, records of kWarning and above are written to stderr, one line each.
void Log(LogRecord record);
void Log(LogLevel level, const std::string& message);

/// Sends all further records to `sink`; an empty one restores the default. When this returns, no
/// thread is still running the previous sink.
void SetLogSink(LogSink sink);

/// Returns the level's name, such as "INFO".
const char* NameOf(LogLevel level);

}  // namespace recsys

#endif  // RECSYS_BASE_LOG_H_
