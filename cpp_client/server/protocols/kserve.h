#ifndef RECSYS_SERVER_PROTOCOLS_KSERVE_H_
#define RECSYS_SERVER_PROTOCOLS_KSERVE_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "server/core/gateway.h"
#include "server/protocols/protocol_request.h"
#include "wire/infer_request.h"

namespace recsys {

/// A ModelInferRequest of Open Inference, read in place.
class InferCall final : public ProtocolRequest {
 public:
  /// `clock`: what the request's own timeout runs on.
  InferCall(Gateway& gateway, const Clock& clock, bool is_on_stream);

  void Load(const Call& call, Bytes message) override;
  void Read(const Hosted& host) override;
  Message Encode(const Hosted& host, const Rows& rows) override;
  Message OnStream(const Status& status, Message answer) override;

 private:
  const Clock& clock_;
  const bool is_on_stream_;
  InferMessage message_;
  std::string_view context_;
  std::vector<std::size_t> wanted_;
};

/// Whether a model, or a version of it, answers; one that is not there does not.
bool IsModelReady(Gateway& gateway, std::string_view name, std::string_view version);

}  // namespace recsys

#endif  // RECSYS_SERVER_PROTOCOLS_KSERVE_H_
