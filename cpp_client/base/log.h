#ifndef RECSYS_BASE_LOG_H_
#define RECSYS_BASE_LOG_H_

#include <functional>
#include <string>

namespace recsys {

enum class LogLevel { kInfo, kWarning, kError, kCritical };

/// One record of the log. A plain value.
struct LogRecord {
  LogLevel level = LogLevel::kInfo;
  std::string logger = "serve";
  std::string message;
  /// More about a failure, perhaps of several lines; empty for none.
  std::string exception;
};

/// Takes records from any thread. Must be quick and must not throw.
using LogSink = std::function<void(LogRecord)>;

/// Logs a record, from any thread. Never waits for the reader of the log, and never throws. Where
/// no sink is set, records of kWarning and above are lines on stderr.
void Log(LogRecord record);
void Log(LogLevel level, const std::string& message);

/// Sends records to `sink` from now on; an empty one restores the default. No thread is inside the
/// previous sink when this returns.
void SetLogSink(LogSink sink);

/// "INFO" and so on.
const char* NameOf(LogLevel level);

}  // namespace recsys

#endif  // RECSYS_BASE_LOG_H_
