#ifndef RECSYS_REST_REST_CALL_H_
#define RECSYS_REST_REST_CALL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/protocols/protocol_request.h"
#include "port/polling/outbox.h"
#include "port/polling/posted_calls.h"
#include "port/service.h"
#include "rest/request_head.h"

namespace recsys {

class RestConnection;

/// A request over HTTP as its protocol's code sees it; its answer is a whole HTTP response.
class RestCall final : public UnaryCall,
                       public http2::Posted,
                       public std::enable_shared_from_this<RestCall> {
 public:
  RestCall(RestConnection* connection, std::string lines, std::uint64_t connection_number,
           std::shared_ptr<http2::Home> home);

  std::string_view Metadata(std::string_view key) const override { return HeaderOf(lines_, key); }
  double deadline_s() const override;
  std::string peer() const override { return {}; }
  std::uint64_t connection_number() const override { return number_; }
  void Answer(Message message) override;
  void Fail(const Status& status) override;

  // Polling thread only.
  void Deliver() override;
  /// The connection is gone.
  void Over() { connection_ = nullptr; }

 private:
  void End(std::string response);

  RestConnection* connection_;
  const std::string lines_;
  const std::uint64_t number_;
  const std::shared_ptr<http2::Home> home_;
  std::string response_;
};

/// Returns a request of Open Inference, or of plain JSON, whose answer is an HTTP response.
/// `by_row`: whether the answer has an entry for each row, and not one for each output.
std::shared_ptr<ProtocolRequest> MakeInferRequest(Gateway& gateway, InferForm form);
std::shared_ptr<ProtocolRequest> MakePredictRequest(Gateway& gateway, bool by_row);

}  // namespace recsys

#endif  // RECSYS_REST_REST_CALL_H_
