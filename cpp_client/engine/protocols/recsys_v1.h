#ifndef RECSYS_ENGINE_PROTOCOLS_RECSYS_V1_H_
#define RECSYS_ENGINE_PROTOCOLS_RECSYS_V1_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/core/servable.h"
#include "engine/protocols/protocol_request.h"
#include "engine/settings/settings.h"
#include "wire/predict_messages.h"

namespace recsys {

/// A PredictRequest of recsys.v1, read in place.
class PredictCall : public ProtocolRequest {
 public:
  using ProtocolRequest::ProtocolRequest;

  void Load(const Call& call) override;
  void Read(const Servable& by) override;
  Message Encode(const Servable& by, const Rows& rows) override;
  Message OnStream(const Status& status, Message answer) override;

 private:
  // Whether the message has more inputs than were kept, and how many were kept.
  bool is_cut_ = false;
  std::size_t num_kept_ = kMaxInputsKept;
};

/// recsys.v1.PredictionService: Predict, PredictStream. The gateway must outlive it and its calls.
Service RecsysV1Service(Gateway& gateway, const ConnectionLimits& limits);

}  // namespace recsys

#endif  // RECSYS_ENGINE_PROTOCOLS_RECSYS_V1_H_
