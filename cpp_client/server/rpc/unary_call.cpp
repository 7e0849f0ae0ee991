// Calls with one request and one answer. gRPC reads the request before it tells of the call, so
// that a call has three events: it has come (with its request), its answer has left, it is over.
// All are the polling thread's; the answer may be given by any.

#include <grpc/support/log.h>

#include <atomic>
#include <memory>
#include <utility>

#include "server/rpc/call_info.h"
#include "server/rpc/completion.h"
#include "server/rpc/endpoint.h"
#include "server/rpc/outbox.h"
#include "server/rpc/wire_message.h"

namespace recsys {
namespace {

class WireUnaryCall final : public UnaryCall, private Outgoing {
 public:
  explicit WireUnaryCall(Endpoint* endpoint) : endpoint_(endpoint) {}
  static void Await(Endpoint* endpoint);

  std::string_view Metadata(std::string_view key) const override { return info_.Metadata(key); }
  int CountMetadata(std::string_view key) const override { return info_.Count(key); }
  double deadline_s() const override { return info_.deadline_s(); }
  std::string peer() const override { return info_.peer(); }
  std::string_view method() const override { return endpoint_->path; }
  void Answer(Message message) override;
  void Fail(const Status& status) override;

 private:
  enum State : unsigned { kIsEnded = 1, kIsClosed = 2 };

  void OnOpened(bool ok);
  void OnSent(bool ok);
  void OnClosed(bool ok);
  void RunMethod();
  /// Sends the end, here or in the polling thread; for who has claimed it.
  void SendEnd();
  void Send() override;
  bool ClaimEnd() { return state_.fetch_or(kIsEnded) == 0; }
  void Over();

  Endpoint* const endpoint_;
  CallInfo info_;
  ReceivedMessage request_;
  /// Of whoever has claimed the end: the answer, or none and how the call fails.
  ByteBufferPtr answer_;
  Status end_;
  /// State bits: who sets one first has a right, or a duty.
  std::atomic<unsigned> state_{0};
  int cancelled_ = 0;
  bool is_sent_ = false;
  /// Of the polling thread, as all that follows.
  std::shared_ptr<UnaryHandler> handler_;
  /// Itself, while gRPC has a tag of it.
  std::shared_ptr<WireUnaryCall> self_;
  CompletionOf<WireUnaryCall, &WireUnaryCall::OnOpened> on_opened_{this};
  CompletionOf<WireUnaryCall, &WireUnaryCall::OnSent> on_sent_{this};
  CompletionOf<WireUnaryCall, &WireUnaryCall::OnClosed> on_closed_{this};
};

void WireUnaryCall::Await(Endpoint* endpoint) {
  auto call = std::make_shared<WireUnaryCall>(endpoint);
  WireUnaryCall* const at = call.get();
  at->self_ = std::move(call);
  const grpc_call_error error = grpc_server_request_registered_call(
      endpoint->port->server, endpoint->registered, at->info_.call_slot(),
      at->info_.deadline_slot(), at->info_.metadata_slot(), at->request_.slot(), endpoint->queue,
      endpoint->queue, &at->on_opened_);
  GPR_ASSERT(error == GRPC_CALL_OK);
}

void WireUnaryCall::OnOpened(bool ok) {
  if (!ok) {  // the port closes
    const std::shared_ptr<WireUnaryCall> last = std::move(self_);
    return;
  }
  Await(endpoint_);
  if (endpoint_->TakesMore()) Await(endpoint_);
  info_.Opened();
  endpoint_->port->open_calls.Begin();
  info_.AwaitClose(&cancelled_, &on_closed_);
  RunMethod();
}

void WireUnaryCall::RunMethod() {
  const Status refusal = Authorized(*endpoint_->port, *this);
  if (!refusal.ok()) return Fail(refusal);
  if (!request_.has_value()) return Fail({StatusCode::kInternal, "the call has no request", 0});
  const Status fault =
      Guarded([this] { handler_ = endpoint_->method.unary(self_, request_.TakeInto(self_)); });
  if (!fault.ok()) Fail(fault);
}

void WireUnaryCall::Answer(Message message) {
  if (!ClaimEnd()) return;
  answer_ = ToByteBuffer(std::move(message));
  SendEnd();
}

void WireUnaryCall::Fail(const Status& status) {
  if (!ClaimEnd()) return;
  end_ = status;
  SendEnd();
}

void WireUnaryCall::SendEnd() {
  if (endpoint_->outbox == nullptr || IsPolledHere(endpoint_->queue)) return Send();
  endpoint_->outbox->Post(this);
}

void WireUnaryCall::Send() {
  SendBatch batch;
  batch.AddInitialMetadata();
  if (answer_ != nullptr) batch.AddMessage(answer_.get());
  batch.AddStatus(end_);
  batch.Start(info_.call(), &on_sent_);
}

void WireUnaryCall::OnSent(bool /*ok*/) {
  is_sent_ = true;
  answer_ = nullptr;
  if (state_.load() & kIsClosed) Over();
}

void WireUnaryCall::OnClosed(bool /*ok*/) {
  const bool is_ended = state_.fetch_or(kIsClosed) & kIsEnded;
  if (is_ended) {
    if (is_sent_) Over();
    return;
  }
  // Closed before anybody ended it: the client is gone.
  if (handler_ != nullptr) handler_->Cancelled();
  Over();
}

void WireUnaryCall::Over() {
  const std::shared_ptr<WireUnaryCall> last = std::move(self_);
  handler_ = nullptr;
  info_.Release();
  endpoint_->port->open_calls.End();
}

}  // namespace

void AwaitUnaryCall(Endpoint* endpoint) { WireUnaryCall::Await(endpoint); }

}  // namespace recsys
