#include "server/http/rest_server.h"

#include <cstdint>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"
#include "recsys/error.h"
#include "server/core/hosted.h"
#include "server/http/http_server.h"
#include "server/http/plain_message.h"
#include "server/http/rest_encoding.h"
#include "server/http/rest_request.h"
#include "server/http/rest_route.h"
#include "server/observe/json_text.h"
#include "server/protocols/kserve_messages.h"
#include "server/rpc/tls_files.h"
#include "server/rpc/worker.h"

namespace recsys {
namespace {

// After the gateway is idle nothing but answers on their way is left.
constexpr double kShutdownSeconds = 1.0;
constexpr std::size_t kMaxShownPath = 128;
constexpr std::size_t kMaxShownEncoding = 64;

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string SecondsText(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", seconds);
  return text;
}

/// An answer that HTTP itself has a status for.
HttpResponse HttpError(const HttpRequest& request, int status, const std::string& reason) {
  const std::string path = PercentDecoded(request.path);
  const std::string shown(FirstChars(path, kMaxShownPath));
  return ErrorResponse(status, request.method + " " + shown + ": " + reason);
}

HttpResponse MessageResponse(const google::protobuf::Message& message) {
  std::string json;
  AppendPlainMessage(message, &json);
  return JsonResponse(std::move(json));
}

/// The body is compressed with something that nobody here knows.
struct UnknownEncoding {
  std::string text;
};

}  // namespace

class RestServer::Handler : public HttpHandler {
 public:
  Handler(Gateway& gateway, ModelsView models, const RestOptions& options)
      : gateway_(gateway),
        models_(std::move(models)),
        max_body_bytes_(static_cast<std::size_t>(options.connections.max_message_bytes)),
        max_json_bytes_(static_cast<std::size_t>(options.connections.max_json_bytes)),
        late_text_("the body was not there after " + SecondsText(options.body_timeout_s) + " s"),
        worker_(options.num_threads) {}

  void Handle(const std::shared_ptr<HttpExchange>& exchange) override {
    const HttpRequest& request = exchange->request();
    const std::optional<RestRoute> route = FindRoute(request.path);
    if (auto refusal = RefusalOf(request, route)) return exchange->Answer(Closing(*refusal));
    if (route->is_inference() || route->action == RestAction::kIndex) {
      // JSON takes its time.
      return worker_.Run([this, exchange, route = *route] { AnswerLater(exchange, route); });
    }
    exchange->Answer(Closing(Safely([&] { return Describe(*route); })));
  }

  HttpResponse Refuse(const HttpRequest& request, HttpFault fault,
                      const std::string& text) override {
    if (fault == HttpFault::kBadRequest) return ErrorResponse(400, "HTTP: " + text);
    const std::optional<RestRoute> route = FindRoute(request.path);
    if (auto refusal = RefusalOf(request, route)) return *refusal;
    const bool is_late = fault == HttpFault::kBodyTimeout;
    const std::string reason = is_late ? late_text_ : text;
    if (route->is_inference()) {
      const StatusCode code =
          is_late ? StatusCode::kDeadlineExceeded : StatusCode::kInvalidArgument;
      gateway_.Refused({code, reason, 0}, "rest");
    }
    return is_late ? HttpError(request, 408, reason) : ErrorResponse(413, reason);
  }

 private:
  /// Why the request is not answered at all; none where it is.
  std::optional<HttpResponse> RefusalOf(const HttpRequest& request,
                                        const std::optional<RestRoute>& route) const {
    const bool is_live = route && route->action == RestAction::kLive;
    if (gateway_.is_draining() && !is_live) {
      return ErrorResponse(503, "the server is stopping; send the request to another one");
    }
    if (!route) return HttpError(request, 404, HttpReason(404));
    const bool is_get = request.method == "GET" || request.method == "HEAD";
    if (route->is_post() ? request.method == "POST" : is_get) return std::nullopt;
    HttpResponse response = HttpError(request, 405, HttpReason(405));
    response.headers.push_back({"Allow", route->is_post() ? "POST" : "GET,HEAD"});
    return response;
  }

