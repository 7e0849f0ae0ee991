#include "engine/rpc/rpc_server.h"

#include <algorithm>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "engine/http2/polling/listener.h"
#include "engine/http2/polling/loop.h"
#include "engine/http2/port_state.h"
#include "engine/http2/socket.h"
#include "engine/rpc/net/listening.h"
#include "recsys/error.h"

namespace recsys {
namespace {

ListeningSocket ListenAsAsked(const RpcOptions& options) {
  try {
    return Listen(options.host, options.port);
  } catch (const std::system_error&) {
    throw Error(ErrorKind::kListen, "cannot listen on " + AddressOf(options.host, options.port) +
                                        ": the port is taken or the address is not ours");
  }
}

/// Returns the OpenSSL context for the current TLS material. Thread-safe.
class TlsContexts {
 public:
  explicit TlsContexts(std::shared_ptr<TlsStore> store) : store_(std::move(store)) { Get(); }

  std::shared_ptr<SSL_CTX> Get() {
    std::shared_ptr<const TlsPem> pem = store_->pem();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (pem == pem_) return context_;
    try {
      context_ = http2::MakeTlsContext(*pem);
      pem_ = std::move(pem);
    } catch (const Error& error) {
      // The store has already checked the material, so this is, say, a lack of memory: use the old
      // one.
      if (context_ == nullptr) throw;
      Log(LogLevel::kError, std::string("the new TLS material is not used: ") + error.what());
    }
    return context_;
  }

 private:
  const std::shared_ptr<TlsStore> store_;
  std::mutex mutex_;
  std::shared_ptr<const TlsPem> pem_;
  std::shared_ptr<SSL_CTX> context_;
};

}  // namespace

struct RpcServer::Parts {
  explicit Parts(const ConnectionLimits& limits) : state(limits) {}

  http2::PortState state;
  std::vector<std::unique_ptr<http2::Loop>> loops;
  std::unique_ptr<http2::Listener> listener;
  int port = 0;
  std::mutex closing;
};

RpcServer::RpcServer(RpcOptions options, std::vector<Service> services)
    : parts_(std::make_unique<Parts>(options.connections)) {
  http2::PortState& state = parts_->state;
  for (Service& service : services) {
    for (auto& [name, method] : service.methods) {
      const std::string path = "/" + service.name + "/" + name;
      if (!state.methods.emplace(path, std::move(method)).second) {
        throw Error(ErrorKind::kInternal, path + ": the method is defined twice");
      }
    }
  }
  if (options.tls != nullptr) {
    state.tls = [contexts = std::make_shared<TlsContexts>(options.tls)] { return contexts->Get(); };
  }
  ListeningSocket socket = ListenAsAsked(options);
  parts_->port = socket.port;
  for (int i = 0; i < std::max(options.num_threads, 1); ++i) {
    parts_->loops.push_back(std::make_unique<http2::Loop>(&state));
  }
  parts_->listener = std::make_unique<http2::Listener>(std::move(socket), &state, &parts_->loops);
  parts_->loops.front()->Watch(parts_->listener.get());
  for (const auto& loop : parts_->loops) loop->Start();
}

RpcServer::~RpcServer() { Close(); }

int RpcServer::port() const { return parts_->port; }

const PortCounters& RpcServer::counters() const { return parts_->state.counters; }

void RpcServer::Drain() {
  if (parts_->state.is_draining.exchange(true)) return;
  parts_->listener->Refuse();
  for (const auto& loop : parts_->loops) loop->Drain();
}

bool RpcServer::WaitUntilIdle(double until_s) {
  return parts_->state.open_calls.WaitUntilNone(until_s);
}

void RpcServer::Close() {
  Drain();
  const std::lock_guard<std::mutex> lock(parts_->closing);
  for (const auto& loop : parts_->loops) loop->Stop();
}

}  // namespace recsys
