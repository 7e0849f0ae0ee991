// The socket's side of a connection: writing, timeouts, and closing.

#include "port/connection/connection.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "port/polling/loop.h"

namespace recsys::http2 {
namespace {

// Output prepared for the socket at a time; the rest stays in nghttp2 and in calls.
constexpr std::size_t kOutBytes = 64 << 10;
// A connection whose socket is blocked with this much output pending is not read from.
constexpr std::size_t kPauseBytes = 256 << 10;
// How often the output buffer is filled and written in a round, while other connections wait.
constexpr int kMaxPulls = 4;
// How long a draining connection may take to learn that new calls should go elsewhere.
constexpr double kDrainNoticeS = 1.0;
// How long a connection is read from after the last frame was sent.
constexpr double kLingerS = 0.5;
// Shortest interval between two checks of a connection's timeouts.
constexpr double kLeastWaitS = 0.01;
// Seconds' worth of resets and control frames that may arrive at once.
constexpr double kBurstS = 10.0;

/// 0 means no limit.
double After(double since_s, double limit_s) { return limit_s > 0 ? since_s + limit_s : kNever; }

TokenBucket MakeBucket(double per_s, double now_s) {
  if (per_s == 0) per_s = kNever;
  return {per_s, kBurstS * per_s, now_s};
}

std::string BigEndian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(value >> shift & 0xff));
  }
  return bytes;
}

std::string GoawayFrame(int last_stream_id, std::uint32_t code, std::string_view text) {
  constexpr std::size_t kFixedBytes = 8;
  const auto size = static_cast<std::uint32_t>(kFixedBytes + text.size());
  // Length in three bytes, type, no flags, the connection as a whole.
  std::string frame = BigEndian(size << 8 | NGHTTP2_GOAWAY);
  frame.push_back('\0');
  frame += BigEndian(0) + BigEndian(static_cast<std::uint32_t>(last_stream_id)) + BigEndian(code);
  frame += text;
  return frame;
}

}  // namespace

std::unique_ptr<Polled> RpcPortState::Open(Loop* loop, std::int64_t id, FileHandle file) {
  return std::make_unique<Connection>(loop, id, std::move(file), this);
}

Connection::Connection(Loop* loop, std::int64_t id, FileHandle file, RpcPortState* port)
    : Polled(loop, id, std::move(file), port),
      port_(*port),
      peer_(std::make_shared<const std::string>(PeerOf(socket_.number()))),
      read_bytes_(loop->buffer().size()),
      resets_(MakeBucket(port_.limits.max_resets_per_s, loop->now_s())),
      control_frames_(MakeBucket(port_.limits.max_control_frames_per_s, loop->now_s())),
      opened_s_(loop->now_s()),
      read_s_(opened_s_),
      idle_since_s_(opened_s_),
      pinged_s_(kNever),
      drain_began_s_(kNever) {
  ++port_.counters.num_open;
  CountMemory();
  account_.Publish();
  StartPolling();
}

Connection::~Connection() {
  CloseNow();
  account_.Release();
  --port_.counters.num_open;
}

bool Connection::MayLeave() const {
  return state_ == State::kOpen && drain_began_s_ == kNever && !close_reason_;
}

void Connection::LeaveFor(Loop* to) {
  for (const auto& [stream_id, call] : calls_) loop_->timers().Remove(call.get());
  Polled::LeaveFor(to);
}

void Connection::Join() {
  Polled::Join();
  for (const auto& [stream_id, call] : calls_) {
    if (!call->end) loop_->timers().Set(call.get(), call->deadline_s());
  }
  if (IsBusy()) loop_->BusyUntil(busy_until_s_);
  if (has_backlog_) loop_->AddBacklog(id());
}

bool Connection::Pull() {
  bool has_more = true;
  while (out_.size() - out_at_ < kOutBytes) {
    const std::uint8_t* data = nullptr;
    const ssize_t size = nghttp2_session_mem_send(session_.get(), &data);
    if (size <= 0) {
      has_more = false;
      if (size < 0 && !close_reason_) CloseNow();
      break;
    }
    out_.append(reinterpret_cast<const char*>(data), static_cast<std::size_t>(size));
  }
  return has_more;
}

