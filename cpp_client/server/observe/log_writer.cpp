#include "server/observe/log_writer.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <limits>
#include <system_error>
#include <utility>

#include "server/observe/log_format.h"

namespace recsys {
namespace {

using Lock = std::unique_lock<std::mutex>;

constexpr int kStderr = 2;
/// How long the last records may take when the log ends.
constexpr double kLastWordsSeconds = 2.0;

}  // namespace

DescriptorStream::DescriptorStream(int descriptor)
    : descriptor_(descriptor),
      hurry_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      until_s_(std::numeric_limits<double>::infinity()) {
  if (hurry_event_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

DescriptorStream::~DescriptorStream() { close(hurry_event_); }

bool DescriptorStream::Write(const std::string& text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (!WaitForRoom()) return false;
    // A pipe that has room has as much as this: the write does not block.
    const std::size_t num_bytes = std::min<std::size_t>(text.size() - at, PIPE_BUF);
    const ssize_t written = write(descriptor_, text.data() + at, num_bytes);
    if (written > 0) {
      at += static_cast<std::size_t>(written);
    } else if (written < 0 && errno != EINTR && errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

bool DescriptorStream::WaitForRoom() {
  for (;;) {
    double until_s;
    {
      const Lock lock(mutex_);
      until_s = until_s_;
    }
    int timeout_ms = -1;
    if (std::isfinite(until_s)) {
      const double left_s = std::clamp(until_s - MonotonicSeconds(), 0.0, 60.0);
      timeout_ms = static_cast<int>(std::ceil(left_s * 1e3));
    }
    pollfd polled[] = {{descriptor_, POLLOUT, 0}, {hurry_event_, POLLIN, 0}};
    // Once there is a time, who is waited for by is known.
    const int found = poll(polled, std::isfinite(until_s) ? 1 : 2, timeout_ms);
    if (found < 0 && errno == EINTR) continue;
    if (found < 0) return false;
    if (polled[0].revents != 0) return true;
    if (found == 0 && timeout_ms == 0) return false;
  }
}

void DescriptorStream::Hurry(double until_s) {
  {
    const Lock lock(mutex_);
    until_s_ = until_s;
  }
  const std::uint64_t one = 1;
  // It can only fail where it has been done before.
  [[maybe_unused]] const ssize_t written = write(hurry_event_, &one, sizeof(one));
}

LogWriter::LogWriter(LogStream& stream, bool as_json, std::size_t max_waiting)
    : stream_(stream), as_json_(as_json), max_waiting_(max_waiting), thread_([this] { Loop(); }) {}

LogWriter::~LogWriter() {
  stream_.Hurry(MonotonicSeconds() + kLastWordsSeconds);
  {
    const Lock lock(mutex_);
    is_closed_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void LogWriter::Take(LogRecord record) {
  bool was_empty = false;
  {
    const Lock lock(mutex_);
    if (waiting_.size() >= max_waiting_) {
      ++num_dropped_;
      return;
    }
    was_empty = waiting_.empty();
    waiting_.push_back(std::move(record));
  }
  // The thread looks at all that waits before it sleeps.
  if (was_empty) wake_.notify_one();
}

std::int64_t LogWriter::num_dropped() const {
  const Lock lock(mutex_);
  return num_dropped_;
}

void LogWriter::Loop() {
  // A reader that has gone shows as an error of the write.
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  for (;;) {
    LogRecord record;
    {
      Lock lock(mutex_);
      wake_.wait(lock, [this] { return is_closed_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      record = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Write(record);
    Tell();
  }
}

void LogWriter::Tell() {
  std::int64_t lost = 0;
  {
    const Lock lock(mutex_);
    lost = num_dropped_ - num_told_;
    num_told_ = num_dropped_;
  }
  if (lost == 0) return;
  LogRecord record;
  record.level = LogLevel::kWarning;
  record.logger = "serve.logs";
  record.message =
      std::to_string(lost) + " log records were lost: they came faster than they could be written";
  record.time_s =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  Write(record);
}

void LogWriter::Write(const LogRecord& record) {
  if (stream_.Write((as_json_ ? JsonLine(record) : TextLine(record)) + "\n")) return;
  // The stream is gone: there is nobody to tell.
  const Lock lock(mutex_);
  ++num_dropped_;
}

ProcessLog::ProcessLog(bool as_json) : stream_(kStderr), writer_(stream_, as_json) {
  SetLogSink([this](LogRecord record) { writer_.Take(std::move(record)); });
}

ProcessLog::~ProcessLog() { SetLogSink(nullptr); }

std::map<std::string, std::int64_t> ProcessLog::Counts() const {
  return {{"dropped", writer_.num_dropped()}};
}

}  // namespace recsys
