#include "server/watch/capture.h"

#include <chrono>
#include <cstring>
#include <random>
#include <utility>

#include "base/log.h"

namespace recsys {
namespace {

// What may wait for the file: a second of a busy server, and no more memory than a few large
// requests.
constexpr std::size_t kMaxWaiting = 1024;
constexpr std::size_t kMaxWaitingBytes = 64 << 20;

double Draw() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return std::uniform_real_distribution<double>()(generator);
}

void Say(LogLevel level, std::string text) {
  LogRecord record;
  record.level = level;
  record.logger = "serve.capture";
  record.message = std::move(text);
  Log(std::move(record));
}

}  // namespace

Capture::Capture(const CaptureSettings& settings) : Capture(settings, Options{Draw}) {}

Capture::Capture(const CaptureSettings& settings, Options options)
    : share_(settings.share),
      max_bytes_(static_cast<std::uint64_t>(settings.max_bytes)),
      options_(std::move(options)),
      began_s_(options_.clock()),
      output_(settings.path) {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  const auto began_us = std::chrono::duration_cast<std::chrono::microseconds>(since_epoch).count();
  int error = 0;
  if (!output_.Append(CaptureHeader(static_cast<std::uint64_t>(began_us)), &error)) {
    throw std::system_error(error, std::generic_category(), "capture");
  }
  thread_ = std::thread([this] { Loop(); });
}

Capture::~Capture() { Close(); }

void Capture::Close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Capture::Offer(const RawRequest& raw, const std::string& model, const std::string& version) {
  if (options_.draw() >= share_) return;
  const std::size_t num_bytes = NumBytesOf(raw);
  if (!Reserve(num_bytes)) return;
  CapturedRequest request;
  request.model = model;
  request.version = version;
  request.data = SerializedForCapture(raw);
  Add(std::move(request), num_bytes);
}

bool Capture::Reserve(std::size_t num_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool has_room =
      num_reserved_ < kMaxWaiting && reserved_bytes_ + num_bytes <= kMaxWaitingBytes;
  if (is_closed_ || is_full_ || !has_room) {
    ++counts_[kDropped];
    return false;
  }
  ++num_reserved_;
  reserved_bytes_ += num_bytes;
  return true;
}

void Capture::Add(CapturedRequest request, std::size_t num_bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Read here, so that records are in the order of their times.
    request.time_us = static_cast<std::uint64_t>((options_.clock() - began_s_) * 1e6);
    waiting_.emplace_back(std::move(request), num_bytes);
  }
  changed_.notify_one();
}

std::map<std::string, std::int64_t> Capture::Counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {
      {"written", counts_[kWritten]}, {"dropped", counts_[kDropped]}, {"failed", counts_[kFailed]}};
}

void Capture::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_closed_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const auto [request, num_bytes] = std::move(waiting_.front());
    waiting_.pop_front();
    const bool was_full = is_full_;
    lock.unlock();
    const Result result = was_full ? kDropped : Write(request);
    lock.lock();
    --num_reserved_;
    reserved_bytes_ -= num_bytes;
    ++counts_[result];
    is_full_ = is_full_ || result == kDropped;
  }
}

Capture::Result Capture::Write(const CapturedRequest& request) {
  const std::string data = CaptureRecord(request);
  if (output_.size() + data.size() > max_bytes_) {
    Say(LogLevel::kInfo, "the capture is complete: it has " + std::to_string(output_.size()) +
                             " of " + std::to_string(max_bytes_) + " bytes");
    return kDropped;
  }
  int error = 0;
  if (output_.Append(data, &error)) return kWritten;
  if (!has_told_) {
    has_told_ = true;
    Say(LogLevel::kError, std::string("a request could not be captured: ") + std::strerror(error) +
                              "; serving goes on, further failures are only counted");
  }
  return kFailed;
}

}  // namespace recsys
