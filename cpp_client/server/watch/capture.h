#ifndef RECSYS_SERVER_WATCH_CAPTURE_H_
#define RECSYS_SERVER_WATCH_CAPTURE_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "config/settings.h"
#include "recsys/request.h"
#include "server/observe/capture_file.h"
#include "server/watch/capture_output.h"

namespace recsys {

/// Writes a sample of the requests to a file, to be played back or to warm a model up with
/// (serve/capture.py).
///
/// No request waits for the file: those that are sampled go into a bounded queue, and a thread
/// writes them. Where it cannot (the disk is full, say), requests are served all the same, and
/// counted as not captured. Thread-safe.
class Capture {
 public:
  struct Options {
    /// Returns numbers from 0 to below 1, evenly; called from any thread.
    std::function<double()> draw;
    Clock clock = MonotonicSeconds;
  };

  /// Throws std::system_error: the file cannot be made, or something that is no file has its name.
  explicit Capture(const CaptureSettings& settings);
  Capture(const CaptureSettings& settings, Options options);
  ~Capture();

  /// Writes what waits; what is offered from now on is dropped. Idempotent; blocks for as long as
  /// the disk does.
  void Close();

  /// Captures the request, if it is among the sampled ones; copies its inputs. Never blocks for the
  /// disk, never throws.
  void Offer(const RawRequest& raw, const std::string& model, const std::string& version);
  /// Sampled requests so far: "written", "dropped" for want of room, "failed" because of the disk.
  std::map<std::string, std::int64_t> Counts() const;

 private:
  enum Result { kWritten, kDropped, kFailed };
  static constexpr std::size_t kNumResults = 3;

  bool Reserve(std::size_t num_bytes);
  void Add(CapturedRequest request, std::size_t num_bytes);
  void Loop();
  Result Write(const CapturedRequest& request);

  const double share_;
  const std::uint64_t max_bytes_;
  const Options options_;
  const double began_s_;
  CaptureOutput output_;
  /// Of the thread alone.
  bool has_told_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<CapturedRequest, std::size_t>> waiting_;
  /// Of those that wait, and of those that are on their way to it.
  std::size_t num_reserved_ = 0;
  std::size_t reserved_bytes_ = 0;
  std::int64_t counts_[kNumResults] = {};
  bool is_full_ = false;
  bool is_closed_ = false;
  std::thread thread_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_WATCH_CAPTURE_H_
