#include "engine/calls/submitted_calls.h"

#include <limits>
#include <map>
#include <string>
#include <utility>

#include "base/text.h"
#include "engine/protocols/kserve.h"
#include "engine/protocols/recsys_v1.h"
#include "recsys/error.h"
#include "request/texts.h"

namespace recsys {

/// The call that a protocol's request answers.
class SubmittedCalls::Call final : public UnaryCall {
 public:
  Call(SubmittedCalls* calls, std::int64_t ticket, const SubmitOptions& options)
      : calls_(calls), ticket_(ticket), headers_(options.headers) {
    // Not a number of the port's connections, which count from 1.
    if (!options.client.empty()) {
      number_ = static_cast<std::uint64_t>(HashOfText(options.client)) | std::uint64_t{1} << 63;
    }
    if (options.remaining_s) deadline_s_ = calls->clock_() + *options.remaining_s;
  }

  std::string_view Metadata(std::string_view key) const override {
    const auto found = headers_.find(std::string(key));
    return found == headers_.end() ? std::string_view() : std::string_view(found->second);
  }
  double deadline_s() const override { return deadline_s_; }
  std::string peer() const override { return {}; }
  std::uint64_t connection_number() const override { return number_; }
  void Answer(Message message) override { calls_->End(ticket_, {}, message.Joined()); }
  void Fail(const Status& status) override { calls_->End(ticket_, status, {}); }

 private:
  SubmittedCalls* const calls_;
  const std::int64_t ticket_;
  const std::map<std::string, std::string> headers_;
  std::uint64_t number_ = 0;
  double deadline_s_ = std::numeric_limits<double>::infinity();
};

void SubmittedCalls::Submit(std::int64_t ticket, const SubmitOptions& options,
                            std::string message) {
  std::shared_ptr<ProtocolRequest> request;
  if (options.form == "recsys") {
    request = std::make_shared<PredictCall>(gateway_);
  } else if (options.form == "kserve") {
    request = std::make_shared<InferCall>(gateway_, clock_, false);
  } else {
    throw Error(ErrorKind::kConfig,
                "form: got " + Repr(options.form) + ", expected recsys or kserve");
  }
  request->protocol = Interned(options.protocol);
  request->drew_version = options.drew_version;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!open_.emplace(ticket, request).second) {
      throw Error(ErrorKind::kConfig, "ticket: got " + std::to_string(ticket) +
                                          ", which is in use, expected a new number");
    }
  }
  AnswerUnary(gateway_, request, std::make_shared<Call>(this, ticket, options),
              Bytes::Of(std::move(message)));
}

void SubmittedCalls::Cancel(std::int64_t ticket) {
  std::shared_ptr<UnaryHandler> request;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(ticket);
    if (found == open_.end()) return;
    request = found->second;
  }
  request->Cancelled();
}

void SubmittedCalls::End(std::int64_t ticket, const Status& status, std::string message) {
  // Freed after the lock.
  std::shared_ptr<UnaryHandler> request;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(ticket);
    if (found == open_.end()) return;
    request = std::move(found->second);
    open_.erase(found);
  }
  records_.Add(AnswerEvent{ticket, status, std::move(message)});
}

const char* SubmittedCalls::Interned(const std::string& protocol) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return protocols_.insert(protocol).first->c_str();
}

}  // namespace recsys
