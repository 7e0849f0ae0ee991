// The input of a connection. A turn handles a few calls; what is left waits for the loop's backlog,
// so that no connection delays the others by more than a turn.

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "port/connection/connection.h"
#include "port/connection/session.h"
#include "port/polling/loop.h"

namespace recsys::http2 {
namespace {

// Calls, and messages of streams, that a turn begins at most; and once the loop's round has taken
// long, so that many connections with much input do not delay the next round.
constexpr int kTurnCalls = 32;
constexpr int kLateTurnCalls = 2;
// Calls of all connections in such a round, if they are few.
constexpr int kLateCalls = 128;
// What a turn reads at most, in a round that has taken long.
constexpr std::size_t kLateReadBytes = 8 << 10;
// How much of the input is read at a time while a backlog is left.
constexpr std::size_t kBacklogReadBytes = 4 << 10;
// How long a connection counts as busy after it had more input than a turn takes.
constexpr double kBusyS = 10e-3;
// Share of a connection's bound on memory that is left when it gets no new calls.
constexpr std::int64_t kRoomShare = 16;
// Its least, if the bound allows: for input and output that wait for a turn.
constexpr std::int64_t kLeastRoomBytes = 256 << 10;
// Memory of a TLS connection in OpenSSL 3.0, measured.
constexpr std::size_t kTlsBytes = 24 << 10;
// At most how much a connection is read from after the last frame was sent.
constexpr std::size_t kLingerBytes = 256 << 10;

}  // namespace

void Connection::OnReady(std::uint32_t events) {
  if (state_ == State::kHandshake) ContinueHandshake();
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) {
    if (IsBusy()) {
      // Others go first: they may wait for each answer.
      LeaveForLater();
    } else if (!has_backlog_) {
      Read();
    }
  }
  is_blocked_ = is_blocked_ && (events & EPOLLOUT) == 0;
  MarkDirty();
}

void Connection::OnTurn() {
  has_backlog_ = false;
  BeBusy();
  if (MayRead()) Read();
  MarkDirty();
}

void Connection::ContinueHandshake() {
  switch (socket_.Handshake()) {
    case IoResult::kDone:
      state_ = State::kWaiting;
      return;
    case IoResult::kBlocked:
      return;
    case IoResult::kClosed:
      CloseNow();
  }
}

void Connection::Read() {
  switch (state_) {
    case State::kHandshake:
    case State::kClosed:
      return;
    case State::kWaiting:
    case State::kOpen:
      num_turn_calls_ = 0;
      num_turn_bytes_ = 0;
      if (ReadInTurn() == Input::kLeft) {
        BeBusy();
        LeaveForLater();
      }
      NoteWork(loop_->now_s(), num_turn_calls_, num_turn_bytes_);
      return;
    case State::kLingering:
      Linger();
  }
}

Connection::Input Connection::ReadInTurn() {
  const bool had_unread = !unread_.empty();
  if (GoOnWithStreams() == Input::kLeft || HandleUnread() == Input::kLeft) return Input::kLeft;
  if (state_ != State::kWaiting && state_ != State::kOpen) return Input::kAllHandled;
  std::vector<char>& buffer = loop_->buffer();
  const std::size_t most = loop_->IsRoundLong() ? kLateReadBytes : buffer.size();
  const std::size_t asked = std::min(read_bytes_, most);
  std::size_t num_read = 0;
  switch (socket_.Read(buffer.data(), asked, &num_read)) {
    case IoResult::kDone:
      break;
    case IoResult::kBlocked:
      return Input::kAllHandled;
    case IoResult::kClosed:
      CloseNow();
      return Input::kAllHandled;
  }
  num_turn_bytes_ = num_read;
  // More may be left in the socket.
  if (num_read == asked) BeBusy();
  const std::string_view data(buffer.data(), num_read);
  const std::size_t used = Receive(data);
  if (state_ != State::kOpen) return Input::kAllHandled;
  if (used < data.size()) {
    KeepUnread(data.substr(used));
    return Input::kLeft;
  }
  read_bytes_ = buffer.size();
  // epoll tells of what is left in the socket, but after the connections that have no backlog.
  const bool has_more =
      socket_.has_pending() || (had_unread && num_read == asked) || !unfinished_turns_.empty();
  return has_more ? Input::kLeft : Input::kAllHandled;
}

bool Connection::IsBusy() const { return loop_->now_s() < busy_until_s_; }

void Connection::BeBusy() {
  busy_until_s_ = loop_->now_s() + kBusyS;
  loop_->BusyUntil(busy_until_s_);
}

