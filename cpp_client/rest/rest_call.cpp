#include "rest/rest_call.h"

#include <cstdint>
#include <ctime>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/core/servable.h"
#include "engine/protocols/kserve.h"
#include "engine/protocols/recsys_v1.h"
#include "rest/json/answers.h"
#include "rest/rest_connection.h"

namespace recsys {
namespace {

struct HttpStatus {
  int number;
  std::string_view reason;
};

HttpStatus HttpStatusOf(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return {400, "Bad Request"};
    case StatusCode::kNotFound:
      return {404, "Not Found"};
    case StatusCode::kUnavailable:
      return {503, "Service Unavailable"};
    case StatusCode::kResourceExhausted:
      return {429, "Too Many Requests"};
    case StatusCode::kDeadlineExceeded:
      return {504, "Gateway Timeout"};
    default:
      return {500, "Internal Server Error"};
  }
}

/// Returns the time as HTTP writes it; made once a second in each thread.
const std::string& Date() {
  thread_local std::time_t made_at = -1;
  thread_local std::string text;
  const std::time_t now = std::time(nullptr);
  if (now == made_at) return text;
  std::tm parts = {};
  gmtime_r(&now, &parts);
  // strftime would name days and months in the locale's language.
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  char numbers[40];
  std::string made = kDays[parts.tm_wday];
  std::strftime(numbers, sizeof(numbers), ", %d ", &parts);
  made.append(numbers).append(kMonths[parts.tm_mon]);
  std::strftime(numbers, sizeof(numbers), " %Y %H:%M:%S GMT", &parts);
  text = made.append(numbers);
  made_at = now;
  return text;
}

std::string Response(HttpStatus status, std::string_view type, std::string_view headers,
                     std::string_view body) {
  std::string out;
  out.reserve(256 + body.size());
  out.append("HTTP/1.1 ").append(std::to_string(status.number)).append(" ").append(status.reason);
  out.append("\r\n").append(headers).append("Content-Type: ").append(type);
  out.append("\r\nContent-Length: ").append(std::to_string(body.size()));
  out.append("\r\nDate: ").append(Date()).append("\r\n\r\n").append(body);
  return out;
}

/// Returns a whole HTTP response with the body of an answer.
std::string ResponseOf(const RestBody& body) {
  if (body.num_json_bytes == body.data.size()) {
    return Response({200, "OK"}, "application/json", {}, body.data);
  }
  return Response(
      {200, "OK"}, "application/octet-stream",
      "Inference-Header-Content-Length: " + std::to_string(body.num_json_bytes) + "\r\n",
      body.data);
}

/// Returns that for a request that was not answered (serve/errors.py: ERROR_KINDS).
std::string ResponseOf(const Status& status) {
  std::string body = "{\"error\":", headers;
  AppendJsonText(status.text, &body);
  body.append("}");
  if (status.code == StatusCode::kResourceExhausted) {
    constexpr std::int64_t kMsPerS = 1000;
    const std::int64_t seconds = (status.retry_after_ms + kMsPerS - 1) / kMsPerS;
    headers = "Retry-After: " + std::to_string(seconds) + "\r\n";
  }
  return Response(HttpStatusOf(status.code), "application/json", headers, body);
}

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
  RestPredict(Gateway& gateway, bool by_row) : PredictCall(gateway), by_row_(by_row) {
    protocol = kProtocol;
  }

  Message Encode(const Servable& by, const Rows& rows) override {
    const AnswerRows answer{rows.num_rows, rows.values, rows.owner};
    const std::vector<Output>& of = by.signature().outputs;
    return Message::Of(ResponseOf(by_row_ ? WriteRowsBody(of, answer)
                                          : WritePredictBody(by.name(), by.version(), of, answer)));
  }

 private:
  const bool by_row_;
};

}  // namespace

RestCall::RestCall(RestConnection* connection, std::string lines, std::uint64_t connection_number,
                   std::shared_ptr<http2::Home> home)
    : connection_(connection),
      lines_(std::move(lines)),
      number_(connection_number),
      home_(std::move(home)) {}

double RestCall::deadline_s() const { return std::numeric_limits<double>::infinity(); }

void RestCall::Answer(Message message) { End(message.Joined()); }

void RestCall::Fail(const Status& status) { End(ResponseOf(status)); }

void RestCall::End(std::string response) {
  response_ = std::move(response);
  Deliver();
}

void RestCall::Deliver() {
  if (!home_->IsHere()) return home_->Post(shared_from_this());
  if (connection_ != nullptr) connection_->Send(std::move(response_));
}

std::shared_ptr<ProtocolRequest> MakeInferRequest(Gateway& gateway, InferForm form) {
  return std::make_shared<RestInfer>(gateway, std::move(form));
}

std::shared_ptr<ProtocolRequest> MakePredictRequest(Gateway& gateway, bool by_row) {
  return std::make_shared<RestPredict>(gateway, by_row);
}

}  // namespace recsys
