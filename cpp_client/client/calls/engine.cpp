#include "client/calls/engine.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "client/settings.h"

namespace recsys::client {
namespace {

constexpr char kPushbackKey[] = "grpc-retry-pushback-ms";
// Short, so that a returning server is found soon.
constexpr int kFirstReconnectMs = 100;
constexpr int kMostReconnectMs = 5000;

bool Contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

grpc::ChannelArguments ChannelArguments(const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  // A server's answers are bounded by the requests; -1 disables gRPC's own bound.
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Each channel has its own connection, even to the same address.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // gRPC's own retries would bypass the budget.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMostReconnectMs);
  if (options.tls && !options.tls->server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls->server_name);
  }
  return arguments;
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials(const ClientOptions& options) {
  if (!options.tls) return grpc::InsecureChannelCredentials();
  const TlsMaterial material = ReadTls(*options.tls);
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = material.ca;
  ssl.pem_cert_chain = material.certificate;
  ssl.pem_private_key = material.key;
  return grpc::SslCredentials(ssl);
}

Engine::Engine(const std::string& address, const ClientOptions& options)
    : options_(options), budget_(options.retries) {
  CheckAddress(address);
  CheckOptions(options_);
  const auto credentials = ChannelCredentials(options_);
  const grpc::ChannelArguments arguments = client::ChannelArguments(options_);
  for (int i = 0; i < options_.num_connections; ++i) {
    stubs_.push_back(std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(address, credentials, arguments)));
  }
  for (int i = 0; i < options_.num_threads; ++i) {
    queues_.push_back(std::make_unique<grpc::CompletionQueue>());
  }
  for (const auto& made : queues_) {
    threads_.emplace_back([this, waiting = made.get()] { Run(waiting); });
  }
}

Engine::~Engine() {
  std::vector<std::shared_ptr<Operation>> open;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
    for (const auto& [key, operation] : operations_) open.push_back(operation);
  }
  // Without the lock: an operation that ends removes itself.
  for (const auto& operation : open) operation->Cancel();
  open.clear();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    all_ended_.wait(lock, [this] { return operations_.empty(); });
  }
  for (const auto& made : queues_) made->Shutdown();
  for (std::thread& thread : threads_) thread.join();
}

grpc::GenericStub& Engine::stub() {
  return *stubs_[next_stub_.fetch_add(1, std::memory_order_relaxed) % stubs_.size()];
}

grpc::CompletionQueue* Engine::queue() {
  return queues_[next_queue_.fetch_add(1, std::memory_order_relaxed) % queues_.size()].get();
}

void Engine::Add(std::shared_ptr<Operation> operation) {
  bool is_ending;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending = is_ending_;
    operations_.emplace(operation.get(), operation);
  }
  if (is_ending) operation->Cancel();
}

void Engine::Remove(const Operation* operation) {
  std::shared_ptr<Operation> ended;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = operations_.find(operation);
  ended = std::move(found->second);
  operations_.erase(found);
  if (operations_.empty()) all_ended_.notify_all();
}

void Engine::Run(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<Event*>(tag)->Proceed(ok);
}

ClientError Engine::ErrorOf(const grpc::Status& status, const grpc::ClientContext& context,
                            int num_attempts) const {
  const auto code = static_cast<StatusCode>(status.error_code());
  std::string message = status.error_message().empty() ? "no details" : status.error_message();
  // gRPC's message for a connection that was closed at once, as a TLS server does with a plain-text
  // client.
  const bool is_closed =
      Contains(message, "Socket closed") || Contains(message, "Connection reset by peer");
  if (!options_.tls && code == StatusCode::kUnavailable && is_closed) {
    message += "; the server may want TLS, which this client was not told to speak";
  }
  return ClientError(code, message, PushbackOf(context).ms, num_attempts);
}

Pushback PushbackOf(const grpc::ClientContext& context) {
  const auto& trailing = context.GetServerTrailingMetadata();
  const auto found = trailing.find(kPushbackKey);
  if (found == trailing.end()) return {};
  return Pushback::Of(std::string_view(found->second.data(), found->second.size()));
}

gpr_timespec After(double seconds) {
  // A century counts as infinity, and is still within gRPC's range.
  constexpr double kMost = 3e9;
  const auto us = static_cast<std::int64_t>(std::ceil(std::min(seconds, kMost) * 1e6));
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(us, GPR_TIMESPAN));
}

}  // namespace recsys::client
