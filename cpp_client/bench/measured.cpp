#include "bench/measured.h"

#include <algorithm>

namespace recsys::bench {
namespace {

constexpr std::size_t kMostText = 300;

}  // namespace

void Measured::Merge(const Measured& other) {
  latencies.Merge(other.latencies);
  services.Merge(other.services);
  lags.Merge(other.lags);
  for (const auto& [code, failures] : other.errors) {
    Failures& own = errors[code];
    if (own.count == 0) own.text = failures.text;
    own.count += failures.count;
  }
  if (kinds.size() < other.kinds.size()) kinds.resize(other.kinds.size());
  for (std::size_t i = 0; i < other.kinds.size(); ++i) {
    kinds[i].latencies.Merge(other.kinds[i].latencies);
    kinds[i].num_failed += other.kinds[i].num_failed;
  }
  series.Merge(other.series);
  num_in_time += other.num_in_time;
  num_rows += other.num_rows;
  ended_s = std::max(ended_s, other.ended_s);
  cpu_shares.insert(cpu_shares.end(), other.cpu_shares.begin(), other.cpu_shares.end());
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

void Recorder::Failed(const Times& times, std::int32_t kind, int code, const std::string& text) {
  if (!Counts(times)) return;
  if (window_.by_due && code != kNotSent) measured_.lags.Add(times.sent_s - times.due_s);
  Measured::Failures& failures = measured_.errors[code];
  if (failures.count++ == 0) failures.text = text.substr(0, kMostText);
  measured_.series.Add(times.done_s - window_.start_s, -1);
  if (!measured_.kinds.empty()) ++measured_.kinds[static_cast<std::size_t>(kind)].num_failed;
}

}  // namespace recsys::bench
