#ifndef RECSYS_BENCH_LATENCIES_H_
#define RECSYS_BENCH_LATENCIES_H_

#include <array>
#include <cstdint>
#include <vector>

namespace recsys::bench {

/// A histogram of durations with the buckets of serve/bench/load/latencies.py, which computes the
/// percentiles. Not thread-safe: use one per thread and merge them.
class Latencies {
 public:
  /// A negative duration counts as 0.
  void Add(double seconds);
  void Merge(const Latencies& other);

  /// Durations by bucket.
  const std::vector<std::int64_t>& counts() const { return counts_; }
  std::int64_t count() const { return count_; }
  std::int64_t sum_ns() const { return sum_ns_; }
  std::int64_t max_ns() const { return max_ns_; }

 private:
  std::vector<std::int64_t> counts_;
  std::int64_t count_ = 0;
  std::int64_t sum_ns_ = 0;
  std::int64_t max_ns_ = 0;
};

/// Returns the number of a value's bucket: ascending with the value, without gaps.
std::size_t BucketOf(std::int64_t value_ns);

/// Returns the least value of a bucket and of the next one, in nanoseconds.
std::array<std::int64_t, 2> BucketBounds(std::size_t bucket);

/// Latencies over time in bounded memory: if there are too many intervals, their width doubles.
class Series {
 public:
  struct Interval {
    Latencies latencies;
    std::int64_t num_failed = 0;
  };

  /// `at_s` is relative to the start of the measured time; `latency_s` is negative for a failed
  /// request.
  void Add(double at_s, double latency_s);
  void Merge(const Series& other);

  std::int64_t width_s() const { return width_s_; }
  const std::vector<Interval>& intervals() const { return intervals_; }

 private:
  void Widen();

  std::int64_t width_s_ = 1;
  std::vector<Interval> intervals_;
};

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_LATENCIES_H_
