#include "server/http/metrics_server.h"

#include <system_error>
#include <utility>

#include "server/http/http_server.h"

namespace recsys {
namespace {

constexpr std::int64_t kMaxConnections = 64;
constexpr std::size_t kMaxRequestBytes = 16 << 10;
constexpr char kPlainType[] = "text/plain; charset=utf-8";

HttpResponse TextResponse(int status, std::string text) {
  HttpResponse response;
  response.status = status;
  response.content_type = kPlainType;
  response.body = Message::Of(std::move(text));
  return response;
}

std::string Trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Takes what is before the separator off the front.
std::string TakeUntil(char separator, std::string* text) {
  const std::size_t at = text->find(separator);
  std::string part = Trimmed(text->substr(0, at));
  *text = at == text->npos ? "" : text->substr(at + 1);
  return part;
}

/// What a media type says of its parameter; empty where it does not.
std::string ParameterOf(std::string parameters, const std::string& name) {
  while (!parameters.empty()) {
    std::string value = TakeUntil(';', &parameters);
    if (value.find('=') == value.npos) continue;
    if (TakeUntil('=', &value) == name) return value;
  }
  return "";
}

}  // namespace

PageForm ChoosePageForm(const std::string& accept) {
  std::string left = accept;
  while (!left.empty()) {
    std::string parameters = TakeUntil(',', &left);
    const std::string type = TakeUntil(';', &parameters);
    const bool is_open_metrics = type == "application/openmetrics-text";
    if (!is_open_metrics && type != "text/plain") continue;
    const std::string version = ParameterOf(parameters, "version");
    if (is_open_metrics && version.empty()) {
      return {true, "application/openmetrics-text; version=1.0.0; charset=utf-8"};
    }
    if (version != "1.0.0") continue;
    // How names are to be escaped: ours need none.
    const bool is_utf8 = ParameterOf(parameters, "escaping") == "allow-utf-8";
    return {is_open_metrics, type + "; version=1.0.0; charset=utf-8; escaping=" +
                                 (is_utf8 ? "allow-utf-8" : "underscores")};
  }
  return {false, "text/plain; version=0.0.4; charset=utf-8"};
}

class MetricsServer::Handler : public HttpHandler {
 public:
  explicit Handler(const Metrics& metrics) : metrics_(metrics) {}

  void Handle(const std::shared_ptr<HttpExchange>& exchange) override {
    exchange->Answer(AnswerTo(exchange->request()));
  }

  HttpResponse Refuse(const HttpRequest& /*request*/, HttpFault /*fault*/,
                      const std::string& text) override {
    return TextResponse(400, text + "\n");
  }

 private:
  HttpResponse AnswerTo(const HttpRequest& request) const {
    if (request.method != "GET" && request.method != "HEAD") {
      HttpResponse response = TextResponse(405, "use GET\n");
      response.headers.push_back({"Allow", "GET, HEAD"});
      return response;
    }
    if (request.path != "/metrics") return TextResponse(404, "the metrics are at /metrics\n");
    const std::string* const accept = request.Find("accept");
    const PageForm form = ChoosePageForm(accept == nullptr ? "" : *accept);
    HttpResponse response = TextResponse(200, metrics_.Page(form.is_open_metrics));
    response.content_type = form.content_type;
    return response;
  }

  const Metrics& metrics_;
};

MetricsServer::MetricsServer(const Metrics& metrics, const Options& options)
    : handler_(std::make_unique<Handler>(metrics)) {
  HttpOptions listens;
  listens.host = options.host;
  listens.port = options.port;
  listens.backlog = kMaxConnections;
  listens.max_connections = kMaxConnections;
  listens.oldest_gives_way = true;
  listens.keeps_alive = false;
  listens.limits.max_head_bytes = kMaxRequestBytes;
  listens.times.connection_s = options.timeout_s;
  try {
    server_ = std::make_unique<HttpServer>(std::move(listens), *handler_);
  } catch (const std::system_error& error) {
    throw ListenError(error.code().value(), "cannot serve metrics on port " +
                                                std::to_string(options.port) + ": " +
                                                error.code().message());
  }
}

MetricsServer::~MetricsServer() = default;

int MetricsServer::port() const { return server_->port(); }

}  // namespace recsys
