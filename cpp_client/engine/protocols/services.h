#ifndef RECSYS_ENGINE_PROTOCOLS_SERVICES_H_
#define RECSYS_ENGINE_PROTOCOLS_SERVICES_H_

// The inference port's methods that the engine answers itself, one service each for RpcServer. The
// gateway must outlive the services and their calls.

#include <string>

#include "base/clock.h"
#include "engine/core/gateway.h"
#include "engine/settings/settings.h"
#include "port/service.h"

namespace recsys {

/// recsys.v1.PredictionService: Predict, PredictStream.
Service RecsysV1Service(Gateway& gateway, const ConnectionLimits& limits);

/// inference.GRPCInferenceService: ModelInfer, ModelStreamInfer. `clock` is for the requests' own
/// timeouts.
Service KserveService(Gateway& gateway, const ConnectionLimits& limits,
                      Clock clock = MonotonicSeconds);

/// predictor.Predictor: Predict. `model` answers calls whose metadata name none; empty for the only
/// model.
Service TorchrecService(Gateway& gateway, const std::string& model = "");

}  // namespace recsys

#endif  // RECSYS_ENGINE_PROTOCOLS_SERVICES_H_
