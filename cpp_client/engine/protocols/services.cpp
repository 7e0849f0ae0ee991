#include "engine/protocols/services.h"

#include <utility>

#include "engine/protocols/kserve.h"
#include "engine/protocols/recsys_v1.h"
#include "engine/protocols/request_stream.h"
#include "engine/protocols/torchrec.h"

namespace recsys {
namespace {

template <typename Make>
Method Unary(Gateway& gateway, Make make) {
  Method method;
  method.unary = [&gateway, make](std::shared_ptr<UnaryCall> call, Bytes message) {
    return AnswerUnary(gateway, make(), std::move(call), std::move(message));
  };
  return method;
}

Method Stream(Gateway& gateway, StreamRules rules) {
  Method method;
  method.stream = [&gateway, rules = std::move(rules)](std::shared_ptr<StreamCall> call) {
    auto stream = std::make_shared<RequestStream>(gateway, std::move(call), rules);
    stream->Start();
    return stream;
  };
  return method;
}

}  // namespace

Service RecsysV1Service(Gateway& gateway, const ConnectionLimits& limits) {
  const auto make = [&gateway] { return std::make_shared<PredictCall>(gateway); };
  return {"recsys.v1.PredictionService",
          {{"Predict", Unary(gateway, make)},
           {"PredictStream", Stream(gateway, {make, false, limits.max_stream_requests})}}};
}

Service KserveService(Gateway& gateway, const ConnectionLimits& limits, Clock given_clock) {
  const auto make =
      [&gateway, clock = std::make_shared<const Clock>(std::move(given_clock))](bool is_on_stream) {
        return [&gateway, clock, is_on_stream] {
          return std::make_shared<InferCall>(gateway, *clock, is_on_stream);
        };
      };
  return {"inference.GRPCInferenceService",
          {{"ModelInfer", Unary(gateway, make(false))},
           {"ModelStreamInfer", Stream(gateway, {make(true), true, limits.max_stream_requests})}}};
}

Service TorchrecService(Gateway& gateway, const std::string& model) {
  const auto make = [&gateway, model] { return std::make_shared<TorchrecCall>(gateway, model); };
  return {"predictor.Predictor", {{"Predict", Unary(gateway, make)}}};
}

}  // namespace recsys
