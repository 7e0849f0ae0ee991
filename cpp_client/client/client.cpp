#include "recsys/client.h"

#include <utility>

#include "client/calls/engine.h"
#include "client/calls/stream.h"
#include "client/calls/unary_call.h"
#include "client/messages.h"
#include "client/settings.h"

namespace recsys {
namespace {

using client::CallEnd;
using client::UnaryCall;

double TimeoutOf(const CallOptions& call, const ClientOptions& all) {
  if (call.timeout_s) client::CheckTimeout(*call.timeout_s);
  return call.timeout_s.value_or(all.timeout_s);
}

}  // namespace

struct Client::Parts {
  Parts(const std::string& address, const ClientOptions& options) : engine(address, options) {}

  void Call(const char* method, grpc::ByteBuffer request, const CallOptions& options,
            std::function<void(CallEnd)> done) {
    const double timeout_s = TimeoutOf(options, engine.options());
    const auto call = std::make_shared<UnaryCall>(
        &engine, UnaryCall::Task{method, std::move(request), timeout_s, std::move(done)});
    call->Start(options.cancellation);
  }

  client::Engine engine;
};

Client::Client(const std::string& address, const ClientOptions& options)
    : parts_(std::make_unique<Parts>(address, options)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

ClientResponse Client::Predict(const ClientRequest& request, const CallOptions& options) {
  return PredictFuture(request, options).get();
}

std::future<ClientResponse> Client::PredictFuture(const ClientRequest& request,
                                                  const CallOptions& options) {
  // std::function requires a copyable callable.
  auto promise = std::make_shared<std::promise<ClientResponse>>();
  std::future<ClientResponse> future = promise->get_future();
  PredictAsync(
      request,
      [promise](ClientResult result) {
        if (result.ok()) {
          promise->set_value(result.Take());
        } else {
          promise->set_exception(std::make_exception_ptr(result.error()));
        }
      },
      options);
  return future;
}

void Client::PredictAsync(const ClientRequest& request, Callback callback,
                          const CallOptions& options) {
  parts_->Call(client::kPredict, client::BytesOf(request, parts_->engine.options()), options,
               [callback = std::move(callback)](CallEnd end) {
                 callback(client::ResultOf(std::move(end)));
               });
}

std::unique_ptr<ClientStream> Client::Stream(StreamCallback callback, const CallOptions& options) {
  if (options.timeout_s) client::CheckTimeout(*options.timeout_s);
  auto state = std::make_shared<ClientStream::State>(&parts_->engine, std::move(callback));
  state->Start(options);
  return std::make_unique<ClientStream>(std::move(state));
}

ModelMetadata Client::Metadata(const CallOptions& options) {
  auto promise = std::make_shared<std::promise<CallEnd>>();
  std::future<CallEnd> end = promise->get_future();
  parts_->Call(client::kGetModelMetadata, client::MetadataRequest(parts_->engine.options()),
               options, [promise](CallEnd ended) { promise->set_value(std::move(ended)); });
  return client::MetadataOf(end.get());
}

}  // namespace recsys
