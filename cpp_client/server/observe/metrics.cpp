#include "server/observe/metrics.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <utility>

#include "server/observe/metrics_page.h"
#include "server/observe/snapshot.h"

namespace recsys {
namespace {

using Lock = std::lock_guard<std::mutex>;
using OutcomeCounts = std::array<std::int64_t, kNumOutcomes>;

/// Of one of kOutcomes; most are given by the very pointers, so that nothing is compared.
std::size_t IndexOf(const char* outcome) {
  for (std::size_t i = 0; i < kNumOutcomes; ++i) {
    if (outcome == kOutcomes[i]) return i;
  }
  for (std::size_t i = 0; i < kNumOutcomes; ++i) {
    if (std::strcmp(outcome, kOutcomes[i]) == 0) return i;
  }
  assert(false && "no outcome of kOutcomes");
  return kNumOutcomes - 1;
}

double EpochSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void AddTo(OutcomeCounts& sums, const OutcomeCounts& counts) {
  for (std::size_t i = 0; i < counts.size(); ++i) sums[i] += counts[i];
}

}  // namespace

struct ModelMetrics::Totals {
  Metrics::Snapshot numbers;
  /// Once the version's series have gone: what its requests are counted in from then on.
  std::shared_ptr<ModelMetrics> gone;
};

ModelMetrics::ModelMetrics(std::string model, std::string version)
    : model_(std::move(model)), version_(std::move(version)), totals_(std::make_shared<Totals>()) {
  totals_->numbers.model = model_;
  totals_->numbers.version = version_;
}

void ModelMetrics::Count(const char* outcome) {
  const std::size_t i = IndexOf(outcome);
  const Lock lock(mutex_);
  if (totals_->gone != nullptr) return totals_->gone->Count(outcome);
  ++totals_->numbers.outcomes[i];
}

void ModelMetrics::Answered(double seconds) {
  const Lock lock(mutex_);
  if (totals_->gone != nullptr) return totals_->gone->Count(kOutcomes[0]);
  ++totals_->numbers.outcomes[0];
  totals_->numbers.request.Add(seconds);
}

void ModelMetrics::Accepted() {
  const Lock lock(mutex_);
  if (totals_->gone != nullptr) return totals_->gone->Accepted();
  ++totals_->numbers.accepted;
}

void ModelMetrics::Observe(Stage stage, double seconds) {
  const Lock lock(mutex_);
  totals_->numbers.stages[static_cast<std::size_t>(stage)].Add(seconds);
}

void ModelMetrics::ObserveStages(const std::vector<double>& queue, double collate, double execute,
                                 double respond) {
  const Lock lock(mutex_);
  auto& stages = totals_->numbers.stages;
  for (const double seconds : queue) stages[0].Add(seconds);
  stages[1].Add(collate);
  stages[2].Add(execute);
  stages[3].Add(respond);
}

void ModelMetrics::ObserveBatch(std::int64_t num_requests, std::int64_t num_rows,
                                std::int64_t num_ids) {
  const double now_s = EpochSeconds();
  const Lock lock(mutex_);
  Metrics::Snapshot& numbers = totals_->numbers;
  numbers.batch_requests.Add(static_cast<double>(num_requests));
  numbers.batch_rows.Add(static_cast<double>(num_rows));
  numbers.batch_ids.Add(static_cast<double>(num_ids));
  numbers.last_batch_s = now_s;
}

void ModelMetrics::SetPending(std::int64_t rows, std::int64_t ids, std::int64_t num_bytes) {
  const Lock lock(mutex_);
  totals_->numbers.pending_rows = rows;
  totals_->numbers.pending_ids = ids;
  totals_->numbers.pending_bytes = num_bytes;
}

void ModelMetrics::SetTableBytes(std::map<std::string, std::int64_t> table_bytes) {
  const Lock lock(mutex_);
  totals_->numbers.table_bytes = std::move(table_bytes);
}

void ModelMetrics::Describe(HostedDescription description) {
  const Lock lock(mutex_);
  totals_->numbers.description = std::move(description);
}

void ModelMetrics::CountShadow(ShadowResult result) {
  const Lock lock(mutex_);
  ++totals_->numbers.shadow[static_cast<std::size_t>(result)];
}

void ModelMetrics::DeltaApplied() {
  const Lock lock(mutex_);
  ++totals_->numbers.deltas_applied;
}

void ModelMetrics::DeltaFailed() {
  const Lock lock(mutex_);
  ++totals_->numbers.deltas_failed;
}

struct Metrics::Parts {
  using Models = std::vector<std::shared_ptr<ModelMetrics>>;

