#include "engine/protocols/request_stream.h"

#include <utility>

namespace recsys {

RequestStream::RequestStream(Gateway& gateway, std::shared_ptr<StreamCall> call, StreamRules rules)
    : gateway_(gateway), call_(std::move(call)), rules_(std::move(rules)) {}

void RequestStream::OnMessage(Bytes message) {
  const std::shared_ptr<ProtocolRequest> request = rules_.make();
  Enter(request);
  try {
    request->LoadFrom(*call_, std::move(message));
  } catch (...) {
    const Status status = StatusOfCurrentException();
    gateway_.Refused(status, request->protocol);
    Answered(*request, request->OnStream(status, {}));
    return GoOn();
  }
  request->AnswerTo(shared_from_this());
  gateway_.Predict(request);
  GoOn();
}

void RequestStream::OnHalfClose() {
  {
    const std::lock_guard lock(mutex_);
    is_reading_ = false;
    is_half_closed_ = true;
  }
  GoOn();
}

void RequestStream::OnCancelled() {
  std::vector<std::shared_ptr<ProtocolRequest>> left;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    ready_.clear();
    left = active_;
  }
  for (const std::shared_ptr<ProtocolRequest>& request : left) request->Cancelled();
}

void RequestStream::Enter(const std::shared_ptr<ProtocolRequest>& request) {
  const std::lock_guard lock(mutex_);
  is_reading_ = false;
  ++num_unanswered_;
  request->number_ = num_entered_++;
  request->slot_ = active_.size();
  active_.push_back(request);
  if (rules_.in_order) places_.emplace_back();
}

void RequestStream::Answered(ProtocolRequest& request, Message answer) {
  // Released outside the lock.
  std::shared_ptr<ProtocolRequest> done;
  {
    const std::lock_guard lock(mutex_);
    done = std::move(active_[request.slot_]);
    if (request.slot_ + 1 != active_.size()) {
      active_[request.slot_] = std::move(active_.back());
      active_[request.slot_]->slot_ = request.slot_;
    }
    active_.pop_back();
  }
  Put(request.number_, std::move(answer));
}

void RequestStream::Put(std::uint64_t number, Message answer) {
  {
    const std::lock_guard lock(mutex_);
    if (is_over_) return;
    if (rules_.in_order) {
      places_[number - first_] = std::move(answer);
      for (; !places_.empty() && places_.front(); ++first_) {
        ready_.push_back(std::move(*places_.front()));
        places_.pop_front();
      }
    } else {
      ready_.push_back(std::move(answer));
    }
  }
  WriteReady();
}

void RequestStream::WriteReady() {
  std::unique_lock lock(mutex_);
  if (is_writing_) return;
  is_writing_ = true;
  while (!ready_.empty()) {
    Message answer = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    call_->Write(std::move(answer),
                 [self = shared_from_this()](bool has_left) { self->Written(has_left); });
    lock.lock();
  }
  is_writing_ = false;
}

void RequestStream::Written(bool has_left) {
  {
    const std::lock_guard lock(mutex_);
    --num_unanswered_;
    if (!has_left) is_over_ = true;
  }
  GoOn();
}

void RequestStream::GoOn() {
  bool reads = false;
  {
    const std::lock_guard lock(mutex_);
    if (is_over_ || is_reading_) return;
    if (is_half_closed_ ? num_unanswered_ > 0 : num_unanswered_ >= rules_.max_requests) return;
    reads = is_reading_ = !is_half_closed_;
    is_over_ = is_half_closed_;
  }
  if (reads) {
    call_->Read();
  } else {
    call_->Finish({});
  }
}

Method StreamMethod(Gateway& gateway, StreamRules rules) {
  Method method;
  method.stream = [&gateway, rules = std::move(rules)](std::shared_ptr<StreamCall> call) {
    auto stream = std::make_shared<RequestStream>(gateway, std::move(call), rules);
    stream->Start();
    return stream;
  };
  return method;
}

}  // namespace recsys
