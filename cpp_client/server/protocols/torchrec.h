#ifndef RECSYS_SERVER_PROTOCOLS_TORCHREC_H_
#define RECSYS_SERVER_PROTOCOLS_TORCHREC_H_

#include <string>

#include "server/protocols/protocol_request.h"
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
  void Read(const Hosted& host) override;
  Message Encode(const Hosted& host, const Rows& rows) override;
  /// There are no streams of it.
  Message OnStream(const Status& /*status*/, Message answer) override { return answer; }

 private:
  TorchrecRequest message_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_PROTOCOLS_TORCHREC_H_