bool Connection::IsTurnOver() const {
  return num_turn_calls_ >= kTurnCalls ||
         (num_turn_calls_ >=
              std::max(kLateTurnCalls, kLateCalls / std::max(loop_->num_busy(), 1)) &&
          loop_->IsRoundLong());
}

void Connection::KeepUnread(std::string_view data) {
  unread_.assign(data);
  unread_at_ = 0;
  read_bytes_ = kBacklogReadBytes;
}

/// Handles the input that an earlier turn has left.
Connection::Input Connection::HandleUnread() {
  if (unread_.empty()) return Input::kAllHandled;
  unread_at_ += Receive(std::string_view(unread_).substr(unread_at_));
  if (state_ == State::kOpen && unread_at_ < unread_.size()) return Input::kLeft;
  std::string().swap(unread_);
  return Input::kAllHandled;
}

bool Connection::MayGoOn(WireCall& call) {
  if (IsTurnOver()) {
    unfinished_turns_.push_back(call.stream_id());
    LeaveForLater();
    return false;
  }
  ++num_turn_calls_;
  return true;
}

/// Goes on with the messages of streams that an earlier turn has left.
Connection::Input Connection::GoOnWithStreams() {
  for (std::size_t left = unfinished_turns_.size(); left > 0; --left) {
    if (IsTurnOver()) return Input::kLeft;
    const std::int32_t stream_id = unfinished_turns_.front();
    unfinished_turns_.pop_front();
    if (WireCall* const call = Find(stream_id)) call->OnData();
  }
  return unfinished_turns_.empty() ? Input::kAllHandled : Input::kLeft;
}

void Connection::LeaveForLater() {
  if (!std::exchange(has_backlog_, true)) loop_->AddBacklog(id());
}

std::size_t Connection::Receive(std::string_view data) {
  read_s_ = loop_->now_s();
  pinged_s_ = kNever;
  // Idle connections get no session.
  if (state_ == State::kWaiting && !OpenSession()) {
    CloseNow();
    return 0;
  }
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data.data());
  const ssize_t used = nghttp2_session_mem_recv(session_.get(), bytes, data.size());
  CountMemory();
  if (close_reason_) {
    CloseFor(*close_reason_);
  } else if (HoldsTooMuch()) {
    CloseFor(CloseReason::kMemory);
  } else if (used < 0) {
    // Not HTTP/2, or more than nghttp2 tolerates.
    SendGoaway(NGHTTP2_PROTOCOL_ERROR, nghttp2_strerror(static_cast<int>(used)));
  } else {
    return static_cast<std::size_t>(used);
  }
  return 0;
}

bool Connection::HoldsTooMuch() const {
  const std::int64_t most = MemoryBound(port_.limits, port_.limits.max_connection_bytes);
  return most > 0 && account_.num_bytes() > most;
}

// Before a connection is closed for what it holds, it gets no new calls.
bool Connection::MayOpenCall() const {
  const std::int64_t most = MemoryBound(port_.limits, port_.limits.max_connection_bytes);
  const std::int64_t least_room = std::min(most / 2, std::max(most / kRoomShare, kLeastRoomBytes));
  return account_.MayOpen() && (most <= 0 || account_.num_bytes() <= most - least_room);
}

void Connection::CountMemory() {
  std::size_t held = sizeof(Connection) + unread_.capacity() + out_.capacity();
  held += headers_.memory_bytes() + calls_.bucket_count() * sizeof(void*);
  if (socket_.has_tls()) held += kTlsBytes;
  CountHeld(static_cast<std::int64_t>(held) + session_memory_.num_bytes());
}

bool Connection::OpenSession() {
  nghttp2_session* session = nullptr;
  if (nghttp2_session_server_new3(&session, SessionCallbacks::Get(), this, SessionOptions(),
                                  session_memory_.functions()) != 0) {
    return false;
  }
  session_.reset(session);
  state_ = State::kOpen;
  if (!SubmitSettings(session, port_.limits)) return false;
  loop_->timers().Set(this, NextTime());
  if (is_draining_) Drain();
  return true;
}

void Connection::Linger() {
  std::vector<char>& buffer = loop_->buffer();
  std::size_t num_read = 0;
  if (socket_.Read(buffer.data(), buffer.size(), &num_read) == IoResult::kClosed) return CloseNow();
  num_lingered_ += num_read;
  if (num_lingered_ > kLingerBytes) CloseNow();
}

}  // namespace recsys::http2
