// Calls of methods that the port does not have.

#include <grpc/support/log.h>

#include <memory>
#include <utility>

#include "server/rpc/call_info.h"
#include "server/rpc/completion.h"
#include "server/rpc/endpoint.h"
#include "server/rpc/wire_message.h"

namespace recsys {
namespace {

class UnknownCall final : public Call {
 public:
  explicit UnknownCall(Endpoint* endpoint) : endpoint_(endpoint) {
    grpc_call_details_init(&details_);
  }
  ~UnknownCall() override { grpc_call_details_destroy(&details_); }
  UnknownCall(const UnknownCall&) = delete;
  UnknownCall& operator=(const UnknownCall&) = delete;
  static void Await(Endpoint* endpoint);

  std::string_view Metadata(std::string_view key) const override { return info_.Metadata(key); }
  int CountMetadata(std::string_view key) const override { return info_.Count(key); }
  double deadline_s() const override { return info_.deadline_s(); }
  std::string peer() const override { return info_.peer(); }
  std::string_view method() const override { return ViewOf(details_.method); }

 private:
  void OnOpened(bool ok);
  void OnSent(bool /*ok*/) { OneOver(); }
  void OnClosed(bool /*ok*/) { OneOver(); }
  void OneOver();

  Endpoint* const endpoint_;
  CallInfo info_;
  grpc_call_details details_;
  int cancelled_ = 0;
  int num_left_ = 2;
  CompletionOf<UnknownCall, &UnknownCall::OnOpened> on_opened_{this};
  CompletionOf<UnknownCall, &UnknownCall::OnSent> on_sent_{this};
  CompletionOf<UnknownCall, &UnknownCall::OnClosed> on_closed_{this};
};

void UnknownCall::Await(Endpoint* endpoint) {
  // gRPC has it from here, and gives it back with its last event.
  UnknownCall* const call = std::make_unique<UnknownCall>(endpoint).release();
  const grpc_call_error error = grpc_server_request_call(
      endpoint->port->server, call->info_.call_slot(), &call->details_, call->info_.metadata_slot(),
      endpoint->queue, endpoint->queue, &call->on_opened_);
  GPR_ASSERT(error == GRPC_CALL_OK);
}

void UnknownCall::OnOpened(bool ok) {
  if (!ok) {
    const std::unique_ptr<UnknownCall> last(this);
    return;
  }
  Await(endpoint_);
  *info_.deadline_slot() = details_.deadline;
  info_.Opened();
  endpoint_->port->open_calls.Begin();
  info_.AwaitClose(&cancelled_, &on_closed_);
  Status status = Authorized(*endpoint_->port, *this);
  if (status.ok()) status = {StatusCode::kUnimplemented, "Method not found!", 0};
  SendBatch batch;
  batch.AddInitialMetadata();
  batch.AddStatus(status);
  batch.Start(info_.call(), &on_sent_);
}

void UnknownCall::OneOver() {
  if (--num_left_ > 0) return;
  const std::unique_ptr<UnknownCall> last(this);
  info_.Release();
  endpoint_->port->open_calls.End();
}

}  // namespace

void AwaitUnknownCall(Endpoint* endpoint) { UnknownCall::Await(endpoint); }

}  // namespace recsys