  HttpResponse Closing(HttpResponse response) const {
    response.closes = gateway_.is_draining();
    return response;
  }

  /// What `answer` gives, or what its error is over HTTP.
  template <typename Make>
  static HttpResponse Safely(Make answer) {
    try {
      return answer();
    } catch (const Error& error) {
      return ErrorResponseOf(LoggedStatusOfCurrentException(),
                             error.kind() == ErrorKind::kBodyTooLarge);
    } catch (...) {
      return ErrorResponseOf(LoggedStatusOfCurrentException());
    }
  }

  HttpResponse Describe(const RestRoute& route) {
    switch (route.action) {
      case RestAction::kServer:
        return MessageResponse(ServerMetadata());
      case RestAction::kLive:
        return JsonResponse("{\"live\":true}");
      case RestAction::kReady:
        return models_.is_ready() ? JsonResponse("{\"ready\":true}")
                                  : JsonResponse("{\"ready\":false}", 503);
      case RestAction::kMetadata: {
        const auto hosted = gateway_.FindHosted(route.model, route.version);
        return MessageResponse(
            KserveModelMetadata(*hosted, LoadedVersions(models_.statuses(), hosted->name())));
      }
      case RestAction::kModelReady:
        return ModelReady(route);
      case RestAction::kConfig:
        return MessageResponse(KserveModelConfig(*gateway_.FindHosted(route.model, route.version)));
      case RestAction::kStatistics:
        return MessageResponse(ModelStatistics(gateway_, route.model, route.version));
      case RestAction::kIndex:
      case RestAction::kInfer:
      case RestAction::kPredict:
        break;
    }
    throw Error(ErrorKind::kInternal, "an address without an answer");
  }

  HttpResponse ModelReady(const RestRoute& route) {
    bool is_ready = true;
    try {
      gateway_.FindHosted(route.model, route.version);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kNotReady) throw;
      is_ready = false;
    }
    std::string json = "{\"name\":";
    AppendJsonString(route.model, &json);
    json += is_ready ? ",\"ready\":true}" : ",\"ready\":false}";
    return JsonResponse(std::move(json), is_ready ? 200 : 503);
  }

  HttpResponse Index(const std::string& body) const {
    JsonValue::Object given;
    if (!body.empty()) given = ParseJsonBody(body, max_json_bytes_);
    const bool* const only_ready = FindEntry<bool>(given, "ready", "body");
    const auto index = RepositoryIndex(models_.statuses(), only_ready != nullptr && *only_ready);
    std::string json = "[";
    for (int i = 0; i < index.models_size(); ++i) {
      if (i > 0) json += ',';
      AppendPlainMessage(index.models(i), &json);
    }
    return JsonResponse(json + "]");
  }

  /// In a worker's thread.
  void AnswerLater(const std::shared_ptr<HttpExchange>& exchange, const RestRoute& route) {
    if (exchange->is_gone()) {
      if (route.is_inference()) {
        gateway_.Refused({StatusCode::kCancelled, "the client gave up", 0}, "rest");
      }
      return;
    }
    try {
      if (route.action == RestAction::kIndex) {
        HttpResponse response = Index(BodyOf(*exchange));
        return exchange->Answer(Closing(std::move(response)));
      }
      MakeRequest(exchange, route)->Start();
    } catch (const UnknownEncoding& unknown) {
      if (route.is_inference()) {
        gateway_.Refused({StatusCode::kInvalidArgument, unknown.text, 0}, "rest");
      }
      exchange->Answer(Closing(HttpError(exchange->request(), 415, unknown.text)));
    } catch (const Error& error) {
      RefuseUnread(*exchange, route, error.kind() == ErrorKind::kBodyTooLarge);
    } catch (...) {
      RefuseUnread(*exchange, route, false);
    }
  }