  mutable std::mutex mutex;
  /// In the order in which versions were first loaded.
  Models models;
  std::vector<PageNumbers::State> states;
  std::map<std::string, std::function<std::map<std::string, std::int64_t>()>> watched;
  OutcomeCounts unrouted{};
  /// What versions that are gone have counted, and still count where somebody holds them.
  std::shared_ptr<ModelMetrics> gone = std::make_shared<ModelMetrics>("", "");

  Models::iterator Find(const std::string& model, const std::string& version) {
    return std::find_if(models.begin(), models.end(), [&](const auto& each) {
      return each->model() == model && each->version() == version;
    });
  }

  /// Lets what a version has counted, and will count, be among what is gone.
  void KeepCounts(ModelMetrics& model) const {
    const Lock model_lock(model.mutex_);
    const Lock gone_lock(gone->mutex_);
    AddTo(gone->totals_->numbers.outcomes, model.totals_->numbers.outcomes);
    gone->totals_->numbers.accepted += model.totals_->numbers.accepted;
    model.totals_->gone = gone;
  }

  static Snapshot Read(const ModelMetrics& model) {
    const Lock lock(model.mutex_);
    return model.totals_->numbers;
  }
};

Metrics::Metrics() : parts_(std::make_unique<Parts>()) {}
Metrics::~Metrics() = default;

std::shared_ptr<ModelMetrics> Metrics::Begin(const std::string& model, const std::string& version) {
  auto made = std::make_shared<ModelMetrics>(model, version);
  const Lock lock(parts_->mutex);
  const auto found = parts_->Find(model, version);
  if (found == parts_->models.end()) {
    parts_->models.push_back(made);
  } else {
    parts_->KeepCounts(**found);
    *found = made;
  }
  return made;
}

void Metrics::Drop(const std::shared_ptr<ModelMetrics>& model) {
  const Lock lock(parts_->mutex);
  const auto found = std::find(parts_->models.begin(), parts_->models.end(), model);
  // Where the version has begun anew meanwhile, its series are the new one's, and stay.
  if (found == parts_->models.end()) return;
  parts_->KeepCounts(*model);
  parts_->models.erase(found);
}

void Metrics::SetState(const std::string& model, const std::string& version,
                       const std::string& state) {
  const auto which = std::find(std::begin(kModelStates), std::end(kModelStates), state);
  const Lock lock(parts_->mutex);
  auto& states = parts_->states;
  const auto found = std::find_if(states.begin(), states.end(), [&](const auto& of) {
    return of.model == model && of.version == version;
  });
  if (which == std::end(kModelStates)) {
    if (found != states.end()) states.erase(found);
    return;
  }
  const auto index = static_cast<std::size_t>(which - std::begin(kModelStates));
  if (found == states.end()) {
    states.push_back({model, version, index});
  } else {
    found->state = index;
  }
}

void Metrics::Unrouted(const char* outcome) {
  const std::size_t i = IndexOf(outcome);
  const Lock lock(parts_->mutex);
  ++parts_->unrouted[i];
}

void Metrics::Watch(const std::string& what,
                    std::function<std::map<std::string, std::int64_t>()> read) {
  const Lock lock(parts_->mutex);
  parts_->watched[what] = std::move(read);
}

std::map<std::string, std::int64_t> Metrics::Outcomes() const {
  const Lock lock(parts_->mutex);
  OutcomeCounts sums = parts_->unrouted;
  std::int64_t accepted = 0;
  const auto add = [&](const ModelMetrics& model) {
    const Lock model_lock(model.mutex_);
    AddTo(sums, model.totals_->numbers.outcomes);
    accepted += model.totals_->numbers.accepted;
  };
  for (const auto& model : parts_->models) add(*model);
  add(*parts_->gone);
  std::map<std::string, std::int64_t> outcomes{{"accepted", accepted}};
  for (std::size_t i = 0; i < sums.size(); ++i) outcomes[kOutcomes[i]] = sums[i];
  return outcomes;
}

std::vector<Metrics::Snapshot> Metrics::Snapshots() const {
  const Lock lock(parts_->mutex);
  std::vector<Snapshot> snapshots;
  for (const auto& model : parts_->models) snapshots.push_back(Parts::Read(*model));
  return snapshots;
}

std::string Metrics::Page(bool is_open_metrics) const {
  PageNumbers numbers;
  numbers.models = Snapshots();
  std::map<std::string, std::function<std::map<std::string, std::int64_t>()>> watched;
  {
    const Lock lock(parts_->mutex);
    numbers.states = parts_->states;
    numbers.unrouted = parts_->unrouted;
    watched = parts_->watched;
  }
  for (const auto& [what, read] : watched) numbers.watched[what] = read();
  numbers.process = ReadProcessNumbers();
  return MakeMetricsPage(numbers, is_open_metrics);
}

}  // namespace recsys
