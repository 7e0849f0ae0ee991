#include "bench/latencies.h"

#include <algorithm>
#include <utility>

namespace recsys::bench {
namespace {

constexpr int kSignificantBits = 8;
constexpr std::size_t kHalf = std::size_t{1} << (kSignificantBits - 1);
// Eleven days: longer durations indicate a broken clock.
constexpr double kMostSeconds = 1e6;
constexpr std::size_t kMostIntervals = 240;

std::int64_t Nanoseconds(double seconds) {
  return static_cast<std::int64_t>(std::clamp(seconds, 0.0, kMostSeconds) * 1e9);
}

}  // namespace

std::size_t BucketOf(std::int64_t value_ns) {
  const auto value = static_cast<std::uint64_t>(value_ns);
  const int num_bits = value == 0 ? 0 : 64 - __builtin_clzll(value);
  const int shift = std::max(num_bits - kSignificantBits, 0);
  return static_cast<std::size_t>(shift) * kHalf + static_cast<std::size_t>(value >> shift);
}

std::array<std::int64_t, 2> BucketBounds(std::size_t bucket) {
  const std::size_t shift = bucket / kHalf < 2 ? 0 : bucket / kHalf - 1;
  const auto least = static_cast<std::int64_t>((bucket - shift * kHalf) << shift);
  return {least, least + (std::int64_t{1} << shift)};
}

void Latencies::Add(double seconds) {
  const std::int64_t value_ns = Nanoseconds(seconds);
  const std::size_t bucket = BucketOf(value_ns);
  if (bucket >= counts_.size()) counts_.resize(bucket + 1);
  ++counts_[bucket];
  ++count_;
  sum_ns_ += value_ns;
  max_ns_ = std::max(max_ns_, value_ns);
}

void Latencies::Merge(const Latencies& other) {
  if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
  for (std::size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
  max_ns_ = std::max(max_ns_, other.max_ns_);
}

void Series::Add(double at_s, double latency_s) {
  // A time far beyond any run indicates a broken clock.
  at_s = std::clamp(at_s, 0.0, 1e9);
  while (at_s >= static_cast<double>(width_s_) * kMostIntervals) Widen();
  const auto number = static_cast<std::size_t>(at_s / static_cast<double>(width_s_));
  if (number >= intervals_.size()) intervals_.resize(number + 1);
  if (latency_s < 0) {
    ++intervals_[number].num_failed;
  } else {
    intervals_[number].latencies.Add(latency_s);
  }
}

void Series::Merge(const Series& other) {
  while (width_s_ < other.width_s_) Widen();
  for (std::size_t number = 0; number < other.intervals_.size(); ++number) {
    const auto here =
        number * static_cast<std::size_t>(other.width_s_) / static_cast<std::size_t>(width_s_);
    if (here >= intervals_.size()) intervals_.resize(here + 1);
    intervals_[here].latencies.Merge(other.intervals_[number].latencies);
    intervals_[here].num_failed += other.intervals_[number].num_failed;
  }
}

void Series::Widen() {
  Series wider;
  wider.width_s_ = width_s_ * 2;
  wider.Merge(*this);
  *this = std::move(wider);
}

}  // namespace recsys::bench
