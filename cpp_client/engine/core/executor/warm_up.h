#ifndef RECSYS_ENGINE_CORE_EXECUTOR_WARM_UP_H_
#define RECSYS_ENGINE_CORE_EXECUTOR_WARM_UP_H_

// Batches that warm up an executor's thread: of rows that the export has verified, of synthetic
// rows, and of captured requests.

#include <memory>
#include <string>
#include <vector>

#include "engine/settings/settings.h"
#include "recsys/model.h"
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

/// Returns batches of several sizes, each twice; if there is a context, also for ranking. They are
/// made of `rows`, or of zeros and spread IDs if there are none. No batch exceeds the limits,
/// except that of one row.
std::vector<WarmUpBatch> WarmUpBatches(const Signature& signature, const BatchLimits& limits,
                                       const VerifiedRows& rows = {});

/// Appends batches of captured requests (serialized recsys.v1.PredictRequests), of one request and
/// of many. Requests that do not match the model are skipped; their number is logged. No views
/// outlive the batches.
void AddCapturedBatches(const std::vector<std::string>& messages, const RequestChecker& checker,
                        const BatchLimits& limits, std::vector<WarmUpBatch>* batches);

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_EXECUTOR_WARM_UP_H_
