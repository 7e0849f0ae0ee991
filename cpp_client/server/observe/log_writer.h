#ifndef RECSYS_SERVER_OBSERVE_LOG_WRITER_H_
#define RECSYS_SERVER_OBSERVE_LOG_WRITER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/log.h"

namespace recsys {

/// Where lines go.
class LogStream {
 public:
  virtual ~LogStream() = default;
  /// Writes all of `text`, or says that it did not: the stream is gone, or nobody read it until
  /// then (MonotonicSeconds; `until_s` may move to an earlier time from another thread, by Hurry).
  virtual bool Write(const std::string& text) = 0;
  /// From now on nothing takes longer than until then. From any thread.
  virtual void Hurry(double until_s) = 0;
};

/// Lines to a file descriptor, which stays open. It writes only what the descriptor has room for,
/// so that one that nobody reads does not keep the process from its end.
class DescriptorStream : public LogStream {
 public:
  explicit DescriptorStream(int descriptor);
  ~DescriptorStream() override;
  DescriptorStream(const DescriptorStream&) = delete;
  DescriptorStream& operator=(const DescriptorStream&) = delete;

  bool Write(const std::string& text) override;
  void Hurry(double until_s) override;

 private:
  /// Whether there is room before the time that Hurry has set.
  bool WaitForRoom();

  const int descriptor_;
  /// Wakes WaitForRoom.
  const int hurry_event_;
  std::mutex mutex_;
  double until_s_;
};

/// The log: takes records from any thread without waiting, and makes and writes their lines in a
/// thread of its own (serve/logs.py, LogWriter). Where the reader is too slow, records are lost,
/// counted, and the log says how many.
class LogWriter {
 public:
  static constexpr std::size_t kMaxWaiting = 10'000;

  /// `stream` lives longer. `as_json`: the lines' form. `max_waiting`: records that may wait.
  LogWriter(LogStream& stream, bool as_json, std::size_t max_waiting = kMaxWaiting);
  /// Writes what waits, for two seconds at most.
  ~LogWriter();

  /// Lets the record wait for its turn. Never blocks for the stream.
  void Take(LogRecord record);
  /// Records that were lost.
  std::int64_t num_dropped() const;

 private:
  void Loop();
  void Write(const LogRecord& record);
  /// Says how many records were lost since it was said last.
  void Tell();

  LogStream& stream_;
  const bool as_json_;
  const std::size_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<LogRecord> waiting_;
  std::int64_t num_dropped_ = 0;
  std::int64_t num_told_ = 0;
  bool is_closed_ = false;
  std::thread thread_;
};

/// Lets every record of this process be a line on stderr for as long as it lives; there is one at a
/// time.
class ProcessLog {
 public:
  explicit ProcessLog(bool as_json);
  ~ProcessLog();
  ProcessLog(const ProcessLog&) = delete;
  ProcessLog& operator=(const ProcessLog&) = delete;

  /// For Metrics::Watch("log", ...), which it must outlive.
  std::map<std::string, std::int64_t> Counts() const;

 private:
  DescriptorStream stream_;
  LogWriter writer_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_OBSERVE_LOG_WRITER_H_
