#ifndef RECSYS_SERVER_CORE_WARM_UP_H_
#define RECSYS_SERVER_CORE_WARM_UP_H_

// Batches that warm an executor's thread up: made ones, and requests that were captured
// (serve/warm_up.py).

#include <memory>
#include <string>
#include <vector>

#include "config/settings.h"
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

/// Batches of captured requests, of one request and of many; those that do not fit the model are
/// left out, and the log says how many. Damage within the file ends the warm-up there, and not the
/// model. Throws Error (kCapture) where the file is missing or no capture.
std::vector<WarmUpBatch> CapturedBatches(const std::string& path, const RequestChecker& checker,
                                         const BatchLimits& limits);

}  // namespace recsys

#endif  // RECSYS_SERVER_CORE_WARM_UP_H_
