// Calls with one request and one answer. Any thread may give the answer; everything else happens in
// the polling thread.

#include <atomic>
#include <memory>
#include <utility>

#include "port/connection/call.h"
#include "port/connection/connection.h"

namespace recsys::http2 {
namespace {

class WireUnaryCall final : public HandledCall<UnaryCall> {
 public:
  using HandledCall::HandledCall;

  void Answer(Message message) override;
  void Fail(const Status& status) override;

  void Start() override;
  void OnData() override;
  void Deliver() override;
  void Cancel() override;
  bool AwaitsMessage() const override { return !ignores_input; }

 private:
  enum State : unsigned { kIsEnded = 1, kIsClosed = 2 };

  /// The first to end the call claims the right to do so.
  bool ClaimEnd() { return state_.fetch_or(kIsEnded) == 0; }
  void Release() override { handler_ = nullptr; }
  std::shared_ptr<WireUnaryCall> Self() {
    return std::static_pointer_cast<WireUnaryCall>(shared_from_this());
  }

  std::atomic<unsigned> state_{0};
  /// Owned by the thread that has claimed the end, until it has posted the call: the answer, or why
  /// the call fails.
  std::optional<Message> answer_;
  Status status_;
  std::shared_ptr<UnaryHandler> handler_;
};

void WireUnaryCall::Start() {
  if (method_of_port() == nullptr) Fail({StatusCode::kUnimplemented, "Method not found!", 0});
}

void WireUnaryCall::OnData() {
  if (ignores_input) return;
  if (!reader.failure().ok()) {
    ignores_input = true;
    return Fail(reader.failure());
  }
  if (!reader.has_message()) {
    if (is_half_closed) Fail({StatusCode::kInternal, "the call has no request", 0});
    return;
  }
  ignores_input = true;
  Bytes request;
  Status failure = connection()->TakeMessage(*this, &request);
  if (failure.ok()) {
    failure = Guarded([&] { handler_ = method_of_port()->unary(Self(), std::move(request)); });
  }
  if (!failure.ok()) Fail(failure);
}

void WireUnaryCall::Answer(Message message) {
  if (!ClaimEnd()) return;
  answer_ = std::move(message);
  Deliver();
}

void WireUnaryCall::Fail(const Status& status) {
  if (!ClaimEnd()) return;
  status_ = status;
  Deliver();
}

void WireUnaryCall::Deliver() {
  if (!home().IsHere()) return home().Post(shared_from_this());
  if (connection() != nullptr) {
    if (answer_) connection()->Send(*this, std::move(*answer_), {});
    connection()->End(*this, status_);
  }
  answer_.reset();
}

void WireUnaryCall::Cancel() {
  if (state_.fetch_or(kIsClosed) != 0) return;
  if (handler_ != nullptr) Guarded([this] { handler_->Cancelled(); });
}

}  // namespace

std::shared_ptr<WireCall> MakeUnaryCall(CallOrigin origin) {
  return std::make_shared<WireUnaryCall>(std::move(origin));
}

}  // namespace recsys::http2
