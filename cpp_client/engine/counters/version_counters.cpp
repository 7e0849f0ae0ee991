#include "engine/counters/version_counters.h"

#include <chrono>

#include "format/json/json.h"

namespace recsys {
namespace {

using Lock = std::lock_guard<std::mutex>;

double EpochSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

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
      {"deltas_applied", deltas_applied},
      {"deltas_failed", deltas_failed},
      {"context_cache",
       {{"hits", context_cache.hits},
        {"misses", context_cache.misses},
        {"evictions", context_cache.evictions},
        {"entries", context_cache.entries},
        {"bytes", context_cache.bytes},
        {"grown", context_cache.grown}}},
  }
      .dump();
}

void VersionCounters::Count(Outcome outcome) {
  const Lock lock(mutex_);
  ++totals_.outcomes[static_cast<std::size_t>(outcome)];
}

void VersionCounters::Answered(double seconds) {
  const Lock lock(mutex_);
  ++totals_.outcomes[static_cast<std::size_t>(Outcome::kOk)];
  totals_.request.Add(seconds);
}

void VersionCounters::Accepted() {
  const Lock lock(mutex_);
  ++totals_.accepted;
}

void VersionCounters::Observe(Stage stage, double seconds) {
  const Lock lock(mutex_);
  totals_.stages[static_cast<std::size_t>(stage)].Add(seconds);
}

void VersionCounters::ObserveStages(const std::vector<double>& queue, double collate,
                                    double execute, double respond) {
  const Lock lock(mutex_);
  auto& stages = totals_.stages;
  for (const double seconds : queue) stages[0].Add(seconds);
  stages[1].Add(collate);
  stages[2].Add(execute);
  stages[3].Add(respond);
}

void VersionCounters::ObserveBatch(std::int64_t num_requests, std::int64_t num_rows,
                                   std::int64_t num_ids) {
  const double now_s = EpochSeconds();
  const Lock lock(mutex_);
  totals_.batch_requests.Add(static_cast<double>(num_requests));
  totals_.batch_rows.Add(static_cast<double>(num_rows));
  totals_.batch_ids.Add(static_cast<double>(num_ids));
  totals_.last_batch_s = now_s;
}

void VersionCounters::SetPending(std::int64_t rows, std::int64_t ids, std::int64_t num_bytes) {
  const Lock lock(mutex_);
  totals_.pending_rows = rows;
  totals_.pending_ids = ids;
  totals_.pending_bytes = num_bytes;
}

void VersionCounters::ShadowFailed() {
  const Lock lock(mutex_);
  ++totals_.shadow_failed;
}

void VersionCounters::ShadowDropped() {
  const Lock lock(mutex_);
  ++totals_.shadow_dropped;
}

void VersionCounters::DeltaApplied() {
  const Lock lock(mutex_);
  ++totals_.deltas_applied;
}

void VersionCounters::DeltaFailed() {
  const Lock lock(mutex_);
  ++totals_.deltas_failed;
}

VersionTotals VersionCounters::Totals() const {
  const Lock lock(mutex_);
  return totals_;
}

}  // namespace recsys
