#include "rest/rest_connection.h"

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>
#include <vector>

#include "engine/core/servable.h"
#include "port/polling/loop.h"
#include "rest/json/predict_body.h"
#include "rest/json/rows_body.h"
#include "rest/rest_call.h"

namespace recsys {
namespace {

using http2::IoResult;

// Idle time of connections; that of serve/rest/server.py.
constexpr double kIdleS = 75;
// A request that takes longer to arrive is left to Python, which bounds how long it waits.
constexpr double kSoonS = 1;
// Larger JSON is left to Python too: reading it would keep other connections waiting for more than
// about a millisecond.
constexpr std::int64_t kMostJsonBytes = 256 << 10;
// What is read ahead of a request while another is answered.
constexpr std::size_t kAheadBytes = 64 << 10;
// A larger input buffer is freed once it is empty.
constexpr std::size_t kKeptBytes = 64 << 10;

}  // namespace

RestConnection::RestConnection(http2::Loop* loop, std::int64_t id, FileHandle file,
                               RestPortState* port)
    : Polled(loop, id, std::move(file), port), port_(*port), idle_since_s_(loop->now_s()) {
  StartPolling();
}

RestConnection::~RestConnection() { CloseNow(); }

void RestConnection::Join() {
  Polled::Join();
  if (!is_closed_ && !in_.empty()) loop_->AddBacklog(id());
}

bool RestConnection::MayRead() const {
  if (is_leaving_) return false;
  return (call_ == nullptr && !is_blocked_) || in_.size() < kAheadBytes;
}

void RestConnection::OnReady(std::uint32_t events) {
  if (is_closed_) return;
  if ((events & EPOLLOUT) != 0) is_blocked_ = false;
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) {
    if (MayRead()) {
      Read();
    } else if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
      CloseNow();
    }
  }
  MarkDirty();
}

void RestConnection::Read() {
  std::vector<char>& buffer = loop_->buffer();
  std::size_t num_read = 0;
  switch (socket_.Read(buffer.data(), buffer.size(), &num_read)) {
    case IoResult::kBlocked:
      return;
    case IoResult::kClosed:
      return CloseNow();
    case IoResult::kDone:
      break;
  }
  if (in_.empty()) began_s_ = loop_->now_s();
  in_.append(buffer.data(), num_read);
  HandleInput();
}

void RestConnection::OnTurn() {
  if (is_closed_) return;
  HandleInput();
  MarkDirty();
}

void RestConnection::HandleInput() {
  if (call_ != nullptr || is_leaving_ || is_blocked_ || in_.empty()) return;
  if (port_.gateway->is_draining()) return Leave();
  RequestHead head;
  const HeadResult result = ReadRequestHead(in_, &head);
  const auto num_body_bytes = static_cast<std::int64_t>(head.num_body_bytes);
  const auto num_json_bytes =
      static_cast<std::int64_t>(head.num_json_bytes.value_or(head.num_body_bytes));
  const bool is_large = num_body_bytes > port_.limits.max_message_bytes ||
                        num_json_bytes > std::min(port_.max_json_bytes, kMostJsonBytes);
  if (result == HeadResult::kPython || is_large) return Leave();
  if (result == HeadResult::kIncomplete || in_.size() < head.num_bytes + head.num_body_bytes) {
    return loop_->timers().SetEarlier(this, began_s_ + kSoonS);
  }
  Begin(head);
}

std::shared_ptr<ProtocolRequest> RestConnection::RequestOf(const RequestHead& head,
                                                           std::string* message) const {
  const std::string_view body = std::string_view(in_).substr(head.num_bytes, head.num_body_bytes);
  try {
    // Throws where no version answers.
    const Route route = port_.router->Find({head.target.model, head.target.version, false, 1.0});
    if (head.is_infer) {
      const std::size_t num_json = head.num_json_bytes.value_or(body.size());
      InferForm form;
      if (!ReadInferBody(head.target, body.substr(0, num_json), body.substr(num_json), message,
                         &form)) {
        return nullptr;
      }
      return MakeInferRequest(*port_.gateway, std::move(form));
    }
    const Servable& by = *route.primary;
    if (head.num_json_bytes) return nullptr;
    const RequestLimits& limits = by.checker().limits();
    if (ReadPredictBody(head.target, body, by.signature(), limits, message)) {
      return MakePredictRequest(*port_.gateway, false);
    }
    message->clear();
    if (!ReadRowsBody(head.target, body, by.signature(), limits, message)) return nullptr;
    return MakePredictRequest(*port_.gateway, true);
  } catch (...) {
    // Python finds the same error, and says so.
    return nullptr;
  }
}

