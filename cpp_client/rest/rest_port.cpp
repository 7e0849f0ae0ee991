#include "rest/rest_port.h"

#include <utility>

#include "port/polling/listener.h"
#include "rest/rest_connection.h"

namespace recsys {

std::unique_ptr<http2::Polled> RestPortState::Open(http2::Loop* loop, std::int64_t id,
                                                   FileHandle file) {
  return std::make_unique<RestConnection>(loop, id, std::move(file), this);
}

RestPort::RestPort(FileHandle listening, std::shared_ptr<RestPortState> state,
                   std::shared_ptr<http2::Loops> loops)
    : state_(std::move(state)),
      loops_(std::move(loops)),
      listener_(std::make_unique<http2::Listener>(ListeningSocket{std::move(listening), 0},
                                                  state_.get(), loops_.get())) {
  loops_->Watch(listener_.get());
}

RestPort::~RestPort() { loops_->End(state_.get()); }

}  // namespace recsys
