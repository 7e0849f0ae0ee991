#ifndef RECSYS_ENGINE_PROTOCOLS_KSERVE_H_
#define RECSYS_ENGINE_PROTOCOLS_KSERVE_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "engine/core/gateway.h"
#include "engine/protocols/protocol_request.h"
#include "engine/settings/settings.h"
#include "wire/infer/infer_request.h"

namespace recsys {

/// A ModelInferRequest of Open Inference, read in place.
class InferCall : public ProtocolRequest {
 public:
  /// `clock` is for the request's own timeout; it must outlive the request.
  InferCall(Gateway& gateway, const Clock& clock, bool is_on_stream);

  void Load(const Call& call) override;
  void Read(const Servable& by) override;
  Message Encode(const Servable& by, const Rows& rows) override;
  Message OnStream(const Status& status, Message answer) override;

 protected:
  /// The numbers of the outputs that the request names, in its order; empty for all.
  const std::vector<std::size_t>& wanted() const { return wanted_; }

 private:
  const Clock& clock_;
  const bool is_on_stream_;
  InferMessage message_;
  std::string_view context_;
  std::vector<std::size_t> wanted_;
};

/// inference.GRPCInferenceService: ModelInfer, ModelStreamInfer. `clock` is for the requests' own
/// timeouts. The gateway must outlive it and its calls.
Service KserveService(Gateway& gateway, const ConnectionLimits& limits,
                      Clock clock = MonotonicSeconds);

}  // namespace recsys

#endif  // RECSYS_ENGINE_PROTOCOLS_KSERVE_H_
