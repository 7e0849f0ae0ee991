#include "port/rpc_server.h"

#include <mutex>
#include <system_error>
#include <utility>

#include "port/connection/connection.h"
#include "port/net/listening.h"
#include "port/polling/listener.h"
#include "port/polling/loops.h"
#include "port/port_state.h"
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

}  // namespace

struct RpcServer::Parts {
  explicit Parts(const ConnectionLimits& limits) : state(limits) {}

  http2::RpcPortState state;
  std::shared_ptr<http2::Loops> loops;
  bool owns_loops = false;
  std::unique_ptr<http2::Listener> listener;
  int port = 0;
  std::mutex closing;
  bool is_closed = false;
};

RpcServer::RpcServer(RpcOptions options, std::vector<Service> services)
    : parts_(std::make_unique<Parts>(options.connections)) {
  http2::RpcPortState& state = parts_->state;
  for (Service& service : services) {
    for (auto& [name, method] : service.methods) {
      const std::string path = "/" + service.name + "/" + name;
      if (!state.methods.emplace(path, std::move(method)).second) {
        throw Error(ErrorKind::kInternal, path + ": the method is defined twice");
      }
    }
  }
  state.tls = std::move(options.tls);
  ListeningSocket socket = ListenAsAsked(options);
  parts_->port = socket.port;
  parts_->loops = std::move(options.loops);
  parts_->owns_loops = parts_->loops == nullptr;
  if (parts_->owns_loops) {
    parts_->loops = std::make_shared<http2::Loops>(options.num_threads, nullptr, options.balance);
  }
  parts_->listener =
      std::make_unique<http2::Listener>(std::move(socket), &state, parts_->loops.get());
  parts_->loops->Watch(parts_->listener.get());
}

RpcServer::~RpcServer() { Close(); }

int RpcServer::port() const { return parts_->port; }

const PortCounters& RpcServer::counters() const { return parts_->state.counters; }

void RpcServer::Drain() {
  if (parts_->state.is_draining.exchange(true)) return;
  parts_->listener->Refuse();
  parts_->loops->Drain(&parts_->state);
}

bool RpcServer::WaitUntilIdle(double until_s) {
  return parts_->state.open_calls.WaitUntilNone(until_s);
}

void RpcServer::Close() {
  Drain();
  const std::lock_guard<std::mutex> lock(parts_->closing);
  if (std::exchange(parts_->is_closed, true)) return;
  parts_->loops->End(&parts_->state);
  if (parts_->owns_loops) parts_->loops->Stop();
}

}  // namespace recsys
