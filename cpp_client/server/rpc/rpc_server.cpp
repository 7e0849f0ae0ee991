#include "server/rpc/rpc_server.h"

#include <absl/synchronization/mutex.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "recsys/error.h"
#include "server/rpc/acceptor.h"
#include "server/rpc/channel_arguments.h"
#include "server/rpc/completion.h"
#include "server/rpc/endpoint.h"
#include "server/rpc/listening.h"
#include "server/rpc/outbox.h"
#include "server/rpc/port_credentials.h"

namespace recsys {
namespace {

// Calls of a method that wait for their first event, at the beginning; much used methods come to
// have more.
constexpr int kFirstWaiting = 4;

ListeningSocket ListenAsAsked(const RpcOptions& options) {
  try {
    return Listen(options.host, options.port);
  } catch (const std::system_error& error) {
    throw ListenError(error.code().value(), "cannot " + options.purpose + " " +
                                                AddressOf(options.host, options.port) +
                                                ": the port is taken or the address is not ours");
  }
}

void Poll(grpc::CompletionQueue* queue) {
  PollsHere(queue->cq());
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<Completion*>(tag)->Completed(ok);
}

// Waited for by one thread, and set by a polling one: when an operation of gRPC's is done, or when
// all events have been seen that came before it was posted.
class Flag final : public Completion, public Outgoing {
 public:
  ~Flag() override = default;
  void Completed(bool /*ok*/) override { Set(); }
  void Send() override { Set(); }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    set_.wait(lock, [this] { return is_set_; });
  }

 private:
  void Set() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_set_ = true;
    set_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable set_;
  bool is_set_ = false;
};

// Throws Error (kInternal) where two methods have one name: gRPC would know one of them alone.
void CheckNames(const std::vector<Service>& services) {
  std::set<std::string> names;
  for (const Service& service : services) {
    if (!names.insert(service.name).second) {
      throw Error(ErrorKind::kInternal, service.name + ": a service that is there twice");
    }
  }
}

}  // namespace

/// The C++ API builds the server, because only there external acceptors are to be had; calls go
/// through the C API, whose events cost a third less.
struct RpcServer::Parts {
  Parts(RpcOptions the_options, std::vector<Service> the_services)
      : options(std::move(the_options)), services(std::move(the_services)) {}

  void Start();
  void Register(grpc_server* found);
  void AddEndpoint(std::size_t at, const Method& method, std::string path, void* registered);
  void Drain();
  void EndAllCalls();
  void Close();

  const RpcOptions options;
  const std::vector<Service> services;
  int port = 0;
  PortState state;
  /// Of each queue, which has a thread of its own.
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues;
  std::vector<std::unique_ptr<Outbox>> outboxes;
  struct Registered {
    const Method* method = nullptr;
    std::string path;
    void* handle = nullptr;
  };
  std::vector<Registered> methods;
  /// Addresses are handed to calls.
  std::deque<Endpoint> endpoints;
  std::shared_ptr<PortCredentials> credentials;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> entrance;
  /// Registered so that gRPC leaves unknown methods to us; calls are asked for through the C API.
  grpc::AsyncGenericService unknown;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Acceptor> acceptor;
  std::vector<std::thread> pollers;
  /// Guards what follows, and the order of Drain and Close.
  std::mutex mutex;
  bool is_draining = false;
  bool is_closed = false;
  Flag all_ended;
};

void RpcServer::Parts::Register(grpc_server* found) {
  state.server = found;
  for (const Service& service : services) {
    for (const auto& [name, method] : service.methods) {
      std::string path = "/" + service.name + "/" + name;
      const auto payload =
          method.unary ? GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER : GRPC_SRM_PAYLOAD_NONE;
      void* const handle = grpc_server_register_method(found, path.c_str(), nullptr, payload, 0);
      methods.push_back({&method, std::move(path), handle});
    }
  }
}

