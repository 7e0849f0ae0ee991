#ifndef RECSYS_SERVER_PROTOCOLS_SERVICES_H_
#define RECSYS_SERVER_PROTOCOLS_SERVICES_H_

// The gRPC services of the inference port, each ready for RpcServer. Whatever they are given by
// reference must outlive the services and the calls that they answer.

#include <functional>
#include <string>
#include <vector>

#include "config/settings.h"
#include "server/core/gateway.h"
#include "server/models/status.h"
#include "server/rpc/service.h"

namespace recsys {

/// What Open Inference's clients may ask of the models as a whole; of whoever manages them.
/// Called from the transport's threads: quick, thread-safe, without exceptions.
struct ModelsView {
  /// Whether requests are taken: every model has a version that is ready, and nothing drains.
  std::function<bool()> is_ready;
  std::function<std::vector<ModelStatus>()> statuses;
};

/// recsys.v1.PredictionService: Predict, PredictStream, GetModelMetadata.
Service RecsysV1Service(Gateway& gateway, const ConnectionLimits& limits);

/// inference.GRPCInferenceService, with what Triton's clients ask for beside it. Loading and
/// unloading are refused; the admin port's service exchanges these two methods for its own.
Service KserveService(Gateway& gateway, ModelsView models, const ConnectionLimits& limits,
                      Clock clock = MonotonicSeconds);

/// predictor.Predictor. `model` answers calls whose metadata name none; empty for the only model.
Service TorchrecService(Gateway& gateway, std::string model = "");

}  // namespace recsys

#endif  // RECSYS_SERVER_PROTOCOLS_SERVICES_H_
