#include "bench/latencies.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace recsys::bench {
namespace {

constexpr int kSignificantBits = 8;
constexpr std::size_t kHalf = std::size_t{1} << (kSignificantBits - 1);
constexpr std::pair<const char*, double> kQuantiles[] = {
    {"p50", 0.5}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}, {"p99.9", 0.999}};
// Eleven days: longer durations than that come from a broken clock.
constexpr double kMostSeconds = 1e6;

std::int64_t Nanoseconds(double seconds) {
  return static_cast<std::int64_t>(std::clamp(seconds, 0.0, kMostSeconds) * 1e9);
}

Json NullOr(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

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

std::optional<double> Latencies::QuantileMs(double quantile) const {
  if (count_ == 0) return std::nullopt;
  const double wanted = std::ceil(quantile * static_cast<double>(count_));
  const auto rank = std::clamp<std::int64_t>(static_cast<std::int64_t>(wanted), 1, count_);
  std::int64_t seen = 0;
  for (std::size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    seen += counts_[bucket];
    if (seen < rank) continue;
    const auto [least, end] = BucketBounds(bucket);
    const double middle = static_cast<double>(least + end - 1) / 2;
    return std::min(middle, static_cast<double>(max_ns_)) * 1e-6;
  }
  return std::nullopt;
}

double Latencies::ShareAbove(double seconds) const {
  std::int64_t above = 0;
  for (std::size_t i = BucketOf(Nanoseconds(seconds)) + 1; i < counts_.size(); ++i) {
    above += counts_[i];
  }
  return static_cast<double>(above) / static_cast<double>(std::max<std::int64_t>(count_, 1));
}

Json Latencies::FiguresMs() const {
  Json figures = Json::object();
  for (const auto& [name, quantile] : kQuantiles) figures[name] = NullOr(QuantileMs(quantile));
  figures["max"] = count_ == 0 ? Json(nullptr) : Json(static_cast<double>(max_ns_) * 1e-6);
  figures["mean"] = count_ == 0
                        ? Json(nullptr)
                        : Json(static_cast<double>(sum_ns_) / static_cast<double>(count_) * 1e-6);
  return figures;
}

Json Latencies::Histogram() const {
  Json buckets = Json::array();
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] == 0) continue;
    const double bound_ms = static_cast<double>(BucketBounds(i)[1]) * 1e-6;
    buckets.push_back(Json::array({bound_ms, counts_[i]}));
  }
  return buckets;
}

}  // namespace recsys::bench
