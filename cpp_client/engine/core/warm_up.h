#ifndef RECSYS_ENGINE_CORE_WARM_UP_H_
#define RECSYS_ENGINE_CORE_WARM_UP_H_

// Batches that warm an executor's thread up: made ones, and requests that were captured.

#include <memory>
#include <string>
#include <vector>

#include "engine/settings/settings.h"
#include "recsys/request.h"
#include "recsys/signature.h"

namespace recsys {

/// A checked request, and what its views point into.
struct OwnedRequest {
  CheckedRequest checked;
  std::shared_ptr<const void> owner;
};
/// At least one request, all with a context or all without.
using WarmUpBatch = std::vector<OwnedRequest>;

/// Batches of several sizes, one ID in each bag, each size twice; where there is a context, also
/// for ranking. No batch is larger than the limits, except that of one row.
std::vector<WarmUpBatch> MadeBatches(const Signature& signature, const BatchLimits& limits);

/// Appends batches of captured requests (serialized recsys.v1.PredictRequests), of one request and
/// of many. Requests that do not fit the model are left out, and the log says how many. No views
/// outlive the batches.
void AddCapturedBatches(const std::vector<std::string>& messages, const RequestChecker& checker,
                        const BatchLimits& limits, std::vector<WarmUpBatch>* batches);

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_WARM_UP_H_
