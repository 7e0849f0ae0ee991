#ifndef RECSYS_BASE_LOG_H_
#define RECSYS_BASE_LOG_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace recsys {

enum class LogLevel { kInfo, kWarning, kError, kCritical };

/// What belongs to a record beside its message, such as model and version. Empty texts are left out
/// of the line.
using LogValue = std::variant<std::string, std::int64_t, double, bool>;

/// One record of the log. A plain value.
struct LogRecord {
  LogLevel level = LogLevel::kInfo;
  /// Who says it, such as "serve.requests".
  std::string logger = "serve";
  std::string message;
  std::vector<std::pair<std::string, LogValue>> fields;
  /// More about a failure, perhaps of several lines; empty for none.
  std::string exception;
  /// When, in seconds since the epoch; Log sets it.
  double time_s = 0.0;
};

/// Takes records from any thread. Must be quick and must not throw.
using LogSink = std::function<void(LogRecord)>;

/// Says something, from any thread. Never blocks for whoever reads the log, and never throws. Where
/// no sink is set, records of kWarning and above are lines on stderr.
void Log(LogRecord record);
void Log(LogLevel level, const std::string& message);

/// Lets records go to `sink` from now on; an empty one as if none was set. Records that are on
/// their way to the sink before have reached it when this returns.
void SetLogSink(LogSink sink);

/// "INFO" and so on, as Python's logging has it.
const char* NameOf(LogLevel level);

}  // namespace recsys

#endif  // RECSYS_BASE_LOG_H_
