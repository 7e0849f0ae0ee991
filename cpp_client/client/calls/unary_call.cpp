#include "client/calls/unary_call.h"

#include <random>
#include <utility>

#include "base/clock.h"

namespace recsys::client {
namespace {

double Draw() {
  thread_local std::mt19937 generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

}  // namespace

UnaryCall::UnaryCall(Engine* engine, Task task)
    : engine_(engine),
      task_(std::move(task)),
      deadline_s_(MonotonicSeconds() + task_.timeout_s),
      queue_(engine->queue()) {}

void UnaryCall::Start(const std::shared_ptr<Cancellation>& cancellation) {
  engine_->Add(shared_from_this());
  engine_->budget().Earn();
  if (cancellation != nullptr) {
    link_ = CancellationLink(cancellation, [weak = weak_from_this()] {
      if (const auto call = weak.lock()) call->Cancel();
    });
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  Attempt();
}

void UnaryCall::Cancel() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_cancelled_ = true;
  if (alarm_ != nullptr) {
    alarm_->Cancel();
  } else if (context_ != nullptr) {
    context_->TryCancel();
  }
}

void UnaryCall::Attempt() {
  ++num_attempts_;
  reader_.reset();
  context_ = std::make_unique<grpc::ClientContext>();
  context_->set_deadline(After(deadline_s_ - MonotonicSeconds()));
  reader_ = engine_->stub().PrepareUnaryCall(context_.get(), task_.method, task_.request, queue_);
  reader_->StartCall();
  reader_->Finish(&response_, &status_, static_cast<Event*>(this));
  if (is_cancelled_) context_->TryCancel();
}

void UnaryCall::Wait(double seconds) {
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(queue_, After(seconds), static_cast<Event*>(this));
}

bool UnaryCall::TryAgain() {
  if (is_cancelled_) return false;
  const FailedAttempt failed{static_cast<StatusCode>(status_.error_code()), PushbackOf(*context_),
                             num_attempts_, deadline_s_ - MonotonicSeconds()};
  const auto wait_s = RetryWait(engine_->options().retries, failed, Draw());
  if (!wait_s || !engine_->budget().Spend()) return false;
  Wait(*wait_s);
  return true;
}

void UnaryCall::Proceed(bool /*ok*/) {
  bool is_cancelled;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_cancelled = is_cancelled_;
    if (alarm_ != nullptr) {
      alarm_.reset();
      if (!is_cancelled_) return Attempt();
    } else if (!status_.ok() && TryAgain()) {
      return;
    }
  }
  End(is_cancelled);
}

void UnaryCall::End(bool is_cancelled) {
  // From here on only a late Cancel can access the call.
  link_ = CancellationLink();
  CallEnd end;
  end.num_attempts = num_attempts_;
  if (status_.ok()) {
    end.bytes.Swap(&response_);
  } else if (is_cancelled) {
    end.error =
        ClientError(StatusCode::kCancelled, "cancelled by the caller", std::nullopt, num_attempts_);
  } else {
    end.error = engine_->ErrorOf(status_, *context_, num_attempts_);
  }
  task_.done(std::move(end));
  engine_->Remove(this);
}

}  // namespace recsys::client