void Connection::Flush() {
  is_dirty_ = false;
  bool has_more = true;
  for (int i = 0; has_more && state_ == State::kOpen; ++i) {
    if (i == kMaxPulls) {
      is_dirty_ = true;
      loop_->FlushLater(id());
      break;
    }
    if (!close_reason_) has_more = Pull();
    if (close_reason_) CloseFor(*close_reason_);
    if (is_blocked_ || !WriteOut()) has_more = false;
    // The callbacks may write and read more.
    std::vector<Written> written;
    written.swap(written_);
    for (const Written& one : written) one(true);
    has_more |= !written.empty() && !is_blocked_;
  }
  if (state_ == State::kLingering && !is_blocked_) WriteOut();
  CountMemory();
  account_.Publish();
  CloseIfOver();
  UpdateInterest();
}

bool Connection::MayRead() const { return out_.size() - out_at_ < kPauseBytes; }

void Connection::UpdateInterest() {
  if (state_ == State::kClosed) return;
  if (MayRead() && (!unread_.empty() || !unfinished_turns_.empty())) LeaveForLater();
  std::uint32_t wanted = 0;
  // Input of a connection with a backlog waits for its turn.
  if (MayRead() && !has_backlog_) wanted |= EPOLLIN;
  if (is_blocked_) wanted |= EPOLLOUT;
  PollFor(wanted);
}

void Connection::CloseIfOver() {
  if (state_ == State::kLingering && out_.empty() && !has_ended_writing_) {
    has_ended_writing_ = true;
    socket_.EndWriting();
    return;
  }
  if (state_ != State::kOpen || !out_.empty()) return;
  nghttp2_session* const session = session_.get();
  if (nghttp2_session_want_read(session) != 0 || nghttp2_session_want_write(session) != 0) return;
  // The first GOAWAY alone does not end it: the client may not have read it yet.
  if (is_draining_ && !is_last_call_known_ && calls_.empty()) return;
  DropCalls();
  state_ = State::kLingering;
  lingers_until_s_ = loop_->now_s() + kLingerS;
  loop_->timers().Set(this, lingers_until_s_);
  CloseIfOver();
}

void Connection::Drain() {
  is_draining_ = true;
  if (state_ == State::kHandshake || state_ == State::kWaiting) return CloseNow();
  if (state_ != State::kOpen || drain_began_s_ != kNever) return;
  drain_began_s_ = loop_->now_s();
  // Calls in transit are still accepted. Once this notice is sent, a PING follows.
  Took(nghttp2_submit_shutdown_notice(session_.get()));
  loop_->timers().Set(this, NextTime());
  MarkDirty();
}

void Connection::FinishDrain() {
  if (std::exchange(is_last_call_known_, true)) return;
  nghttp2_session* const session = session_.get();
  Took(nghttp2_submit_goaway(session, NGHTTP2_FLAG_NONE,
                             nghttp2_session_get_last_proc_stream_id(session), NGHTTP2_NO_ERROR,
                             nullptr, 0));
  MarkDirty();
}

void Connection::OnPingReply(const std::uint8_t* data) {
  if (drain_began_s_ != kNever && std::equal(std::begin(kDrainPing), std::end(kDrainPing), data))
    FinishDrain();
}

void Connection::End() {
  if (state_ == State::kOpen) {
    for (const auto& [stream_id, call] : calls_) {
      Abort(*call, {StatusCode::kCancelled, "Cancelled on the server side", 0});
    }
    Flush();
  }
  if (state_ == State::kOpen) {
    nghttp2_session_terminate_session(session_.get(), NGHTTP2_NO_ERROR);
    Flush();
  }
  CloseNow();
}

void Connection::CloseFor(CloseReason reason) {
  if (state_ != State::kOpen) return CloseNow();
  switch (reason) {
    case CloseReason::kResets:
      ++port_.counters.closed_resets;
      return SendGoaway(NGHTTP2_ENHANCE_YOUR_CALM, "too many calls were reset");
    case CloseReason::kControlFrames:
      ++port_.counters.closed_control_frames;
      return SendGoaway(NGHTTP2_ENHANCE_YOUR_CALM, "too many frames without data");
    case CloseReason::kHeaders:
      ++port_.counters.closed_headers;
      return SendGoaway(NGHTTP2_ENHANCE_YOUR_CALM, "too many header fields");
    case CloseReason::kMemory:
      ++port_.counters.closed_memory;
      return SendGoaway(NGHTTP2_ENHANCE_YOUR_CALM, "unfinished calls or unread answers");
    case CloseReason::kSession:
      return SendGoaway(NGHTTP2_INTERNAL_ERROR, "the server could not go on");
  }
}

