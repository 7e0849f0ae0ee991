#ifndef RECSYS_ENGINE_COUNTERS_HISTOGRAM_H_
#define RECSYS_ENGINE_COUNTERS_HISTOGRAM_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace recsys {

/// Upper bounds of a histogram's buckets, ascending; values above the last have an additional
/// bucket. Must have static lifetime.
struct HistogramBounds {
  static constexpr std::size_t kMax = 17;
  std::size_t size = 0;
  std::array<double, kMax> values{};
};

/// 50 us to 10 s, in steps of about two: from a lookup on one row to a queue under overload.
extern const HistogramBounds kSecondsBounds;
/// Powers of two up to 8192.
extern const HistogramBounds kRowsBounds;
/// Powers of four from 16 to 4194304.
extern const HistogramBounds kIdsBounds;

/// Counts values by bucket, in a few nanoseconds. Not thread-safe: the caller holds a lock around
/// every call. A copy is a snapshot.
class Histogram {
 public:
  explicit Histogram(const HistogramBounds& bounds) : bounds_(&bounds) {}

  /// Adds one value; a value equal to a bound belongs to that bound's bucket.
  void Add(double value);
  /// Adds all values of another one with the same bounds.
  void Add(const Histogram& other);

  const HistogramBounds& bounds() const { return *bounds_; }
  /// Number of values in one bucket; not cumulative. `bucket` is at most bounds().size, which is
  /// the bucket above all bounds.
  std::int64_t in_bucket(std::size_t bucket) const { return counts_[bucket]; }
  double sum() const { return sum_; }
  /// Number of values added.
  std::int64_t count() const;

 private:
  const HistogramBounds* bounds_;
  std::array<std::int64_t, HistogramBounds::kMax + 1> counts_{};
  double sum_ = 0.0;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_COUNTERS_HISTOGRAM_H_
