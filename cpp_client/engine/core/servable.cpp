#include "engine/core/servable.h"

#include <utility>

#include "base/allocator.h"
#include "engine/core/executor/executor.h"
#include "engine/core/executor/warm_up.h"
#include "recsys/error.h"

namespace recsys {
namespace {

RequestLimits LimitsOfRequests(const BatchLimits& limits) {
  return {limits.max_request_rows, limits.max_request_ids, limits.max_queue_bytes};
}

}  // namespace

VersionShape::VersionShape(const ModelInfo& info, Signature all)
    : model(info.name), version(info.version), signature(std::move(all)) {
  for (const DenseInput& input : signature.dense) {
    dense_in_context.push_back(signature.InContext(input.name));
  }
  for (const SparseInput& input : signature.sparse) {
    sparse_in_context.push_back(signature.InContext(input.name));
  }
}

Servable::Servable(OpenedModel opened, VersionSettings settings, Deliver deliver, Clock clock)
    : model_(std::move(opened.model)),
      info_(std::move(opened.info)),
      signature_(model_->signature()),
      shape_(std::make_shared<const VersionShape>(info_, signature_)),
      settings_(std::move(settings)),
      checker_(signature_, LimitsOfRequests(settings_.limits), settings_.allow_non_finite),
      rows_(std::move(opened.rows)),
      executor_(std::make_unique<Executor>(*this, std::move(deliver), std::move(clock))) {}

Servable::~Servable() { Close(); }

void Servable::Open(const std::vector<std::string>& warm_up) {
  try {
    std::vector<WarmUpBatch> batches =
        WarmUpBatches(signature_, settings_.limits, std::exchange(rows_, {}));
    AddCapturedBatches(warm_up, checker_, settings_.limits, &batches);
    executor_->Start(batches);
    model_->ResetContextCacheCounts();
  } catch (...) {
    Close();
    throw;
  }
}

void Servable::Close() {
  const std::lock_guard<std::mutex> lock(life_);
  if (is_closed_) return;
  is_closed_ = true;
  executor_->Close();
  // No thread runs batches any more: free the tables now, even if answered requests still hold the
  // servable.
  std::unique_ptr<ServedModel> closed;
  {
    const std::lock_guard<std::mutex> guard(model_mutex_);
    last_contexts_ = model_->context_cache();
    last_outside_ = model_->outside_rows();
    last_contexts_.entries = last_contexts_.bytes = 0;
    closed = std::move(model_);
  }
  closed.reset();
  ReturnMemory();
}

VersionTotals Servable::Totals() const {
  VersionTotals totals = counters_.Totals();
  const std::lock_guard<std::mutex> guard(model_mutex_);
  totals.outside_rows = model_ == nullptr ? last_outside_ : model_->outside_rows();
  totals.context_cache = model_ == nullptr ? last_contexts_ : model_->context_cache();
  return totals;
}

std::optional<std::int64_t> Servable::NumOwned(const std::string& table,
                                               const std::vector<std::int64_t>& ids) const {
  const std::lock_guard<std::mutex> guard(model_mutex_);
  return model_ == nullptr ? std::nullopt : model_->NumOwned(table, ids);
}

std::int64_t Servable::ApplyDelta(const std::string& path) {
  const std::lock_guard<std::mutex> lock(life_);
  if (is_closed_) {
    throw Error(ErrorKind::kModelChange, "the version is closed and takes no delta");
  }
  try {
    const ServedModel::Delta delta = model_->PrepareDelta(path);
    executor_->RunBetweenBatches(delta.apply);
    counters_.DeltaApplied();
    return delta.num_dense_left;
  } catch (...) {
    counters_.DeltaFailed();
    throw;
  }
}

}  // namespace recsys
