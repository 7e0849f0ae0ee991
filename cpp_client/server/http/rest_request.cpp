#include "server/http/rest_request.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "server/core/hosted.h"
#include "server/http/rest_plain.h"
#include "server/observe/json_text.h"

namespace recsys {
namespace {

constexpr std::int64_t kMsPerSecond = 1000;

}  // namespace

HttpResponse JsonResponse(std::string json, int status) {
  HttpResponse response;
  response.status = status;
  response.body = Message::Of(std::move(json));
  return response;
}

HttpResponse ErrorResponse(int status, const std::string& text) {
  std::string json = "{\"error\":";
  AppendJsonString(text, &json);
  return JsonResponse(json + "}", status);
}

HttpResponse ErrorResponseOf(const Status& status, bool is_too_large) {
  HttpResponse response =
      ErrorResponse(is_too_large ? 413 : HttpStatusOf(status.code), status.text);
  if (status.code == StatusCode::kResourceExhausted) {
    // Whole seconds.
    const std::int64_t seconds = (status.retry_after_ms + kMsPerSecond - 1) / kMsPerSecond;
    response.headers.push_back({"Retry-After", std::to_string(seconds)});
  }
  return response;
}

RestRequest::RestRequest(Gateway& gateway, std::shared_ptr<HttpExchange> exchange,
                         const RestRoute& route)
    : gateway_(gateway), exchange_(std::move(exchange)) {
  protocol = "rest";
  model = route.model;
  version = route.version;
}

void RestRequest::SetTimeout(std::optional<double> timeout_s) {
  if (timeout_s) deadline_s = std::min(deadline_s, MonotonicSeconds() + *timeout_s);
}

void RestRequest::Start() {
  const auto held = shared_from_this();
  // The exchange lets go of it with its answer.
  exchange_->WhenGone([held, &gateway = gateway_] { gateway.Cancel(held); });
  if (std::isfinite(deadline_s)) exchange_->SetDeadline(deadline_s);
  gateway_.Predict(held);
}

void RestRequest::Done(const Status& status, Message answer) {
  HttpResponse response;
  if (status.ok()) {
    response = ResponseOf(std::move(answer));
  } else if (status.code == StatusCode::kDeadlineExceeded && status.text == "the deadline passed") {
    response = ErrorResponseOf({status.code, "the deadline passed before the answer was there", 0});
  } else {
    response = ErrorResponseOf(status);
  }
  // Clients go elsewhere with their next request.
  response.closes = gateway_.is_draining();
  exchange_->Answer(std::move(response));
}

InferRestRequest::InferRestRequest(Gateway& gateway, std::shared_ptr<HttpExchange> exchange,
                                   const RestRoute& route, std::unique_ptr<InferBody> body)
    : RestRequest(gateway, std::move(exchange), route), body_(std::move(body)) {
  payload.owner = body_;
  const InferParameters& parameters = body_->parameters();
  request_id = body_->id();
  priority = static_cast<Priority>(parameters.priority);
  SetTimeout(parameters.timeout_s);
}

Message InferRestRequest::Encode(const Hosted& by, const Rows& rows) {
  InferBody::Answer answer = body_->Write(by, rows);
  num_json_bytes_ = answer.num_json_bytes;
  return std::move(answer.message);
}

HttpResponse InferRestRequest::ResponseOf(Message answer) {
  HttpResponse response;
  if (answer.num_bytes() > num_json_bytes_) {
    response.content_type = "application/octet-stream";
    response.headers.push_back({kJsonLengthHeader, std::to_string(num_json_bytes_)});
  }
  response.body = std::move(answer);
  return response;
}

PlainRestRequest::PlainRestRequest(Gateway& gateway, std::shared_ptr<HttpExchange> exchange,
                                   const RestRoute& route, JsonValue::Object body)
    : RestRequest(gateway, std::move(exchange), route),
      kept_(std::make_shared<Kept>(Kept{std::move(body), {}})) {
  payload.owner = kept_;
  if (const auto* const id = FindEntry<std::string>(kept_->body, "id", "body")) request_id = *id;
  CheckRequestId(request_id, "id");
  std::vector<std::string> shown;
  ParameterValues given = ParametersOf(&kept_->body, &shown);
  given = ParameterValues{{}, given.priority, {}, {}};
  priority = static_cast<Priority>(ReadParameters(given).priority);
}

void PlainRestRequest::Read(const Hosted& by) {
  kept_->owned.Clear();
  ReadPlain(kept_->body, by.signature(), by.settings().limits, &kept_->owned, &raw);
}

Message PlainRestRequest::Encode(const Hosted& by, const Rows& rows) {
  return Message::Of(WritePlain(by, rows));
}

HttpResponse PlainRestRequest::ResponseOf(Message answer) {
  HttpResponse response;
  response.body = std::move(answer);
  return response;
}

}  // namespace recsys
