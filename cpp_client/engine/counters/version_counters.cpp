#include "engine/counters/version_counters.h"

#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "format/json/json.h"

namespace recsys {
namespace {

Json JsonOf(const Histogram& histogram) {
  Json bounds = Json::array(), counts = Json::array();
  for (std::size_t i = 0; i < histogram.bounds().size; ++i) {
    bounds.push_back(histogram.bounds().values[i]);
  }
  for (std::size_t i = 0; i <= histogram.bounds().size; ++i) {
    counts.push_back(histogram.in_bucket(i));
  }
  return {{"bounds", std::move(bounds)}, {"counts", std::move(counts)}, {"sum", histogram.sum()}};
}

}  // namespace

std::string VersionTotals::Json() const {
  recsys::Json counts = recsys::Json::object();
  for (std::size_t i = 0; i < kNumOutcomes; ++i) {
    counts[OutcomeName(static_cast<Outcome>(i))] = outcomes[i];
  }
  return recsys::Json{
      {"outcomes", std::move(counts)},
      {"accepted", accepted},
      {"stages",
       {{"queue", JsonOf(stage(Stage::kQueue))},
        {"collate", JsonOf(stage(Stage::kCollate))},
        {"execute", JsonOf(stage(Stage::kExecute))},
        {"respond", JsonOf(stage(Stage::kRespond))}}},
      {"request", JsonOf(request)},
      {"batch_requests", JsonOf(batch_requests)},
      {"batch_rows", JsonOf(batch_rows)},
      {"batch_ids", JsonOf(batch_ids)},
      {"last_batch_s", last_batch_s},
      {"pending", {{"rows", pending_rows}, {"ids", pending_ids}, {"bytes", pending_bytes}}},
      {"shadow", {{"failed", shadow_failed}, {"dropped", shadow_dropped}}},
      {"cut_requests", cut_requests},
      {"deltas_applied", deltas_applied},
      {"deltas_failed", deltas_failed},
      {"context_cache",
       {{"hits", context_cache.hits},
        {"misses", context_cache.misses},
        {"evictions", context_cache.evictions},
        {"entries", context_cache.entries},
        {"bytes", context_cache.bytes},
        {"grown", context_cache.grown}}},
      {"outside_rows",
       {{"hits", outside_rows.hits},
        {"misses", outside_rows.misses},
        {"cache_bytes", outside_rows.cache_bytes},
        {"read_bytes", outside_rows.read_bytes},
        {"failures", outside_rows.failures},
        {"hedged", outside_rows.hedged},
        {"zeros", outside_rows.zeros},
        {"seconds",
         {{"bounds", OutsideRowsCounts::kSeconds},
          {"counts", outside_rows.seconds},
          {"sum", outside_rows.seconds_sum}}}}},
  }
      .dump();
}

void VersionTotals::Add(const VersionTotals& other) {
  for (std::size_t i = 0; i < kNumOutcomes; ++i) outcomes[i] += other.outcomes[i];
  accepted += other.accepted;
  for (std::size_t i = 0; i < kNumStages; ++i) stages[i].Add(other.stages[i]);
  request.Add(other.request);
  batch_requests.Add(other.batch_requests);
  batch_rows.Add(other.batch_rows);
  batch_ids.Add(other.batch_ids);
  last_batch_s = std::max(last_batch_s, other.last_batch_s);
  pending_rows += other.pending_rows;
  pending_ids += other.pending_ids;
  pending_bytes += other.pending_bytes;
  shadow_failed += other.shadow_failed;
  shadow_dropped += other.shadow_dropped;
  cut_requests += other.cut_requests;
  deltas_applied += other.deltas_applied;
  deltas_failed += other.deltas_failed;
}

void VersionCounters::Count(Outcome outcome) {
  Change(
      [outcome](VersionTotals& totals) { ++totals.outcomes[static_cast<std::size_t>(outcome)]; });
}

void VersionCounters::Answered(double seconds) {
  Change([seconds](VersionTotals& totals) {
    ++totals.outcomes[static_cast<std::size_t>(Outcome::kOk)];
    totals.request.Add(seconds);
  });
}

void VersionCounters::Accepted(std::int64_t num_requests) {
  accepted_.fetch_add(num_requests, std::memory_order_relaxed);
}

void VersionCounters::Observe(Stage stage, double seconds) {
  Change([stage, seconds](VersionTotals& totals) {
    totals.stages[static_cast<std::size_t>(stage)].Add(seconds);
  });
}

void VersionCounters::ObserveStages(const std::vector<double>& queue, double collate,
                                    double execute, double respond) {
  Change([&](VersionTotals& totals) {
    auto& stages = totals.stages;
    for (const double seconds : queue) stages[0].Add(seconds);
    stages[1].Add(collate);
    stages[2].Add(execute);
    stages[3].Add(respond);
  });
}

void VersionCounters::ObserveBatch(std::int64_t num_requests, std::int64_t num_rows,
                                   std::int64_t num_ids) {
  Change([&, now_s = EpochSeconds()](VersionTotals& totals) {
    totals.batch_requests.Add(static_cast<double>(num_requests));
    totals.batch_rows.Add(static_cast<double>(num_rows));
    totals.batch_ids.Add(static_cast<double>(num_ids));
    totals.last_batch_s = now_s;
  });
}

void VersionCounters::SetPending(std::int64_t rows, std::int64_t ids, std::int64_t num_bytes) {
  pending_rows_.store(rows, std::memory_order_relaxed);
  pending_ids_.store(ids, std::memory_order_relaxed);
  pending_bytes_.store(num_bytes, std::memory_order_relaxed);
}

void VersionCounters::ShadowFailed() {
  Change([](VersionTotals& totals) { ++totals.shadow_failed; });
}

void VersionCounters::ShadowDropped() {
  Change([](VersionTotals& totals) { ++totals.shadow_dropped; });
}

void VersionCounters::RequestCut() {
  Change([](VersionTotals& totals) { ++totals.cut_requests; });
}

void VersionCounters::DeltaApplied() {
  Change([](VersionTotals& totals) { ++totals.deltas_applied; });
}

void VersionCounters::DeltaFailed() {
  Change([](VersionTotals& totals) { ++totals.deltas_failed; });
}

VersionTotals VersionCounters::Totals() const {
  VersionTotals sum;
  for (std::size_t i = 0; i < kNumStripes; ++i) {
    const std::lock_guard<std::mutex> lock(counted_[i].mutex);
    sum.Add(counted_[i].totals);
  }
  // Last: who has ended was accepted before.
  sum.accepted = accepted_.load();
  sum.pending_rows = pending_rows_.load();
  sum.pending_ids = pending_ids_.load();
  sum.pending_bytes = pending_bytes_.load();
  return sum;
}

Outcome OutcomeOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return Outcome::kOk;
    case StatusCode::kInvalidArgument:
      return Outcome::kInvalid;
    case StatusCode::kNotFound:
      return Outcome::kNotFound;
    case StatusCode::kResourceExhausted:
      return Outcome::kRejected;
    case StatusCode::kDeadlineExceeded:
      return Outcome::kExpired;
    case StatusCode::kCancelled:
      return Outcome::kCancelled;
    case StatusCode::kUnavailable:
      return Outcome::kUnavailable;
    default:
      return Outcome::kFailed;
  }
}

const char* OutcomeName(Outcome outcome) {
  static constexpr const char* kNames[kNumOutcomes] = {
      "ok", "invalid", "not_found", "rejected", "expired", "cancelled", "unavailable", "failed"};
  return kNames[static_cast<std::size_t>(outcome)];
}

namespace {

HistogramBounds Powers(double first, double factor, std::size_t size) {
  HistogramBounds bounds;
  bounds.size = size;
  for (std::size_t i = 0; i < size; ++i, first *= factor) bounds.values[i] = first;
  return bounds;
}

}  // namespace

const HistogramBounds kSecondsBounds = {17,
                                        {5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2,
                                         0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0}};
const HistogramBounds kRowsBounds = Powers(1.0, 2.0, 14);
const HistogramBounds kIdsBounds = Powers(16.0, 4.0, 10);

void Histogram::Add(double value) {
  const double* const begin = bounds_->values.data();
  const double* const end = begin + bounds_->size;
  ++counts_[static_cast<std::size_t>(std::lower_bound(begin, end, value) - begin)];
  sum_ += value;
}

void Histogram::Add(const Histogram& other) {
  for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  sum_ += other.sum_;
}

std::int64_t Histogram::count() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

}  // namespace recsys
