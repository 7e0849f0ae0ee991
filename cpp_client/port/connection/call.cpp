// What all calls have in common, and those with one request and one answer. Any thread may give
// the answer; everything else happens in the polling thread.

#include "port/connection/call.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "port/connection/connection.h"

namespace recsys::http2 {

void WireCall::OnDue(double /*now_s*/) {
  if (end) return;
  origin_.connection->Abort(*this, {StatusCode::kDeadlineExceeded, "Deadline Exceeded", 0});
}

void WireCall::Over() {
  origin_.connection = nullptr;
  is_over_.store(true);
  Release();
}

std::vector<std::pair<std::string, std::string>> WireCall::MetadataCopy() const {
  std::vector<std::pair<std::string, std::string>> copy;
  headers().ForEach(
      [&copy](std::string_view name, std::string_view value) { copy.emplace_back(name, value); });
  return copy;
}

namespace {

constexpr std::size_t kPrefixBytes = 5;
// Below this size, a copy costs less than keeping owners.
constexpr std::size_t kMaxJoinedBytes = 4096;

std::string PrefixOf(std::size_t size) {
  std::string prefix(kPrefixBytes, '\0');
  for (std::size_t i = 1; i < kPrefixBytes; ++i) {
    prefix[i] = static_cast<char>(size >> 8 * (kPrefixBytes - 1 - i) & 0xff);
  }
  return prefix;
}

}  // namespace

std::size_t OutgoingMessages::Add(Message message, Written written) {
  const std::size_t size = message.num_bytes();
  std::string head = PrefixOf(size);
  if (size <= kMaxJoinedBytes) {
    head.reserve(kPrefixBytes + size);
    for (const Bytes& part : message.parts) head.append(part.view);
    parts_.push_back({Bytes::Of(std::move(head)), true, std::move(written)});
  } else {
    parts_.push_back({Bytes::Of(std::move(head)), false, {}});
    for (Bytes& part : message.parts) {
      if (!part.view.empty()) parts_.push_back({std::move(part), false, {}});
    }
    parts_.back().is_last = true;
    parts_.back().written = std::move(written);
  }
  num_bytes_ += kPrefixBytes + size;
  return kPrefixBytes + size;
}

std::size_t OutgoingMessages::CopyTo(std::size_t size, std::string* out,
                                     std::vector<Written>* written) {
  std::size_t num_ended = 0;
  num_bytes_ -= size;
  while (size > 0) {
    Part& part = parts_.front();
    const std::size_t taken = std::min(size, part.bytes.view.size() - at_);
    out->append(part.bytes.view.substr(at_, taken));
    at_ += taken;
    size -= taken;
    if (at_ < part.bytes.view.size()) return num_ended;
    if (part.is_last) ++num_ended;
    if (part.is_last && part.written) written->push_back(std::move(part.written));
    parts_.pop_front();
    at_ = 0;
  }
  return num_ended;
}

void OutgoingMessages::Clear(std::vector<Written>* written) {
  for (Part& part : parts_) {
    if (part.is_last && part.written) written->push_back(std::move(part.written));
  }
  parts_.clear();
  at_ = num_bytes_ = 0;
}

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
