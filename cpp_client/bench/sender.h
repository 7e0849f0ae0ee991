#ifndef RECSYS_BENCH_SENDER_H_
#define RECSYS_BENCH_SENDER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "bench/lane.h"

namespace recsys::bench {

/// The native sender of recsys-bench: connects once and runs any number of measurements, each
/// shared by its lanes. Not thread-safe, except for num_answered and num_failed.
class Sender {
 public:
  /// Throws Error (kConfig) if the TLS files cannot be used, and std::invalid_argument if there are
  /// more lanes than connections.
  Sender(const Target& target, Requests requests, int num_lanes, std::uint64_t seed);
  /// Cancels active calls.
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// Returns false if no connection was made in that time.
  bool Connect(double within_s);
  /// Starts one measurement on all lanes, at `step.start_s`, and returns at once. Throws
  /// std::invalid_argument if an open loop has no rate.
  void Start(const Step& step);
  /// Returns whether the measurement has ended; waits at most that long for it.
  bool Wait(double at_most_s);
  /// Returns the counts of the measurement that has ended.
  Measured Take();

  /// Requests that ended since Start, including those of the warm-up.
  std::int64_t num_answered() const { return tally_.num_answered.load(); }
  std::int64_t num_failed() const { return tally_.num_failed.load(); }

 private:
  void Join();

  const Requests requests_;
  Tally tally_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t num_running_ = 0;
  Measured measured_;
};

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_SENDER_H_
