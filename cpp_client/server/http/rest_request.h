#ifndef RECSYS_SERVER_HTTP_REST_REQUEST_H_
#define RECSYS_SERVER_HTTP_REST_REQUEST_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "server/core/gateway.h"
#include "server/core/request.h"
#include "server/http/http_exchange.h"
#include "server/http/rest_infer.h"
#include "server/http/rest_route.h"

namespace recsys {

/// {"error": ...} with that status.
HttpResponse ErrorResponse(int status, const std::string& text);
/// The same for what went wrong, as gRPC has it; `is_too_large`: the body is.
HttpResponse ErrorResponseOf(const Status& status, bool is_too_large = false);
HttpResponse JsonResponse(std::string json, int status = 200);

/// A request for predictions over HTTP, and how its answer finds back.
class RestRequest : public Request, public std::enable_shared_from_this<RestRequest> {
 public:
  RestRequest(Gateway& gateway, std::shared_ptr<HttpExchange> exchange, const RestRoute& route);

  /// Sets until when the client waits; none for as long as it takes.
  void SetTimeout(std::optional<double> timeout_s);
  /// Gives the request to the gateway, which may answer it at once.
  void Start();

  void Done(const Status& status, Message answer) final;

 protected:
  /// The answer, from what Encode wrote.
  virtual HttpResponse ResponseOf(Message answer) = 0;

 private:
  Gateway& gateway_;
  std::shared_ptr<HttpExchange> exchange_;
};

/// Tensors.
class InferRestRequest final : public RestRequest {
 public:
  /// Throws Error: the body is none.
  InferRestRequest(Gateway& gateway, std::shared_ptr<HttpExchange> exchange, const RestRoute& route,
                   std::unique_ptr<InferBody> body);

  void Read(const Hosted& by) override { body_->ReadInputs(by, &raw); }
  Message Encode(const Hosted& by, const Rows& rows) override;

 protected:
  HttpResponse ResponseOf(Message answer) override;

 private:
  /// The payload too: a twin may read its inputs after the request has gone.
  const std::shared_ptr<InferBody> body_;
  std::size_t num_json_bytes_ = 0;
};

/// Plain JSON.
class PlainRestRequest final : public RestRequest {
 public:
  /// Throws Error: an entry beside the inputs is wrong.
  PlainRestRequest(Gateway& gateway, std::shared_ptr<HttpExchange> exchange, const RestRoute& route,
                   JsonValue::Object body);

  void Read(const Hosted& by) override;
  Message Encode(const Hosted& by, const Rows& rows) override;

 protected:
  HttpResponse ResponseOf(Message answer) override;

 private:
  /// What the inputs point into.
  struct Kept {
    JsonValue::Object body;
    OwnedBytes owned;
  };
  /// The payload too: a twin may read its inputs after the request has gone.
  const std::shared_ptr<Kept> kept_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_REST_REQUEST_H_
