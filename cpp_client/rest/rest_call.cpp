#include "rest/rest_call.h"

#include <limits>
#include <utility>

#include "base/clock.h"
#include "engine/core/servable.h"
#include "engine/protocols/kserve.h"
#include "engine/protocols/recsys_v1.h"
#include "rest/json/answers.h"
#include "rest/responses.h"
#include "rest/rest_connection.h"

namespace recsys {
namespace {

constexpr char kProtocol[] = "rest";
const Clock kClock = MonotonicSeconds;

class RestInfer final : public InferCall {
 public:
  RestInfer(Gateway& gateway, InferForm form)
      : InferCall(gateway, kClock, false), form_(std::move(form)) {
    protocol = kProtocol;
  }

  Message Encode(const Servable& by, const Rows& rows) override {
    return Message::Of(ResponseOf(WriteInferBody({by.name(), by.version()}, request_id, form_,
                                                 wanted(), by.signature().outputs,
                                                 {rows.num_rows, rows.values, rows.owner})));
  }

 private:
  const InferForm form_;
};

class RestPredict final : public PredictCall {
 public:
  explicit RestPredict(Gateway& gateway) : PredictCall(gateway) { protocol = kProtocol; }

  Message Encode(const Servable& by, const Rows& rows) override {
    return Message::Of(ResponseOf(WritePredictBody(by.name(), by.version(), by.signature().outputs,
                                                   {rows.num_rows, rows.values, rows.owner})));
  }
};

}  // namespace

RestCall::RestCall(RestConnection* connection, std::string lines, std::uint64_t connection_number,
                   std::shared_ptr<http2::Outbox> outbox)
    : connection_(connection),
      lines_(std::move(lines)),
      number_(connection_number),
      outbox_(std::move(outbox)) {}

double RestCall::deadline_s() const { return std::numeric_limits<double>::infinity(); }

void RestCall::Answer(Message message) { End(message.Joined()); }

void RestCall::Fail(const Status& status) { End(ResponseOf(status)); }

void RestCall::End(std::string response) {
  response_ = std::move(response);
  if (outbox_->IsHere()) return Deliver();
  outbox_->Post(shared_from_this());
}

void RestCall::Deliver() {
  if (connection_ != nullptr) connection_->Send(std::move(response_));
}

std::shared_ptr<ProtocolRequest> MakeInferRequest(Gateway& gateway, InferForm form) {
  return std::make_shared<RestInfer>(gateway, std::move(form));
}

std::shared_ptr<ProtocolRequest> MakePredictRequest(Gateway& gateway) {
  return std::make_shared<RestPredict>(gateway);
}

}  // namespace recsys