void RestConnection::Begin(const RequestHead& head) {
  std::string message;
  const std::shared_ptr<ProtocolRequest> request = RequestOf(head, &message);
  if (request == nullptr) return Leave();
  call_ = std::make_shared<RestCall>(this, std::string(head.lines),
                                     static_cast<std::uint64_t>(id()), home_);
  NoteWork(loop_->now_s(), 1, head.num_body_bytes);
  if (!open_stripe_) open_stripe_ = port_.open_calls.Begin();
  in_.erase(0, head.num_bytes + head.num_body_bytes);
  if (in_.empty() && in_.capacity() > kKeptBytes) std::string().swap(in_);
  began_s_ = loop_->now_s();
  std::shared_ptr<UnaryHandler> handler =
      AnswerUnary(*port_.gateway, request, call_, Bytes::Of(std::move(message)));
  // It may have ended already.
  if (call_ != nullptr) handler_ = std::move(handler);
}

void RestConnection::Send(std::string response) {
  EndCall();
  idle_since_s_ = loop_->now_s();
  if (out_.empty()) {
    out_ = std::move(response);
  } else {
    out_.append(response);
  }
  if (!in_.empty()) loop_->AddBacklog(id());
  MarkDirty();
}

void RestConnection::EndCall() {
  call_.reset();
  handler_.reset();
}

void RestConnection::Flush() {
  is_dirty_ = false;
  const bool had_output = !out_.empty();
  if (!is_blocked_ && WriteOut() && call_ == nullptr && open_stripe_) {
    port_.open_calls.End(*open_stripe_);
    open_stripe_.reset();
  }
  if (is_closed_) return;
  if (is_leaving_ && out_.empty()) return HandOver();
  if (had_output && out_.empty() && call_ == nullptr) {
    // Input may have waited for the socket.
    if (!in_.empty()) loop_->AddBacklog(id());
    loop_->timers().SetEarlier(this, NextTime());
  }
  CountMemory();
  PollFor((MayRead() ? std::uint32_t{EPOLLIN} : 0) | (is_blocked_ ? std::uint32_t{EPOLLOUT} : 0));
}

void RestConnection::Leave() {
  is_leaving_ = true;
  MarkDirty();
}

void RestConnection::HandOver() {
  std::string received = std::exchange(in_, {});
  StopPolling();
  auto file = std::make_shared<HandedFile>(
      socket_.TakeFile(),
      std::shared_ptr<std::atomic<std::int64_t>>(port_.shared_from_this(), &port_.num_connections));
  is_closed_ = true;
  CountMemory();
  account_.Closed();
  port_.hand_over(std::move(file), std::move(received));
}

void RestConnection::End() {
  if (!is_closed_) Flush();
  CloseNow();
}

void RestConnection::CloseNow() {
  if (std::exchange(is_closed_, true)) return;
  StopPolling();
  const std::shared_ptr<RestCall> call = std::move(call_);
  const std::shared_ptr<UnaryHandler> handler = std::move(handler_);
  if (call != nullptr) call->Over();
  if (handler != nullptr) handler->Cancelled();
  if (open_stripe_) port_.open_calls.End(*open_stripe_);
  open_stripe_.reset();
  std::string().swap(in_);
  std::string().swap(out_);
  out_at_ = 0;
  CountMemory();
  account_.Closed();
  MarkDirty();
}

void RestConnection::CountMemory() {
  CountHeld(static_cast<std::int64_t>(in_.capacity() + out_.capacity()));
  account_.Publish();
}

double RestConnection::NextTime() const {
  if (call_ != nullptr || !out_.empty()) return std::numeric_limits<double>::infinity();
  return in_.empty() ? idle_since_s_ + kIdleS : began_s_ + kSoonS;
}

void RestConnection::OnDue(double now_s) {
  if (is_closed_) return;
  const double next_s = NextTime();
  if (now_s < next_s) return loop_->timers().Set(this, next_s);
  if (in_.empty()) return CloseNow();
  Leave();
}

}  // namespace recsys
