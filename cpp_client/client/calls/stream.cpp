#include "client/calls/stream.h"

#include <string>
#include <utility>

#include "base/text.h"
#include "client/messages.h"

namespace recsys {

using client::Event;

ClientStream::State::State(client::Engine* engine, Client::StreamCallback callback)
    : engine_(engine), client_options_(engine->options()), callback_(std::move(callback)) {}

void ClientStream::State::Start(const CallOptions& options) {
  engine_->Add(shared_from_this());
  if (options.cancellation != nullptr) {
    link_ = CancellationLink(options.cancellation, [weak = weak_from_this()] {
      if (const auto state = weak.lock()) state->Cancel();
    });
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (options.timeout_s) context_.set_deadline(client::After(*options.timeout_s));
  call_ = engine_->stub().PrepareCall(&context_, client::kPredictStream, engine_->queue());
  call_->StartCall(Pending(&started_));
  if (is_cancelled_) context_.TryCancel();
}

void ClientStream::State::Send(const ClientRequest& request) {
  grpc::ByteBuffer bytes = client::BytesOf(request, client_options_);
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string& name = request.request_id();
  if (name.empty()) {
    throw Error(ErrorKind::kRequest,
                "request_id: got nothing, expected one for each request of a stream");
  }
  if (is_closed_) {
    throw Error(ErrorKind::kRequest, "stream: got a request, expected none after Finish");
  }
  if (is_over_) {
    throw error_ ? *error_ : ClientError(StatusCode::kCancelled, "the server ended the stream");
  }
  const auto num_bytes = static_cast<std::int64_t>(bytes.Length());
  if (!unsent_.empty() && num_unsent_bytes_ + num_bytes > client_options_.max_stream_bytes) {
    throw ClientError(StatusCode::kResourceExhausted,
                      "stream: " + std::to_string(num_unsent_bytes_) +
                          " bytes wait to be sent, at most " +
                          std::to_string(client_options_.max_stream_bytes) +
                          " may; send the request again after further answers");
  }
  if (!unanswered_.insert(name).second) {
    throw Error(ErrorKind::kRequest,
                "request_id: got " + Short(name) + " again, expected one that is not unanswered");
  }
  num_unsent_bytes_ += num_bytes;
  unsent_.push_back(std::move(bytes));
  WriteNext();
}

void ClientStream::State::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  WriteNext();
}

std::optional<ClientError> ClientStream::State::WaitUntilEnded() {
  std::unique_lock<std::mutex> lock(mutex_);
  has_ended_.wait(lock, [this] { return is_ended_; });
  return error_;
}

void ClientStream::State::Cancel() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_cancelled_ = true;
  if (call_ != nullptr) context_.TryCancel();
}

void* ClientStream::State::Pending(Step* step) {
  ++num_pending_;
  return static_cast<Event*>(step);
}

void ClientStream::State::After(bool ok, void (State::*on)(bool)) {
  (this->*on)(ok);
  bool is_over;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over = --num_pending_ == 0 && is_finishing_;
  }
  if (is_over) End();
}

void ClientStream::State::OnStarted(bool ok) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!ok) return FinishCall();
  is_started_ = true;
  ReadNext();
  WriteNext();
}

void ClientStream::State::WriteNext() {
  if (!is_started_ || is_writing_ || is_finishing_ || is_half_closed_) return;
  if (!unsent_.empty()) {
    is_writing_ = true;
    num_unsent_bytes_ -= static_cast<std::int64_t>(unsent_.front().Length());
    call_->Write(unsent_.front(), Pending(&written_));
    unsent_.pop_front();
  } else if (is_closed_) {
    is_writing_ = is_half_closed_ = true;
    call_->WritesDone(Pending(&written_));
  }
}

void ClientStream::State::OnWritten(bool ok) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // If the stream is broken, the read reports it; writing stops here.
  is_writing_ = !ok;
  WriteNext();
}

void ClientStream::State::ReadNext() { call_->Read(&received_, Pending(&read_)); }

void ClientStream::State::OnRead(bool ok) {
  if (ok) Answer();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ok && !damage_) {
    ReadNext();
  } else {
    FinishCall();
  }
}

void ClientStream::State::Answer() {
  try {
    client::StreamAnswer answer = client::StreamAnswerOf(&received_);
    bool is_asked;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_asked = unanswered_.erase(answer.request_id) != 0;
    }
    if (is_asked) callback_(answer.request_id, std::move(answer.result));
  } catch (const ClientError& error) {
    const std::lock_guard<std::mutex> lock(mutex_);
    damage_ = error;
    context_.TryCancel();
  }
}

void ClientStream::State::FinishCall() {
  if (is_finishing_) return;
  is_finishing_ = true;
  call_->Finish(&status_, Pending(&finished_));
}

void ClientStream::State::OnFinished(bool /*ok*/) {}

void ClientStream::State::End() {
  link_ = CancellationLink();
  std::unordered_set<std::string> left;
  ClientError why(StatusCode::kCancelled, "the server ended the stream before it answered");
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (damage_) {
      error_ = damage_;
    } else if (is_cancelled_ && !status_.ok()) {
      error_ = ClientError(StatusCode::kCancelled, "cancelled by the caller");
    } else if (!status_.ok()) {
      error_ = engine_->ErrorOf(status_, context_, 1);
    } else if (!unanswered_.empty()) {
      error_ = why;
    }
    if (error_) why = *error_;
    is_over_ = true;
    left.swap(unanswered_);
  }
  for (const std::string& request_id : left) callback_(request_id, why);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ended_ = true;
    has_ended_.notify_all();
  }
  engine_->Remove(this);
}

ClientStream::ClientStream(std::shared_ptr<State> state) : state_(std::move(state)) {}

ClientStream::~ClientStream() {
  state_->Cancel();
  state_->WaitUntilEnded();
}

void ClientStream::Send(const ClientRequest& request) { state_->Send(request); }

void ClientStream::Finish() {
  state_->Close();
  if (const auto error = state_->WaitUntilEnded()) throw *error;
}

void ClientStream::Cancel() { state_->Cancel(); }

}  // namespace recsys