// Written by hand: nghttp2 is not used any more, and out_ contains complete frames.
void Connection::SendGoaway(std::uint32_t code, std::string_view text) {
  if (state_ != State::kOpen) return CloseNow();
  const int last = nghttp2_session_get_last_proc_stream_id(session_.get());
  DropCalls();
  out_.append(GoawayFrame(last, code, text));
  state_ = State::kLingering;
  lingers_until_s_ = loop_->now_s() + kLingerS;
  loop_->timers().Set(this, lingers_until_s_);
  MarkDirty();
}

void Connection::DropCalls() {
  Calls calls;
  calls.swap(calls_);
  for (const auto& [stream_id, call] : calls) Forget(*call);
  std::vector<Written> written;
  written.swap(written_);
  for (const Written& one : written) one(false);
  session_.reset();
  std::string().swap(unread_);
  headers_ = RequestHeaders();
  CountMemory();
  account_.Closed();
}

void Connection::CloseNow() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  StopPolling();
  DropCalls();
  MarkDirty();
}

double Connection::NextTime() const {
  const ConnectionLimits& limits = port_.limits;
  if (state_ == State::kLingering) return lingers_until_s_;
  if (state_ != State::kOpen) return After(opened_s_, limits.handshake_timeout_s);
  double next_s = kNever;
  if (!has_had_call_) next_s = After(opened_s_, limits.first_call_timeout_s);
  if (drain_began_s_ == kNever) {
    next_s = std::min(next_s, After(opened_s_, limits.max_connection_age_s));
    if (calls_.empty())
      next_s = std::min(next_s, After(idle_since_s_, limits.max_connection_idle_s));
  } else if (!is_last_call_known_) {
    next_s = std::min(next_s, drain_began_s_ + kDrainNoticeS);
  }
  if (!calls_.empty()) {
    next_s = std::min(next_s, After(loop_->now_s(), limits.message_timeout_s / 4));
  }
  const double silent_s = pinged_s_ == kNever ? After(read_s_, limits.keepalive_s)
                                              : After(pinged_s_, limits.keepalive_timeout_s);
  return std::min(next_s, silent_s);
}

void Connection::NoteIdle() {
  idle_since_s_ = loop_->now_s();
  loop_->timers().SetEarlier(this, After(idle_since_s_, port_.limits.max_connection_idle_s));
}

void Connection::WatchMessages() {
  loop_->timers().SetEarlier(this, After(loop_->now_s(), port_.limits.message_timeout_s / 4));
}

void Connection::OnDue(double now_s) {
  if (state_ == State::kClosed) return;
  CheckTimes(now_s);
  if (state_ == State::kClosed) return;
  loop_->timers().Set(this, std::max(NextTime(), now_s + kLeastWaitS));
}

void Connection::CheckTimes(double now_s) {
  const ConnectionLimits& limits = port_.limits;
  if (state_ == State::kLingering) return CloseNow();
  if (state_ != State::kOpen) {
    ++port_.counters.closed_silent;
    return CloseNow();
  }
  if (drain_began_s_ != kNever) {
    if (now_s >= drain_began_s_ + kDrainNoticeS) FinishDrain();
  } else if (!has_had_call_ && now_s >= After(opened_s_, limits.first_call_timeout_s)) {
    ++port_.counters.closed_silent;
    Drain();
  } else if (now_s >= After(opened_s_, limits.max_connection_age_s) ||
             (calls_.empty() && now_s >= After(idle_since_s_, limits.max_connection_idle_s))) {
    Drain();
  }
  CheckMessages(now_s);
  CheckSilence(now_s);
}

void Connection::CheckMessages(double now_s) {
  std::vector<WireCall*> stalled;
  for (const auto& [stream_id, call] : calls_) {
    if (call->is_waiting_for_room || (!call->is_watched && !call->AwaitsMessage())) continue;
    if (now_s >= After(call->grew_s, port_.limits.message_timeout_s)) stalled.push_back(call.get());
  }
  for (WireCall* call : stalled) {
    ++port_.counters.stalled_messages;
    const char* const what = call->is_watched ? "the rest of the message" : "the message";
    Abort(*call, {StatusCode::kCancelled, std::string(what) + " did not arrive in time", 0});
  }
}

void Connection::CheckSilence(double now_s) {
  if (pinged_s_ != kNever) {
    if (now_s < After(pinged_s_, port_.limits.keepalive_timeout_s)) return;
    ++port_.counters.closed_silent;
    return CloseNow();
  }
  if (now_s < After(read_s_, port_.limits.keepalive_s)) return;
  pinged_s_ = now_s;
  Took(nghttp2_submit_ping(session_.get(), NGHTTP2_FLAG_NONE, nullptr));
  MarkDirty();
}

}  // namespace recsys::http2
