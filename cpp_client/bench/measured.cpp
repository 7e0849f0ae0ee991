#include "bench/measured.h"

#include <algorithm>

namespace recsys::bench {
namespace {

constexpr std::size_t kMostIntervals = 240;
constexpr std::size_t kMostText = 300;

}  // namespace

void Series::Add(double at_s, double latency_s) {
  // What is far beyond any run comes from a broken clock.
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

Json Series::Points(double duration_s) const {
  Json points = Json::array();
  for (std::size_t number = 0; number < kMostIntervals; ++number) {
    const double start_s = static_cast<double>(number) * static_cast<double>(width_s_);
    const double width_s = std::min(static_cast<double>(width_s_), duration_s - start_s);
    // A rest too short to say anything.
    const bool is_rest = number > 0 && width_s < static_cast<double>(width_s_) / 2;
    if (width_s <= 0 || is_rest) break;
    const Interval interval = number < intervals_.size() ? intervals_[number] : Interval();
    const Json figures = interval.latencies.FiguresMs();
    points.push_back({{"at_s", start_s},
                      {"width_s", width_s},
                      {"requests_per_s", static_cast<double>(interval.latencies.count()) / width_s},
                      {"failed_per_s", static_cast<double>(interval.num_failed) / width_s},
                      {"p50_ms", figures["p50"]},
                      {"p99_ms", figures["p99"]}});
  }
  return points;
}

std::int64_t Measured::num_failed() const {
  std::int64_t sum = 0;
  for (const auto& [code, count] : errors) sum += count;
  return sum;
}

void Measured::Merge(const Measured& other) {
  latencies.Merge(other.latencies);
  services.Merge(other.services);
  lags.Merge(other.lags);
  for (const auto& [code, count] : other.errors) errors[code] += count;
  texts.insert(other.texts.begin(), other.texts.end());
  if (kinds.size() < other.kinds.size()) kinds.resize(other.kinds.size());
  for (std::size_t i = 0; i < other.kinds.size(); ++i) {
    kinds[i].latencies.Merge(other.kinds[i].latencies);
    kinds[i].num_failed += other.kinds[i].num_failed;
  }
  series.Merge(other.series);
  num_in_time += other.num_in_time;
  num_rows += other.num_rows;
}

Recorder::Recorder(const Window& window) : window_(window) {
  measured_.kinds.resize(window.num_kinds);
}

bool Recorder::Counts(const Times& times) const {
  const double at_s = window_.by_due ? times.due_s : times.done_s;
  return window_.start_s <= at_s && at_s < window_.end_s;
}

void Recorder::Answered(const Times& times, std::int32_t kind, std::int32_t num_rows) {
  if (!Counts(times)) return;
  const double latency_s = times.done_s - times.due_s;
  measured_.latencies.Add(latency_s);
  if (window_.by_due) {
    measured_.services.Add(times.done_s - times.sent_s);
    measured_.lags.Add(times.sent_s - times.due_s);
  }
  if (!measured_.kinds.empty()) {
    measured_.kinds[static_cast<std::size_t>(kind)].latencies.Add(latency_s);
  }
  measured_.series.Add(times.done_s - window_.start_s, std::max(latency_s, 0.0));
  if (times.done_s < window_.end_s) {
    ++measured_.num_in_time;
    measured_.num_rows += num_rows;
  }
}

void Recorder::Failed(const Times& times, std::int32_t kind, const char* code,
                      const std::string& text) {
  if (!Counts(times)) return;
  if (window_.by_due && code != std::string(kNotSent)) {
    measured_.lags.Add(times.sent_s - times.due_s);
  }
  ++measured_.errors[code];
  measured_.texts.emplace(code, text.substr(0, kMostText));
  measured_.series.Add(times.done_s - window_.start_s, -1);
  if (!measured_.kinds.empty()) ++measured_.kinds[static_cast<std::size_t>(kind)].num_failed;
}

}  // namespace recsys::bench
