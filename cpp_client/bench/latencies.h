#ifndef RECSYS_BENCH_LATENCIES_H_
#define RECSYS_BENCH_LATENCIES_H_

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace recsys::bench {

using Json = nlohmann::ordered_json;

/// A histogram of durations whose buckets are at most 1/128 of their value wide: percentiles are at
/// most 0.4 % off, however many are counted. The buckets are those of recsys-bench. Not
/// thread-safe: one for each thread, merged.
class Latencies {
 public:
  /// A negative duration counts as 0.
  void Add(double seconds);
  void Merge(const Latencies& other);

  std::int64_t count() const { return count_; }
  /// The smallest duration that at least this share does not exceed; 0 < quantile <= 1. None where
  /// there is nothing.
  std::optional<double> QuantileMs(double quantile) const;
  /// The share of durations above a bound, as far as buckets can tell.
  double ShareAbove(double seconds) const;
  /// p50 p90 p95 p99 p99.9 max mean in milliseconds; null each where there is nothing.
  Json FiguresMs() const;
  /// [upper bound in ms, count] of each bucket that was hit, ascending.
  Json Histogram() const;

 private:
  std::vector<std::int64_t> counts_;
  std::int64_t count_ = 0;
  std::int64_t sum_ns_ = 0;
  std::int64_t max_ns_ = 0;
};

/// The number of a value's bucket: ascending with the value, without gaps.
std::size_t BucketOf(std::int64_t value_ns);

/// The least value of a bucket, and the least above it, in nanoseconds.
std::array<std::int64_t, 2> BucketBounds(std::size_t bucket);

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_LATENCIES_H_
