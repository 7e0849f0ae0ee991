#ifndef RECSYS_ENGINE_PROTOCOLS_TORCHREC_H_
#define RECSYS_ENGINE_PROTOCOLS_TORCHREC_H_

#include <string>

#include "engine/protocols/protocol_request.h"
#include "wire/torchrec_request.h"

namespace recsys {

/// A PredictionRequest in TorchRec's wire format.
class TorchrecCall final : public ProtocolRequest {
 public:
  /// `only_model` answers if the call's metadata name no model.
  TorchrecCall(Gateway& gateway, const std::string& only_model) : ProtocolRequest(gateway) {
    protocol = "torchrec";
    model = only_model;
  }

  void Load(const Call& call) override;
  void Read(const Servable& by) override;
  Message Encode(const Servable& by, const Rows& rows) override;
  /// The protocol has no streams.
  Message OnStream(const Status& /*status*/, Message answer) override { return answer; }

 private:
  TorchrecRequest message_;
};

/// predictor.Predictor: Predict. `model` answers calls whose metadata name none; empty for the only
/// model. The gateway must outlive it and its calls.
Service TorchrecService(Gateway& gateway, const std::string& model = "");

}  // namespace recsys

#endif  // RECSYS_ENGINE_PROTOCOLS_TORCHREC_H_
