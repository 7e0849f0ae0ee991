#include "port/rpc_server.h"

#include <algorithm>
#include <mutex>
#include <system_error>
#include <utility>

#include "port/net/listening.h"
#include "port/polling/listener.h"
#include "port/polling/loop.h"
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
  state.tls = std::move(options.tls);
  if (options.make_deferred_work) state.make_deferred_work = std::move(options.make_deferred_work);
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
