#ifndef RECSYS_ENGINE_CORE_WARM_UP_H_
#define RECSYS_ENGINE_CORE_WARM_UP_H_

// Batches that warm up an executor's thread: made ones, and captured requests.

#include <memory>
#include <string>
#include <vector>

#include "engine/settings/settings.h"
#include "recsys/request.h"
#include "recsys/signature.h"

namespace recsys {

/// A checked request, and the memory its views point into.
struct OwnedRequest {
  CheckedRequest checked;
  std::shared_ptr<const void> owner;
};
/// At least one request, either all or none with a context.
using WarmUpBatch = std::vector<OwnedRequest>;

/// Returns batches of several sizes, one ID in each bag, each size twice; if there is a context,
/// also for ranking. No batch exceeds the limits, except that of one row.
std::vector<WarmUpBatch> MadeBatches(const Signature& signature, const BatchLimits& limits);

/// Appends batches of captured requests (serialized recsys.v1.PredictRequests), of one request and
/// of many. Requests that do not match the model are skipped; their number is logged. No views
/// outlive the batches.
void AddCapturedBatches(const std::vector<std::string>& messages, const RequestChecker& checker,
                        const BatchLimits& limits, std::vector<WarmUpBatch>* batches);

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_WARM_UP_H_
