#include "server/core/hosted.h"

#include <utility>

#include "recsys/error.h"
#include "server/core/executor.h"
#include "server/core/warm_up.h"

namespace recsys {
namespace {

RequestLimits LimitsOfRequests(const BatchLimits& limits) {
  return {limits.max_request_rows, limits.max_request_ids, limits.max_queue_bytes};
}

std::vector<WarmUpBatch> BatchesOf(const Hosted& hosted) {
  const ModelSettings& settings = hosted.settings();
  std::vector<WarmUpBatch> batches = MadeBatches(hosted.signature(), settings.limits);
  if (!settings.warm_up) return batches;
  try {
    for (WarmUpBatch& batch :
         CapturedBatches(*settings.warm_up, hosted.checker(), settings.limits)) {
      batches.push_back(std::move(batch));
    }
  } catch (const Error& error) {
    throw Error(error.kind(), std::string("warm_up: ") + error.what());
  }
  return batches;
}

}  // namespace

Hosted::Hosted(OpenedModel opened, ModelSettings settings, Metrics& metrics, Deliver deliver,
               Clock clock)
    : model_(std::move(opened.model)),
      info_(std::move(opened.info)),
      signature_(model_->signature()),
      settings_(std::move(settings)),
      checker_(signature_, LimitsOfRequests(settings_.limits), settings_.allow_non_finite),
      all_metrics_(metrics),
      metrics_(metrics.Begin(info_.name, info_.version)),
      executor_(std::make_unique<Executor>(*this, std::move(deliver), std::move(clock))) {}

Hosted::~Hosted() { Close(); }

void Hosted::Open() {
  try {
    executor_->Start(BatchesOf(*this));
    executor_->WaitUntilWarm();
  } catch (...) {
    Close();
    throw;
  }
  metrics_->SetTableBytes(info_.table_bytes);
  metrics_->Describe(
      {model_->target_name(), info_.digest, settings_.num_executors, settings_.limits});
}

void Hosted::Close() {
  if (is_closed_) return;
  is_closed_ = true;
  executor_->Close();
  all_metrics_.Drop(metrics_);
}

void Hosted::Submit(const std::shared_ptr<Request>& request) { executor_->Submit(request); }

bool Hosted::Cancel(Request& request) { return executor_->Cancel(request); }

void Hosted::RunBetweenBatches(const std::function<void()>& function) {
  executor_->RunBetweenBatches(function);
}

std::vector<std::string> Hosted::deltas() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return deltas_;
}

void Hosted::AddDelta(const std::string& file_name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  deltas_.push_back(file_name);
}

}  // namespace recsys
