#include "base/log.h"

#include <cstdio>
#include <mutex>
#include <shared_mutex>

namespace recsys {
namespace {

struct Sink {
  std::shared_mutex mutex;
  LogSink take;
};

/// Never destroyed: threads may still log while the process exits.
Sink& TheSink() {
  static Sink* const sink = new Sink;
  return *sink;
}

}  // namespace

void Log(LogRecord record) {
  Sink& sink = TheSink();
  const std::shared_lock<std::shared_mutex> lock(sink.mutex);
  if (sink.take) {
    sink.take(std::move(record));
  } else if (record.level >= LogLevel::kWarning) {
    const std::string line = record.message + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
}

void Log(LogLevel level, const std::string& message) {
  LogRecord record;
  record.level = level;
  record.message = message;
  Log(std::move(record));
}

void SetLogSink(LogSink sink) {
  Sink& present = TheSink();
  const std::unique_lock<std::shared_mutex> lock(present.mutex);
  present.take = std::move(sink);
}

const char* NameOf(LogLevel level) {
  switch (level) {
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
    case LogLevel::kCritical:
      return "CRITICAL";
  }
  return "CRITICAL";
}

}  // namespace recsys
