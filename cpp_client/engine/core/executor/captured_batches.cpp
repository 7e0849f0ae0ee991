#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "engine/core/executor/warm_up.h"
#include "recsys/error.h"
#include "wire/predict_messages.h"

namespace recsys {
namespace {

// Numbers of captured requests per batch, used in turn.
constexpr std::array<std::size_t, 3> kCapturedSizes = {1, 8, 64};
// More would delay the model's first request longer than they are worth.
constexpr std::size_t kMaxCaptured = 2000;

/// Throws Error (kRequest, kRequestTooLarge) if the request does not match the model.
OwnedRequest CheckedOf(const std::string& message, const RequestChecker& checker) {
  const Signature& signature = checker.signature();
  const auto owner = std::make_shared<const std::string>(message);
  RawRequest raw;
  PredictFields fields;
  const std::size_t most = std::max(signature.dense.size(), signature.sparse.size()) + 1;
  if (!ReadPredictRequest(*owner, most, &fields, &raw)) {
    throw Error(ErrorKind::kRequest, "the bytes are not a PredictRequest");
  }
  OwnedRequest request;
  checker.Check(raw, &request.checked);
  request.owner = owner;
  return request;
}

/// Returns the requests that match the model; counts the others.
std::vector<OwnedRequest> Fitting(const std::vector<std::string>& messages,
                                  const RequestChecker& checker, std::size_t* num_skipped) {
  std::vector<OwnedRequest> used;
  for (const std::string& message : messages) {
    if (used.size() == kMaxCaptured) break;
    try {
      used.push_back(CheckedOf(message, checker));
    } catch (const Error&) {
      ++*num_skipped;
    }
  }
  return used;
}

/// Appends batches of the requests with, or without, a context; `by_request`: of one each.
void Group(const std::vector<OwnedRequest>& requests, bool has_context, bool by_request,
           const BatchLimits& limits, std::vector<WarmUpBatch>* batches) {
  std::size_t turn = 0;
  WarmUpBatch batch;
  std::int64_t num_rows = 0, num_ids = 0;
  const auto finish = [&] {
    batches->push_back(std::move(batch));
    batch.clear();
    num_rows = num_ids = 0;
    ++turn;
  };
  for (const OwnedRequest& request : requests) {
    const CheckedRequest& checked = request.checked;
    if (checked.has_context != has_context) continue;
    const bool fits = num_rows + checked.num_rows <= limits.max_batch_rows &&
                      num_ids + checked.num_ids <= limits.max_batch_ids;
    const bool is_full = by_request || batch.size() == kCapturedSizes[turn % kCapturedSizes.size()];
    if (!batch.empty() && (is_full || !fits)) finish();
    batch.push_back(request);
    num_rows += checked.num_rows;
    num_ids += checked.num_ids;
  }
  if (!batch.empty()) finish();
}

}  // namespace

void AddCapturedBatches(const std::vector<std::string>& messages, const RequestChecker& checker,
                        const BatchLimits& limits, std::vector<WarmUpBatch>* batches) {
  if (messages.empty()) return;
  std::size_t num_skipped = 0;
  const std::vector<OwnedRequest> used = Fitting(messages, checker, &num_skipped);
  Log(LogLevel::kInfo, "warm-up: " + std::to_string(used.size()) + " captured requests are used, " +
                           std::to_string(num_skipped) + " do not fit the model");
  const bool by_request = checker.signature().by_request;
  Group(used, false, by_request, limits, batches);
  Group(used, true, by_request, limits, batches);
}

}  // namespace recsys