  /// Within a catch block: the request could not be read.
  void RefuseUnread(HttpExchange& exchange, const RestRoute& route, bool is_too_large) {
    const Status status = LoggedStatusOfCurrentException();
    if (route.is_inference()) gateway_.Refused(status, "rest");
    exchange.Answer(Closing(ErrorResponseOf(status, is_too_large)));
  }

  std::shared_ptr<RestRequest> MakeRequest(const std::shared_ptr<HttpExchange>& exchange,
                                           const RestRoute& route) {
    const std::optional<double> timeout_s = TimeoutOf(exchange->request().query);
    std::string body = BodyOf(*exchange);
    std::size_t num_bytes = 0;
    std::shared_ptr<RestRequest> request;
    if (route.action == RestAction::kInfer) {
      std::optional<std::int64_t> num_json_bytes;
      if (const std::string* const text = exchange->request().Find(Lower(kJsonLengthHeader))) {
        num_json_bytes = WholeNumber(kJsonLengthHeader, *text);
      }
      auto read = std::make_unique<InferBody>(std::move(body), num_json_bytes, max_json_bytes_);
      num_bytes = read->num_held_bytes();
      request = std::make_shared<InferRestRequest>(gateway_, exchange, route, std::move(read));
    } else {
      JsonValue::Object read = ParseJsonBody(body, max_json_bytes_);
      num_bytes = HeldBytes(read);
      request = std::make_shared<PlainRestRequest>(gateway_, exchange, route, std::move(read));
    }
    // What the queue is bounded by: JSON that was read takes more than its text.
    request->num_bytes = static_cast<std::int64_t>(num_bytes);
    request->SetTimeout(timeout_s);
    return request;
  }

  /// As it was before it was compressed. Throws UnknownEncoding too.
  std::string BodyOf(HttpExchange& exchange) const {
    const std::string* const given = exchange.request().Find("content-encoding");
    const std::string encoding = given == nullptr ? "identity" : Lower(*given);
    if (encoding == "identity") return exchange.TakeBody();
    if (!IsKnownEncoding(encoding)) {
      throw UnknownEncoding{"Content-Encoding: got " +
                            Repr(FirstChars(encoding, kMaxShownEncoding)) +
                            ", expected none, or one of gzip, deflate"};
    }
    return Inflate(exchange.TakeBody(), max_body_bytes_);
  }

  Gateway& gateway_;
  const ModelsView models_;
  const std::size_t max_body_bytes_;
  const std::size_t max_json_bytes_;
  const std::string late_text_;
  Worker worker_;
};

struct RestServer::Parts {
  Parts(Gateway& gateway, ModelsView models, const RestOptions& options)
      : handler(gateway, std::move(models), options) {}

  // The handler's threads end after the last connection, whose answers are dropped then.
  Handler handler;
  std::unique_ptr<HttpServer> server;
};

RestServer::RestServer(Gateway& gateway, ModelsView models, const RestOptions& options)
    : parts_(std::make_unique<Parts>(gateway, std::move(models), options)) {
  HttpOptions listens;
  listens.host = options.host;
  listens.port = options.port;
  listens.max_connections = options.connections.max_connections;
  listens.limits.max_body_bytes = static_cast<std::uint64_t>(options.connections.max_message_bytes);
  listens.times.body_s = options.body_timeout_s;
  if (options.tls) listens.tls = std::make_shared<TlsFiles>(*options.tls);
  try {
    parts_->server = std::make_unique<HttpServer>(std::move(listens), parts_->handler);
  } catch (const std::system_error& error) {
    throw ListenError(error.code().value(), "cannot serve HTTP on port " +
                                                std::to_string(options.port) + ": " +
                                                error.code().message());
  }
}

RestServer::~RestServer() { Close(); }

int RestServer::port() const { return parts_->server->port(); }

void RestServer::Close() { parts_->server->Close(kShutdownSeconds); }

}  // namespace recsys