void RpcServer::Parts::AddEndpoint(std::size_t at, const Method& method, std::string path,
                                   void* registered) {
  Endpoint& endpoint = endpoints.emplace_back();
  endpoint.port = &state;
  endpoint.queue = queues[at]->cq();
  if (options.hands_over_answers) endpoint.outbox = outboxes[at].get();
  endpoint.path = std::move(path);
  endpoint.method = method;
  endpoint.registered = registered;
  endpoint.num_waiting = kFirstWaiting;
  for (int i = 0; i < kFirstWaiting; ++i) {
    if (registered == nullptr) {
      AwaitUnknownCall(&endpoint);
    } else if (method.unary) {
      AwaitUnaryCall(&endpoint);
    } else {
      AwaitStreamCall(&endpoint);
    }
  }
}

void RpcServer::Parts::Start() {
  CheckNames(services);
  // Debian's gRPC is built so that each of its locks looks for deadlocks, under one lock of them
  // all.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  state.authorize = options.authorize;
  auto files = options.tls ? std::make_unique<TlsFiles>(*options.tls) : nullptr;
  ListeningSocket listening = ListenAsAsked(options);
  port = listening.port;
  credentials = std::make_shared<PortCredentials>(std::move(files),
                                                  [this](grpc_server* found) { Register(found); });
  grpc::ServerBuilder builder;
  for (const auto& [name, value] : ChannelArguments(options.connections))
    builder.AddChannelArgument(name, value);
  builder.RegisterAsyncGenericService(&unknown);
  for (int i = 0; i < std::max(options.num_threads, 1); ++i) {
    queues.push_back(builder.AddCompletionQueue());
    outboxes.push_back(std::make_unique<Outbox>(queues.back().get()));
  }
  entrance = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  server = builder.BuildAndStart();
  if (server == nullptr) throw Error(ErrorKind::kInternal, "gRPC does not start; its log says why");
  for (std::size_t i = 0; i < queues.size(); ++i) {
    for (const Registered& one : methods) AddEndpoint(i, *one.method, one.path, one.handle);
    AddEndpoint(i, {}, {}, nullptr);
  }
  for (const auto& queue : queues) pollers.emplace_back([&queue] { Poll(queue.get()); });
  acceptor = std::make_unique<Acceptor>(
      std::move(listening), options.connections.max_connections, [this](int listener, int file) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters one;
        one.listener_fd = listener;
        one.fd = file;
        entrance->HandleNewConnection(&one);
      });
}

void RpcServer::Parts::Drain() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (std::exchange(is_draining, true)) return;
  if (acceptor != nullptr) acceptor->Stop();
  if (!pollers.empty()) grpc_server_shutdown_and_notify(state.server, queues[0]->cq(), &all_ended);
}

// Afterwards nobody starts an operation on the queues any more.
void RpcServer::Parts::EndAllCalls() {
  grpc_server_cancel_all_calls(state.server);
  // All connections have ended then, but not all that we have of their calls: events are on their
  // way, and threads may be about to answer.
  all_ended.Wait();
  for (const auto& outbox : outboxes) {
    Flag seen;
    outbox->Post(&seen);
    seen.Wait();
  }
  state.open_calls.WaitUntilNone(std::numeric_limits<double>::infinity());
}

void RpcServer::Parts::Close() {
  Drain();
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (std::exchange(is_closed, true)) return;
  }
  if (!pollers.empty()) {
    EndAllCalls();
  }
  if (server != nullptr) server->Shutdown();
  for (const auto& queue : queues) queue->Shutdown();
  for (std::thread& poller : pollers) poller.join();
  // Where nobody has polled, because the port did not come to be.
  if (pollers.empty()) {
    for (const auto& queue : queues) Poll(queue.get());
  }
}

RpcServer::RpcServer(RpcOptions options, std::vector<Service> services)
    : parts_(std::make_unique<Parts>(std::move(options), std::move(services))) {
  try {
    parts_->Start();
  } catch (...) {
    parts_->Close();
    throw;
  }
}

RpcServer::~RpcServer() { Close(); }

int RpcServer::port() const { return parts_->port; }

void RpcServer::Drain() { parts_->Drain(); }

bool RpcServer::WaitUntilIdle(double until_s) {
  return parts_->state.open_calls.WaitUntilNone(until_s);
}

void RpcServer::Close() { parts_->Close(); }

}  // namespace recsys
