#include "engine/calls/host_calls.h"

#include <cmath>
#include <utility>

namespace recsys {
namespace {

Status NoRoom() {
  return {StatusCode::kResourceExhausted, "too many calls of this kind wait; try again later", 0};
}

}  // namespace

/// Removes a unary call whose client has disconnected.
class HostCalls::Unary final : public UnaryHandler {
 public:
  Unary(std::shared_ptr<HostCalls> calls, std::int64_t id) : calls_(std::move(calls)), id_(id) {}
  void Cancelled() override { calls_->Remove(id_); }

 private:
  const std::shared_ptr<HostCalls> calls_;
  const std::int64_t id_;
};

class HostCalls::Stream final : public StreamHandler, public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<HostCalls> calls, std::shared_ptr<StreamCall> call)
      : calls_(std::move(calls)), call_(std::move(call)) {}

  void Start() {
    id_ = calls_->Add({nullptr, shared_from_this(), 0, {}, false});
    call_->Read();
  }
  void OnMessage(Bytes message) override {
    if (!calls_->Hand(id_, *call_, message, false)) Fail(NoRoom());
  }
  /// Called only once every message is answered: before that, nothing is read.
  void OnHalfClose() override { Fail({}); }
  void OnCancelled() override { calls_->Remove(id_); }

  void Answer(std::string message) {
    call_->Write(Message::Of(std::move(message)), [self = shared_from_this()](bool has_left) {
      if (has_left) self->call_->Read();
    });
  }
  /// Ends the call, also with OK.
  void Fail(const Status& status) {
    calls_->Remove(id_);
    call_->Finish(status);
  }

 private:
  const std::shared_ptr<HostCalls> calls_;
  const std::shared_ptr<StreamCall> call_;
  std::int64_t id_ = 0;
};

Method HostCalls::UnaryMethod() {
  Method method;
  method.unary = [self = shared_from_this()](const std::shared_ptr<UnaryCall>& call,
                                             const Bytes& message) -> std::shared_ptr<Unary> {
    const std::int64_t id = self->Add({call, nullptr, call->connection_number(), {}, false});
    if (!self->HandOrKeep(id, call, message)) {
      self->Remove(id);
      call->Fail(NoRoom());
      return nullptr;
    }
    return std::make_shared<Unary>(self, id);
  };
  return method;
}

Method HostCalls::StreamMethod() {
  Method method;
  method.stream = [self = shared_from_this()](std::shared_ptr<StreamCall> call) {
    auto stream = std::make_shared<Stream>(self, std::move(call));
    stream->Start();
    return stream;
  };
  return method;
}

void HostCalls::Answer(std::int64_t id, std::string message) {
  if (const std::shared_ptr<Stream> stream = FindStream(id)) {
    stream->Answer(std::move(message));
  } else if (const Open open = Remove(id); open.unary != nullptr) {
    open.unary->Answer(Message::Of(std::move(message)));
  }
}

void HostCalls::Fail(std::int64_t id, const Status& status) {
  if (const std::shared_ptr<Stream> stream = FindStream(id)) {
    stream->Fail(status);
  } else if (const Open open = Remove(id); open.unary != nullptr) {
    open.unary->Fail(status);
  }
}

std::int64_t HostCalls::num_open() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<std::int64_t>(open_.size());
}

std::int64_t HostCalls::Add(Open open) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (open.unary != nullptr) ++lines_[open.connection_number].num_handed;
  open_[next_id_] = std::move(open);
  return next_id_++;
}

HostCalls::Open HostCalls::Remove(std::int64_t id) {
  Open open = RemoveAlone(id);
  if (open.unary != nullptr) HandNext(open.connection_number);
  return open;
}

HostCalls::Open HostCalls::RemoveAlone(std::int64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = open_.find(id);
  if (found == open_.end()) return {};
  Open open = std::move(found->second);
  open_.erase(found);
  if (open.unary == nullptr) return open;
  const auto line = lines_.find(open.connection_number);
  if (open.is_waiting) {
    // Its ID stays in the line until it is its turn.
    Count(&line->second, -1, open.waiting);
  } else {
    --line->second.num_handed;
  }
  if (line->second.num_handed == 0 && line->second.num_waiting == 0) lines_.erase(line);
  return open;
}

void HostCalls::Count(Line* line, int num, const Bytes& message) {
  const std::int64_t num_bytes = num * static_cast<std::int64_t>(message.view.size());
  line->num_waiting += num;
  line->num_bytes += num_bytes;
  num_waiting_ += num;
  num_bytes_ += num_bytes;
}

bool HostCalls::HandOrKeep(std::int64_t id, const std::shared_ptr<UnaryCall>& call,
                           const Bytes& message) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Line& line = lines_[call->connection_number()];
    if (line.num_handed > kAtOnce || line.num_waiting > 0) {
      const auto size = static_cast<std::int64_t>(message.view.size());
      if (!HasRoom(line, size)) return false;
      Open& open = open_[id];
      open.waiting = message;
      open.is_waiting = true;
      --line.num_handed;
      line.waiting.push_back(id);
      Count(&line, 1, message);
      return true;
    }
  }
  return Hand(id, *call, message, true);
}

bool HostCalls::HasRoom(const Line& line, std::int64_t num_bytes) const {
  const auto num_lines = static_cast<std::int64_t>(lines_.size());
  const auto fits = [num_lines](std::int64_t all, std::int64_t own, std::int64_t most) {
    return all <= most || own <= most / num_lines;
  };
  return fits(num_waiting_ + 1, line.num_waiting + 1, most_waiting_.max_entries) &&
         fits(num_bytes_ + num_bytes, line.num_bytes + num_bytes, most_waiting_.max_bytes);
}

void HostCalls::HandNext(std::uint64_t connection_number) {
  std::int64_t id = 0;
  Bytes message;
  while (const std::shared_ptr<UnaryCall> call = TakeNext(connection_number, &id, &message)) {
    if (Hand(id, *call, message, true)) return;
    RemoveAlone(id);
    call->Fail(NoRoom());
  }
}

std::shared_ptr<UnaryCall> HostCalls::TakeNext(std::uint64_t connection_number, std::int64_t* id,
                                               Bytes* message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = lines_.find(connection_number);
  if (found == lines_.end()) return nullptr;
  Line& line = found->second;
  while (line.num_handed < kAtOnce && !line.waiting.empty()) {
    *id = line.waiting.front();
    line.waiting.pop_front();
    const auto open = open_.find(*id);
    // Its client has cancelled it.
    if (open == open_.end()) continue;
    *message = std::exchange(open->second.waiting, {});
    open->second.is_waiting = false;
    Count(&line, -1, *message);
    ++line.num_handed;
    return open->second.unary;
  }
  return nullptr;
}

std::shared_ptr<HostCalls::Stream> HostCalls::FindStream(std::int64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = open_.find(id);
  return found == open_.end() ? nullptr : found->second.stream;
}

bool HostCalls::Hand(std::int64_t id, const Call& call, const Bytes& message, bool is_last) {
  CallEvent event;
  event.id = id;
  event.method = call.method();
  event.message = message.view;
  if (std::isfinite(call.deadline_s())) event.deadline_s = call.deadline_s();
  event.metadata = call.AllMetadata();
  event.peer = call.peer();
  event.is_last = is_last;
  return take_(std::move(event));
}

}  // namespace recsys
