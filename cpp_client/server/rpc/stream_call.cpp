// Calls with many requests and answers. Of each kind of operation one is under way at most: a read,
// a write (or the end), the wait for the call's end. The polling thread gets their events one at a
// time and tells the handler; Read, Write and Finish may be called by any thread.

#include <grpc/support/log.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "server/rpc/call_info.h"
#include "server/rpc/completion.h"
#include "server/rpc/endpoint.h"
#include "server/rpc/wire_message.h"

namespace recsys {
namespace {

class WireStreamCall final : public StreamCall {
 public:
  explicit WireStreamCall(Endpoint* endpoint) : endpoint_(endpoint) {}
  static void Await(Endpoint* endpoint);

  std::string_view Metadata(std::string_view key) const override { return info_.Metadata(key); }
  int CountMetadata(std::string_view key) const override { return info_.Count(key); }
  double deadline_s() const override { return info_.deadline_s(); }
  std::string peer() const override { return info_.peer(); }
  std::string_view method() const override { return endpoint_->path; }
  void Read() override;
  void Write(Message message, std::function<void(bool)> written) override;
  void Finish(const Status& status) override;

 private:
  struct Waiting {
    Message message;
    std::function<void(bool)> written;
  };

  void OnOpened(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnEnded(bool ok);
  void OnClosed(bool ok);
  void OpenHandler();
  /// Starts the next sending operation where none is under way; the lock is held, and let go of.
  void SendNext(std::unique_lock<std::mutex> lock);
  /// An operation is done; ends the call's life with the last one.
  void OneDone();

  Endpoint* const endpoint_;
  CallInfo info_;
  int cancelled_ = 0;
  /// Of the polling thread.
  std::shared_ptr<StreamHandler> handler_;
  ReceivedMessage request_;
  std::shared_ptr<WireStreamCall> self_;

  std::mutex mutex_;
  std::deque<Waiting> waiting_;
  /// Of the message that is being written.
  std::function<void(bool)> written_;
  ByteBufferPtr sending_;
  std::optional<Status> end_;
  bool is_sending_ = false;
  bool is_begun_ = false;
  bool is_closed_ = false;
  /// Events that are still to come.
  int num_pending_ = 0;

  CompletionOf<WireStreamCall, &WireStreamCall::OnOpened> on_opened_{this};
  CompletionOf<WireStreamCall, &WireStreamCall::OnRead> on_read_{this};
  CompletionOf<WireStreamCall, &WireStreamCall::OnWritten> on_written_{this};
  CompletionOf<WireStreamCall, &WireStreamCall::OnEnded> on_ended_{this};
  CompletionOf<WireStreamCall, &WireStreamCall::OnClosed> on_closed_{this};
};

void WireStreamCall::Await(Endpoint* endpoint) {
  auto call = std::make_shared<WireStreamCall>(endpoint);
  WireStreamCall* const at = call.get();
  at->self_ = std::move(call);
  const grpc_call_error error = grpc_server_request_registered_call(
      endpoint->port->server, endpoint->registered, at->info_.call_slot(),
      at->info_.deadline_slot(), at->info_.metadata_slot(), nullptr, endpoint->queue,
      endpoint->queue, &at->on_opened_);
  GPR_ASSERT(error == GRPC_CALL_OK);
}

void WireStreamCall::OnOpened(bool ok) {
  if (!ok) {  // the port closes
    const std::shared_ptr<WireStreamCall> last = std::move(self_);
    return;
  }
  Await(endpoint_);
  if (endpoint_->TakesMore()) Await(endpoint_);
  info_.Opened();
  endpoint_->port->open_calls.Begin();
  num_pending_ = 1;
  info_.AwaitClose(&cancelled_, &on_closed_);
  const Status refusal = Authorized(*endpoint_->port, *this);
  if (!refusal.ok()) return Finish(refusal);
  OpenHandler();
}

void WireStreamCall::OpenHandler() {
  const Status fault = Guarded([this] { handler_ = endpoint_->method.stream(self_); });
  if (!fault.ok()) Finish(fault);
}

void WireStreamCall::Read() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_ || end_) return;
    ++num_pending_;
  }
  grpc_op op = {};
  op.op = GRPC_OP_RECV_MESSAGE;
  op.data.recv_message.recv_message = request_.slot();
  const grpc_call_error error = grpc_call_start_batch(info_.call(), &op, 1, &on_read_, nullptr);
  GPR_ASSERT(error == GRPC_CALL_OK);
}

void WireStreamCall::OnRead(bool ok) {
  bool is_over = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over = is_closed_ || end_;
  }
  const bool has_message = ok && request_.has_value();
  if (!is_over && handler_ != nullptr) {
    const Status fault = Guarded(
        [&] { has_message ? handler_->OnMessage(request_.Take()) : handler_->OnHalfClose(); });
    if (!fault.ok()) Finish(fault);
  } else if (has_message) {
    request_.Take();
  }
  OneDone();
}

void WireStreamCall::Write(Message message, std::function<void(bool)> written) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_closed_ || end_) {
    lock.unlock();
    if (written) written(false);
    return;
  }
  waiting_.push_back({std::move(message), std::move(written)});
  SendNext(std::move(lock));
}

void WireStreamCall::Finish(const Status& status) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (is_closed_ || end_) return;
  end_ = status;
  SendNext(std::move(lock));
}

void WireStreamCall::SendNext(std::unique_lock<std::mutex> lock) {
  if (is_sending_ || is_closed_ || (waiting_.empty() && !end_)) return;
  is_sending_ = true;
  ++num_pending_;
  SendBatch batch;
  if (!std::exchange(is_begun_, true)) batch.AddInitialMetadata();
  if (waiting_.empty()) {
    batch.AddStatus(*end_);
    lock.unlock();
    batch.Start(info_.call(), &on_ended_);
    return;
  }
  Waiting next = std::move(waiting_.front());
  waiting_.pop_front();
  lock.unlock();
  // Whoever set is_sending_ has these for himself until the event.
  written_ = std::move(next.written);
  sending_ = ToByteBuffer(std::move(next.message));
  batch.AddMessage(sending_.get());
  batch.Start(info_.call(), &on_written_);
}

void WireStreamCall::OnWritten(bool ok) {
  sending_ = nullptr;
  const std::function<void(bool)> written = std::move(written_);
  {
    std::unique_lock<std::mutex> lock(mutex_);
    is_sending_ = false;
    SendNext(std::move(lock));
  }
  if (written) written(ok);
  OneDone();
}

void WireStreamCall::OnEnded(bool /*ok*/) { OneDone(); }

void WireStreamCall::OnClosed(bool /*ok*/) {
  std::deque<Waiting> never_sent;
  bool is_ended = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    is_ended = end_.has_value();
    never_sent.swap(waiting_);
  }
  if (!is_ended && handler_ != nullptr) Guarded([this] { handler_->OnCancelled(); });
  for (const Waiting& one : never_sent) {
    if (one.written) one.written(false);
  }
  OneDone();
}

void WireStreamCall::OneDone() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // The wait for the end is the last but for operations that are under way: none is begun after
    // it.
    if (--num_pending_ > 0) return;
  }
  const std::shared_ptr<WireStreamCall> last = std::move(self_);
  handler_ = nullptr;
  info_.Release();
  endpoint_->port->open_calls.End();
}

}  // namespace

void AwaitStreamCall(Endpoint* endpoint) { WireStreamCall::Await(endpoint); }

}  // namespace recsys
