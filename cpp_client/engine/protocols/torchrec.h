#ifndef RECSYS_ENGINE_PROTOCOLS_TORCHREC_H_
#define RECSYS_ENGINE_PROTOCOLS_TORCHREC_H_

#include <string>

#include "engine/protocols/protocol_request.h"
#include "wire/torchrec_request.h"

namespace recsys {

/// A PredictionRequest of TorchRec's wire.
class TorchrecCall final : public ProtocolRequest {
 public:
  /// `only_model`: who answers where the call's metadata name no model.
  TorchrecCall(Gateway& gateway, const std::string& only_model) : ProtocolRequest(gateway) {
    protocol = "torchrec";
    model = only_model;
  }

  void Load(const Call& call, Bytes message) override;
  void Read(const Servable& by) override;
  Message Encode(const Servable& by, const Rows& rows) override;
  /// There are no streams of it.
  Message OnStream(const Status& /*status*/, Message answer) override { return answer; }

 private:
  TorchrecRequest message_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_PROTOCOLS_TORCHREC_H_
