// Calls with many requests and answers. Any thread may call Read, Write and Finish; they store
// their requests under the lock, and the polling thread executes them. Only the polling thread
// calls the handler.

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "port/connection/call.h"
#include "port/connection/connection.h"

namespace recsys::http2 {
namespace {

class WireStreamCall final : public HandledCall<StreamCall> {
 public:
  using HandledCall::HandledCall;

  void Read() override;
  void Write(Message message, std::function<void(bool)> written) override;
  void Finish(const Status& status) override;

  void Start() override;
  void OnData() override { HandOnMessages(); }
  void Deliver() override;
  void Cancel() override;
  // Streams may be silent for long.
  bool AwaitsMessage() const override { return false; }

 private:
  struct Waiting {
    Message message;
    Written written;
  };

  /// Returns false if the call is over.
  bool Enqueue(Waiting waiting);
  /// Has the polling thread execute the requests stored under the lock.
  void Notify();
  /// Passes the requested messages to the handler, as far as available.
  void HandOnMessages();
  bool WantsMessage();
  void Release() override { handler_ = nullptr; }

  std::shared_ptr<StreamHandler> handler_;
  bool is_handing_on_ = false;

  std::mutex mutex_;
  std::deque<Waiting> waiting_;
  std::optional<Status> status_;
  bool wants_message_ = false;
  /// Whether the call is in the outbox.
  bool is_posted_ = false;
  bool is_closed_ = false;
};

void WireStreamCall::Start() {
  const auto self = std::static_pointer_cast<WireStreamCall>(shared_from_this());
  const Status fault = Guarded([&] { handler_ = method_of_port()->stream(self); });
  if (!fault.ok()) return Finish(fault);
  // The handler may have asked for a message before handler_ was set.
  HandOnMessages();
}

void WireStreamCall::Read() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_ || status_) return;
    wants_message_ = true;
  }
  Notify();
}

void WireStreamCall::Write(Message message, std::function<void(bool)> written) {
  if (Enqueue({std::move(message), written})) return Notify();
  if (written) written(false);
}

bool WireStreamCall::Enqueue(Waiting waiting) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_ || status_) return false;
  waiting_.push_back(std::move(waiting));
  return true;
}

void WireStreamCall::Finish(const Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_ || status_) return;
    status_ = status;
  }
  Notify();
}

void WireStreamCall::Notify() {
  if (home().IsHere()) return Deliver();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(is_posted_, true)) return;
  }
  home().Post(shared_from_this());
}

void WireStreamCall::Deliver() {
  if (!home().IsHere()) return home().Post(shared_from_this());
  std::deque<Waiting> waiting;
  std::optional<Status> status;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_posted_ = false;
    // Pending messages of a closed call were already removed by Cancel, which called their
    // callbacks.
    if (is_closed_) return;
    waiting.swap(waiting_);
    status = status_;
  }
  if (connection() == nullptr) return;
  for (Waiting& one : waiting) {
    connection()->Send(*this, std::move(one.message), std::move(one.written));
  }
  if (status && !end) {
    ignores_input = true;
    connection()->End(*this, *status);
  }
  HandOnMessages();
}

bool WireStreamCall::WantsMessage() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return wants_message_ && !is_closed_ && !status_;
}

void WireStreamCall::HandOnMessages() {
  // A handler that asks for the next message within OnMessage gets it here, not there.
  if (is_handing_on_ || handler_ == nullptr || connection() == nullptr) return;
  const std::shared_ptr<StreamHandler> handler = handler_;
  is_handing_on_ = true;
  while (!ignores_input && WantsMessage()) {
    if (!reader.has_message()) {
      if (!reader.failure().ok()) {
        connection()->Abort(*this, reader.failure());
        break;
      }
      if (!is_half_closed) {
        connection()->AwaitMessage(*this);
        break;
      }
      if (reader.is_unfinished()) {
        connection()->Abort(*this, {StatusCode::kInternal, "the last message is incomplete", 0});
        break;
      }
    }
    if (reader.has_message() && !connection()->MayGoOn(*this)) break;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      wants_message_ = false;
    }
    if (!reader.has_message()) {
      const Status fault = Guarded([&] { handler->OnHalfClose(); });
      if (!fault.ok()) Finish(fault);
      break;
    }
    Bytes message;
    const Status failure = connection()->TakeMessage(*this, &message);
    if (!failure.ok()) {
      connection()->Abort(*this, failure);
      break;
    }
    const Status fault = Guarded([&] { handler->OnMessage(std::move(message)); });
    if (!fault.ok()) Finish(fault);
  }
  is_handing_on_ = false;
}

void WireStreamCall::Cancel() {
  std::deque<Waiting> never_sent;
  bool is_ended = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(is_closed_, true)) return;
    is_ended = status_.has_value();
    never_sent.swap(waiting_);
  }
  ignores_input = true;
  if (!is_ended && handler_ != nullptr) Guarded([this] { handler_->OnCancelled(); });
  for (const Waiting& one : never_sent) {
    if (one.written) one.written(false);
  }
}

}  // namespace

std::shared_ptr<WireCall> MakeStreamCall(CallOrigin origin) {
  return std::make_shared<WireStreamCall>(std::move(origin));
}

}  // namespace recsys::http2
