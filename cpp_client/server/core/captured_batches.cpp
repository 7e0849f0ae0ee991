#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "recsys/error.h"
#include "server/core/warm_up.h"
#include "server/observe/capture_file.h"
#include "wire/predict_request.h"

namespace recsys {
namespace {

// Captured requests are put together by these numbers in turn.
constexpr std::array<std::size_t, 3> kCapturedSizes = {1, 8, 64};
// More would keep a model from its first request for longer than they are worth.
constexpr std::size_t kMaxCaptured = 2000;

/// Throws Error: kCapture where the bytes are no request, others where it does not fit the model.
OwnedRequest CheckedOf(CapturedRequest captured, const RequestChecker& checker) {
  const Signature& signature = checker.signature();
  const auto owner = std::make_shared<const std::string>(std::move(captured.data));
  RawRequest raw;
  PredictFields fields;
  const std::size_t most = std::max(signature.dense.size(), signature.sparse.size()) + 1;
  if (!ReadPredictRequest(*owner, most, &fields, &raw)) {
    throw Error(ErrorKind::kCapture, "a record holds " + std::to_string(owner->size()) +
                                         " bytes that are not a PredictRequest");
  }
  OwnedRequest request;
  checker.Check(raw, &request.checked);
  request.owner = owner;
  return request;
}

/// Those that fit the model; counts the others.
std::vector<OwnedRequest> ReadFitting(CaptureReader& reader, const RequestChecker& checker,
                                      int* num_skipped) {
  std::vector<OwnedRequest> used;
  try {
    while (used.size() < kMaxCaptured) {
      std::optional<CapturedRequest> captured = reader.Next();
      if (!captured) break;
      try {
        used.push_back(CheckedOf(std::move(*captured), checker));
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::kCapture) throw;
        ++*num_skipped;
      }
    }
  } catch (const Error& error) {
    Log(LogLevel::kWarning,
        std::string("the capture for the warm-up is used up to its damage: ") + error.what());
  }
  return used;
}

/// Appends batches of the requests of one kind.
void Group(const std::vector<OwnedRequest>& requests, bool has_context, const BatchLimits& limits,
           std::vector<WarmUpBatch>* batches) {
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
    const bool is_full = batch.size() == kCapturedSizes[turn % kCapturedSizes.size()];
    if (!batch.empty() && (is_full || !fits)) finish();
    batch.push_back(request);
    num_rows += checked.num_rows;
    num_ids += checked.num_ids;
  }
  if (!batch.empty()) finish();
}

}  // namespace

std::vector<WarmUpBatch> CapturedBatches(const std::string& path, const RequestChecker& checker,
                                         const BatchLimits& limits) {
  CaptureReader reader(path);
  int num_skipped = 0;
  const std::vector<OwnedRequest> used = ReadFitting(reader, checker, &num_skipped);
  Log(LogLevel::kInfo, "warm-up: " + std::to_string(used.size()) + " captured requests are used, " +
                           std::to_string(num_skipped) + " do not fit the model");
  std::vector<WarmUpBatch> batches;
  Group(used, false, limits, &batches);
  Group(used, true, limits, &batches);
  return batches;
}

}  // namespace recsys
