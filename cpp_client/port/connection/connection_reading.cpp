// The input of a connection, through the callbacks of nghttp2. A turn handles a few calls; what is
// left waits for the loop's backlog, so that no connection delays the others by more than a turn.

#include <nghttp2/nghttp2.h>
#include <sys/epoll.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "port/connection/connection.h"
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
// Total a connection's calls may send before it is read: for networks with long round trips.
constexpr int kConnectionWindowBytes = 4 << 20;
// Effectively unlimited: the port's own bound on resets applies.
constexpr std::uint64_t kManyResets = 1 << 30;

Connection& Of(void* connection) { return *static_cast<Connection*>(connection); }

std::string_view View(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

struct DeleteCallbacks {
  void operator()(nghttp2_session_callbacks* callbacks) const {
    nghttp2_session_callbacks_del(callbacks);
  }
};
struct DeleteOptions {
  void operator()(nghttp2_option* options) const { nghttp2_option_del(options); }
};

}  // namespace

/// The functions called by nghttp2.
struct Callback {
  static int BeginFrame(nghttp2_session*, const nghttp2_frame_hd* head, void* connection) {
    return Of(connection).OnFrameHeader(*head);
  }
  static int BeginHeaders(nghttp2_session*, const nghttp2_frame* frame, void* connection) {
    if (frame->headers.cat == NGHTTP2_HCAT_REQUEST)
      Of(connection).OnHeadersBegin(frame->hd.stream_id);
    return 0;
  }
  static int Header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name,
                    std::size_t name_size, const std::uint8_t* value, std::size_t value_size,
                    std::uint8_t, void* connection) {
    return Of(connection)
        .OnHeader(frame->hd.stream_id, View(name, name_size), View(value, value_size));
  }
  static int Frame(nghttp2_session*, const nghttp2_frame* frame, void* connection) {
    Of(connection).OnFrame(*frame);
    return 0;
  }
  static int Data(nghttp2_session*, std::uint8_t, std::int32_t stream_id, const std::uint8_t* data,
                  std::size_t size, void* connection) {
    Of(connection).OnData(stream_id, View(data, size));
    return 0;
  }
  static int StreamClose(nghttp2_session*, std::int32_t stream_id, std::uint32_t code,
                         void* connection) {
    Of(connection).OnStreamClosed(stream_id, code);
    return 0;
  }
  static int FrameSent(nghttp2_session*, const nghttp2_frame* frame, void* connection) {
    return Of(connection).OnFrameSent(*frame);
  }
  static int SendData(nghttp2_session*, nghttp2_frame*, const std::uint8_t* head, std::size_t size,
                      nghttp2_data_source* source, void* connection) {
    Of(connection).SendData(*static_cast<WireCall*>(source->ptr), head, size);
    return 0;
  }
};

namespace {

const nghttp2_session_callbacks* SessionCallbacks() {
  static const std::unique_ptr<nghttp2_session_callbacks, DeleteCallbacks> callbacks = [] {
    nghttp2_session_callbacks* made = nullptr;
    if (nghttp2_session_callbacks_new(&made) != 0) throw std::bad_alloc();
    nghttp2_session_callbacks_set_on_begin_frame_callback(made, Callback::BeginFrame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(made, Callback::BeginHeaders);
    nghttp2_session_callbacks_set_on_header_callback(made, Callback::Header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(made, Callback::Frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(made, Callback::Data);
    nghttp2_session_callbacks_set_on_stream_close_callback(made, Callback::StreamClose);
    nghttp2_session_callbacks_set_on_frame_send_callback(made, Callback::FrameSent);
    nghttp2_session_callbacks_set_send_data_callback(made, Callback::SendData);
    return std::unique_ptr<nghttp2_session_callbacks, DeleteCallbacks>(made);
  }();
  return callbacks.get();
}

/// Options of every server session.
const nghttp2_option* SessionOptions() {
  static const std::unique_ptr<nghttp2_option, DeleteOptions> options = [] {
    nghttp2_option* made = nullptr;
    if (nghttp2_option_new(&made) != 0) throw std::bad_alloc();
    // Windows are enlarged as messages are taken, not as bytes are read.
    nghttp2_option_set_no_auto_window_update(made, 1);
    nghttp2_option_set_no_closed_streams(made, 1);
    nghttp2_option_set_stream_reset_rate_limit(made, kManyResets, kManyResets);
    return std::unique_ptr<nghttp2_option, DeleteOptions>(made);
  }();
  return options.get();
}

/// Submits the server's first SETTINGS. Returns false if out of memory.
bool SubmitSettings(nghttp2_session* session, const ConnectionLimits& limits) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::int64_t streams =
      limits.max_concurrent_streams == 0 ? kMost : std::min(limits.max_concurrent_streams, kMost);
  const nghttp2_settings_entry entries[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, static_cast<std::uint32_t>(streams)},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE,
       static_cast<std::uint32_t>(std::min(limits.max_header_bytes, kMost))},
      {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
  };
  return nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, entries, std::size(entries)) == 0 &&
         nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0,
                                               kConnectionWindowBytes) == 0;
}

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
  if (nghttp2_session_server_new3(&session, SessionCallbacks(), this, SessionOptions(),
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
