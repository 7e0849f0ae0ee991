#include "port/polling/polled.h"

#include <sys/epoll.h>

#include <string_view>
#include <utility>

#include "port/polling/loop.h"
#include "port/port_state.h"

namespace recsys::http2 {
namespace {

// A larger output buffer is freed once it is empty.
constexpr std::size_t kKeptOutBytes = 16 << 10;

std::shared_ptr<SSL_CTX> ContextOf(const PortState& port) {
  return port.tls != nullptr ? port.tls->context() : nullptr;
}

}  // namespace

Polled::Polled(Loop* loop, std::int64_t id, FileHandle file, PortState* port)
    : loop_(loop),
      home_(std::make_shared<Home>(loop->outbox(), id)),
      socket_(std::move(file), ContextOf(*port).get()),
      account_(&port->ledger, [home = home_] { home->CloseForMemory(); }),
      port_(port),
      id_(id),
      interest_(EPOLLIN) {}

void Polled::StartPolling() {
  if (!loop_->Poll(EPOLL_CTL_ADD, socket_.number(), interest_, id_)) return CloseNow();
  loop_->timers().Set(this, NextTime());
}

void Polled::StopPolling() {
  loop_->timers().Remove(this);
  loop_->StopPolling(socket_.number());
}

void Polled::LeaveFor(Loop* to) {
  StopPolling();
  loop_ = to;
  // Last: the other thread may already deliver answers of calls.
  home_->MoveTo(to->outbox());
}

void Polled::Join() {
  is_dirty_ = false;
  MarkDirty();
  if (is_closed()) return;
  StartPolling();
  if (home_->is_to_be_closed()) CloseForMemory();
}

void Polled::PollFor(std::uint32_t events) {
  if (events == std::exchange(interest_, events)) return;
  if (!loop_->Poll(EPOLL_CTL_MOD, socket_.number(), events, id_)) CloseNow();
}

void Polled::MarkDirty() {
  if (!std::exchange(is_dirty_, true)) loop_->MarkDirty(id_);
}

bool Polled::WriteOut() {
  while (out_at_ < out_.size()) {
    std::size_t num_written = 0;
    switch (socket_.Write(std::string_view(out_).substr(out_at_), &num_written)) {
      case IoResult::kDone:
        out_at_ += num_written;
        break;
      case IoResult::kBlocked:
        is_blocked_ = true;
        return false;
      case IoResult::kClosed:
        CloseNow();
        return false;
    }
  }
  out_.clear();
  out_at_ = 0;
  if (out_.capacity() > kKeptOutBytes) std::string().swap(out_);
  return true;
}

void Polled::CountHeld(std::int64_t num_bytes) {
  account_.Add(num_bytes - std::exchange(counted_bytes_, num_bytes));
}

}  // namespace recsys::http2
