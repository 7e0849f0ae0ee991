// The call side of a connection: requests, responses, and their accounting.

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "port/connection/connection.h"
#include "port/polling/loop.h"

namespace recsys::http2 {
namespace {

// What a client may initially send per call (HTTP/2's default window).
constexpr std::size_t kStreamWindowBytes = 65535;
// Costs of frames without data. A new initial window is applied to every open call.
constexpr double kControlFrame = 1;
constexpr double kSettingsFrame = 10;
constexpr double kSettingsPerCall = 0.25;
// DATA frames with fewer bytes also count as control frames, unless they end a request.
constexpr std::size_t kSmallDataBytes = 64;
// Tokens returned for an answered call, for a DATA frame of an answer, and for a message in it: a
// client sends messages of a stream in small frames, and gets many answers in one.
constexpr double kControlPerAnswer = 8;
constexpr double kControlPerDataFrame = 2;
constexpr double kControlPerMessage = 2;
constexpr double kResetsPerAnswer = 1;
// Factor by which a call's header fields may exceed their limit before the connection is closed.
constexpr std::size_t kExcessHeaders = 8;
// Total room granted to large messages of one connection, unless a single one needs more.
constexpr std::size_t kRoomBytes = 16 << 20;
// Memory of a call beside its headers and messages: its object with the first blocks of its queues,
// and its entries in maps.
constexpr std::size_t kCallBytes = 1536;
// A connection with fewer open calls than this is light, beside others with a backlog.
constexpr std::size_t kLightCalls = 4;
// nghttp2's error code after which the connection is closed.
constexpr int kStop = NGHTTP2_ERR_CALLBACK_FAILURE;

nghttp2_nv Field(std::string_view name, std::string_view value) {
  // nghttp2 does not write, and copies what it keeps.
  auto* const name_data = reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data()));
  auto* const value_data = reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data()));
  return {name_data, value_data, name.size(), value.size(), NGHTTP2_NV_FLAG_NO_COPY_NAME};
}

nghttp2_nv Constant(std::string_view name, std::string_view value) {
  nghttp2_nv field = Field(name, value);
  field.flags |= NGHTTP2_NV_FLAG_NO_COPY_VALUE;
  return field;
}

const std::array<nghttp2_nv, 3> kResponse = {
    Constant(":status", "200"), Constant("content-type", "application/grpc"),
    Constant("grpc-accept-encoding", "identity,deflate,gzip")};
constexpr std::size_t kMaxTrailers = 3;

/// The header fields that end a call.
class Trailers {
 public:
  explicit Trailers(const Status& status)
      : code_(std::to_string(static_cast<int>(status.code))),
        text_(PercentEncoded(status.text)),
        retry_(std::to_string(status.retry_after_ms)) {
    Add(Field("grpc-status", code_));
    if (!text_.empty()) Add(Field("grpc-message", text_));
    if (status.retry_after_ms > 0) Add(Field("grpc-retry-pushback-ms", retry_));
  }
  Trailers(const Trailers&) = delete;
  Trailers& operator=(const Trailers&) = delete;

  const nghttp2_nv* begin() const { return fields_.data(); }
  std::size_t size() const { return num_fields_; }

 private:
  void Add(nghttp2_nv field) { fields_[num_fields_++] = field; }

  const std::string code_;
  const std::string text_;
  const std::string retry_;
  std::array<nghttp2_nv, kMaxTrailers> fields_ = {};
  std::size_t num_fields_ = 0;
};

Status TooManyCalls(std::int64_t held_bytes) {
  return {StatusCode::kResourceExhausted,
          "the connection holds " + std::to_string(held_bytes) +
              " bytes in calls that are not finished; finish some before opening others",
          0};
}

ssize_t ReadData(nghttp2_session*, std::int32_t, std::uint8_t*, std::size_t size,
                 std::uint32_t* flags, nghttp2_data_source* source, void* connection) {
  return static_cast<Connection*>(connection)
      ->ProvideData(*static_cast<WireCall*>(source->ptr), size, flags);
}

}  // namespace

bool Connection::Took(int result) {
  if (result == 0) return true;
  if (!close_reason_) close_reason_ = CloseReason::kSession;
  MarkDirty();
  return false;
}

bool Connection::Charge(TokenBucket* bucket, double tokens, CloseReason reason) {
  if (bucket->Take(tokens, loop_->now_s())) return true;
  if (!close_reason_) close_reason_ = reason;
  return false;
}

int Connection::OnFrameHeader(const nghttp2_frame_hd& head) {
  if (close_reason_) return kStop;
  const bool is_reply = (head.flags & NGHTTP2_FLAG_ACK) != 0;
  double cost = 0;
  switch (head.type) {
    case NGHTTP2_DATA:
      if (head.length < kSmallDataBytes && (head.flags & NGHTTP2_FLAG_END_STREAM) == 0) {
        cost = kControlFrame;
      }
      break;
    case NGHTTP2_HEADERS:
    case NGHTTP2_CONTINUATION:
      break;
    case NGHTTP2_SETTINGS:
      if (!is_reply) cost = kSettingsFrame + kSettingsPerCall * static_cast<double>(calls_.size());
      break;
    case NGHTTP2_RST_STREAM: {
      const WireCall* const call = Find(head.stream_id);
      cost = kControlFrame;
      if (call == nullptr || call->end) break;
      ++port_.counters.resets;
      if (!Charge(&resets_, 1, CloseReason::kResets)) return kStop;
      break;
    }
    default:
      cost = kControlFrame;
  }
  return cost == 0 || Charge(&control_frames_, cost, CloseReason::kControlFrames) ? 0 : kStop;
}

void Connection::OnHeadersBegin(std::int32_t stream_id) {
  headers_stream_ = stream_id;
  headers_ = RequestHeaders();
}

int Connection::OnHeader(std::int32_t stream_id, std::string_view name, std::string_view value) {
  // A client's trailers are ignored.
  if (stream_id != headers_stream_) return 0;
  const auto most = static_cast<std::size_t>(port_.limits.max_header_bytes);
  const bool is_first = headers_.num_bytes() == 0;
  if (headers_.Add(name, value, most) || headers_.num_bytes() <= kExcessHeaders * most) {
    // The rest of this call waits for the next turn.
    return is_first && IsTurnOver() ? NGHTTP2_ERR_PAUSE : 0;
  }
  close_reason_ = CloseReason::kHeaders;
  return kStop;
}

void Connection::OnFrame(const nghttp2_frame& frame) {
  const bool is_half_closed = (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  if (frame.hd.type == NGHTTP2_HEADERS && frame.headers.cat == NGHTTP2_HCAT_REQUEST) {
    OnRequest(frame.hd.stream_id, is_half_closed);
  } else if (frame.hd.type == NGHTTP2_HEADERS || frame.hd.type == NGHTTP2_DATA) {
    if (is_half_closed) OnHalfClose(frame.hd.stream_id);
  } else if (frame.hd.type == NGHTTP2_PING && (frame.hd.flags & NGHTTP2_FLAG_ACK) != 0) {
    OnPingReply(frame.ping.opaque_data);
  }
}

void Connection::OnRequest(std::int32_t stream_id, bool is_half_closed) {
  headers_stream_ = 0;
  has_had_call_ = true;
  ++num_turn_calls_;
  if (!headers_.is_grpc() && headers_.failure().ok()) return RefuseHttp(stream_id);
  const bool may_open = MayOpenCall();
  if (!may_open) headers_ = RequestHeaders();
  CallOrigin origin = OriginOf(stream_id);
  const bool is_stream = origin.method != nullptr && origin.method->stream;
  std::shared_ptr<WireCall> call =
      is_stream ? MakeStreamCall(std::move(origin)) : MakeUnaryCall(std::move(origin));
  WireCall& made = *call;
  made.is_half_closed = is_half_closed;
  made.grew_s = loop_->now_s();
  calls_.emplace(stream_id, std::move(call));
  made.open_stripe = port_.open_calls.Begin();
  CountMemory(made);
  const Status refusal = RefusalOf(made, may_open);
  if (!refusal.ok()) return Abort(made, refusal);
  if (made.deadline_s() <= loop_->now_s()) return made.OnDue(loop_->now_s());
  loop_->timers().Set(&made, made.deadline_s());
  WatchMessages();
  made.Start();
  if (is_half_closed) made.OnData();
}

CallOrigin Connection::OriginOf(std::int32_t stream_id) {
  CallOrigin origin;
  origin.connection = this;
  origin.stream_id = stream_id;
  origin.headers = std::move(headers_);
  origin.deadline_s = loop_->now_s() + origin.headers.timeout_s();
  origin.peer = peer_;
  origin.connection_number = static_cast<std::uint64_t>(id());
  origin.home = home_;
  origin.max_message_bytes = port_.limits.max_message_bytes;
  const auto found = port_.methods.find(origin.headers.path());
  if (found != port_.methods.end()) origin.method = &found->second;
  origin.is_light = loop_->IsBusy() && !IsBusy() && calls_.size() < kLightCalls;
  return origin;
}

Status Connection::RefusalOf(const WireCall& call, bool may_open) {
  if (may_open) return call.headers().failure();
  ++port_.counters.refused_calls;
  return TooManyCalls(account_.num_bytes());
}

// Not a gRPC call: answered with a plain HTTP response.
void Connection::RefuseHttp(std::int32_t stream_id) {
  static const std::array<nghttp2_nv, 1> kWrongType = {Constant(":status", "415")};
  Took(nghttp2_submit_response(session_.get(), stream_id, kWrongType.data(), kWrongType.size(),
                               nullptr));
}

WireCall* Connection::Find(std::int32_t stream_id) {
  const auto found = calls_.find(stream_id);
  return found == calls_.end() ? nullptr : found->second.get();
}

void Connection::OnData(std::int32_t stream_id, std::string_view data) {
  Took(nghttp2_session_consume_connection(session_.get(), data.size()));
  WireCall* const call = Find(stream_id);
  if (call == nullptr || call->ignores_input) return;
  call->reader.Add(data);
  call->grew_s = loop_->now_s();
  CountMemory(*call);
  call->OnData();
  NoteProgress(*call);
}

// Complete messages are up to the handlers; only incomplete ones are watched.
void Connection::NoteProgress(WireCall& call) {
  if (call.ignores_input || !call.reader.is_unfinished()) {
    call.is_watched = false;
    if (call.ignores_input) {
      call.reader.Drop();
      CountMemory(call);
    }
    return;
  }
  call.is_watched = true;
  AwaitMessage(call);
}

void Connection::OnHalfClose(std::int32_t stream_id) {
  WireCall* const call = Find(stream_id);
  if (call == nullptr) return;
  call->is_half_closed = true;
  if (!call->end) call->OnData();
}

Status Connection::TakeMessage(WireCall& call, Bytes* message) {
  const std::size_t before = call.reader.held_bytes();
  Status status = call.reader.Take(message);
  const std::size_t taken = before - call.reader.held_bytes();
  CountMemory(call);
  ReleaseRoom(call);
  // A unary call needs no further room: its only message is complete.
  if (call.ignores_input) return status;
  Took(nghttp2_session_consume_stream(session_.get(), call.stream_id(), taken));
  MarkDirty();
  NoteProgress(call);
  return status;
}

void Connection::AwaitMessage(WireCall& call) {
  const std::size_t wanted = call.reader.announced_bytes();
  if (wanted + MessageReader::kPrefixBytes <= kStreamWindowBytes || call.reserved_bytes > 0 ||
      call.is_waiting_for_room) {
    return;
  }
  if (reserved_bytes_ == 0 || reserved_bytes_ + wanted <= kRoomBytes) return Grant(call);
  call.is_waiting_for_room = true;
  waiting_for_room_.push_back(call.stream_id());
}

void Connection::Grant(WireCall& call) {
  call.reserved_bytes = call.reader.announced_bytes();
  reserved_bytes_ += call.reserved_bytes;
  const auto window = static_cast<std::int32_t>(
      std::min<std::size_t>(call.reserved_bytes + MessageReader::kPrefixBytes + kStreamWindowBytes,
                            std::numeric_limits<std::int32_t>::max()));
  // It never shrinks: data that a stream does not read counts as held.
  if (window <= call.window_bytes) return;
  call.window_bytes = window;
  Took(nghttp2_session_set_local_window_size(session_.get(), NGHTTP2_FLAG_NONE, call.stream_id(),
                                             window));
  MarkDirty();
}

void Connection::ReleaseRoom(WireCall& call) {
  if (call.reserved_bytes == 0) return;
  reserved_bytes_ -= std::exchange(call.reserved_bytes, 0);
  while (!waiting_for_room_.empty()) {
    WireCall* const next = Find(waiting_for_room_.front());
    if (next != nullptr && next->is_waiting_for_room) {
      const std::size_t wanted = next->reader.announced_bytes();
      if (reserved_bytes_ != 0 && reserved_bytes_ + wanted > kRoomBytes) return;
      next->is_waiting_for_room = false;
      if (!next->ignores_input) Grant(*next);
    }
    waiting_for_room_.pop_front();
  }
}

void Connection::CountMemory(WireCall& call) {
  const auto now = static_cast<std::int64_t>(kCallBytes + call.headers().memory_bytes() +
                                             call.reader.memory_bytes());
  account_.Add(now - std::exchange(call.held_bytes, now));
}

void Connection::Send(WireCall& call, Message message, Written written) {
  if (call.end) {
    if (written) written(false);
    return;
  }
  account_.Add(
      static_cast<std::int64_t>(call.outgoing.Add(std::move(message), std::move(written))));
  if (HoldsTooMuch() && !close_reason_) close_reason_ = CloseReason::kMemory;
  Begin(call);
}

void Connection::End(WireCall& call, const Status& status) {
  if (call.end) return;
  call.end = status;
  call.ignores_input = true;
  NoteProgress(call);
  loop_->timers().Remove(&call);
  Begin(call);
}

void Connection::Abort(WireCall& call, const Status& status) {
  call.Cancel();
  End(call, status);
}

void Connection::Begin(WireCall& call) {
  MarkDirty();
  if (session_ == nullptr) return;
  if (call.is_begun) {
    if (std::exchange(call.is_deferred, false)) {
      const int result = nghttp2_session_resume_data(session_.get(), call.stream_id());
      // A stream that is being reset has nothing to resume.
      if (nghttp2_is_fatal(result) != 0) Took(result);
    }
    return;
  }
  call.is_begun = true;
  if (call.end && call.outgoing.num_bytes() == 0) {
    const Trailers trailers(*call.end);
    std::array<nghttp2_nv, kResponse.size() + kMaxTrailers> fields = {};
    const auto end = std::copy(kResponse.begin(), kResponse.end(), fields.begin());
    std::copy_n(trailers.begin(), trailers.size(), end);
    Took(nghttp2_submit_response(session_.get(), call.stream_id(), fields.data(),
                                 kResponse.size() + trailers.size(), nullptr));
    return;
  }
  nghttp2_data_provider provider = {};
  provider.source.ptr = &call;
  provider.read_callback = ReadData;
  Took(nghttp2_submit_response(session_.get(), call.stream_id(), kResponse.data(), kResponse.size(),
                               &provider));
}

ssize_t Connection::ProvideData(WireCall& call, std::size_t size, std::uint32_t* flags) {
  const std::size_t num_bytes = std::min(size, call.outgoing.num_bytes());
  if (num_bytes == 0 && !call.end) {
    call.is_deferred = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
  if (call.end && num_bytes == call.outgoing.num_bytes()) {
    *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    const Trailers trailers(*call.end);
    if (!Took(nghttp2_submit_trailer(session_.get(), call.stream_id(), trailers.begin(),
                                     trailers.size()))) {
      return kStop;
    }
  }
  return static_cast<ssize_t>(num_bytes);
}

void Connection::SendData(WireCall& call, const std::uint8_t* head, std::size_t size) {
  constexpr std::size_t kHeadBytes = 9;
  out_.append(reinterpret_cast<const char*>(head), kHeadBytes);
  const std::size_t num_messages = call.outgoing.CopyTo(size, &out_, &written_);
  account_.Add(-static_cast<std::int64_t>(size));
  control_frames_.Give(kControlPerDataFrame +
                       kControlPerMessage * static_cast<double>(num_messages));
}

int Connection::OnFrameSent(const nghttp2_frame& frame) {
  const std::int32_t stream_id = frame.hd.stream_id;
  int result = 0;
  if (frame.hd.type == NGHTTP2_HEADERS && (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0 &&
      nghttp2_session_get_stream_remote_close(session_.get(), stream_id) == 0) {
    // The client need not send the rest.
    result =
        nghttp2_submit_rst_stream(session_.get(), NGHTTP2_FLAG_NONE, stream_id, NGHTTP2_NO_ERROR);
  }
  if (frame.hd.type == NGHTTP2_GOAWAY && !is_last_call_known_) {
    // The reply shows that the client has read the GOAWAY.
    result = nghttp2_submit_ping(session_.get(), NGHTTP2_FLAG_NONE, kDrainPing);
  }
  if (!Took(result)) return kStop;
  // Resets provoked by a client count as its own.
  if (frame.hd.type == NGHTTP2_RST_STREAM && frame.rst_stream.error_code != NGHTTP2_NO_ERROR) {
    if (!Charge(&resets_, 1, CloseReason::kResets)) return kStop;
  }
  return 0;
}

void Connection::OnStreamClosed(std::int32_t stream_id, std::uint32_t code) {
  const auto found = calls_.find(stream_id);
  if (found == calls_.end()) return;
  const std::shared_ptr<WireCall> call = std::move(found->second);
  calls_.erase(found);
  if (calls_.empty()) NoteIdle();
  if (call->end && code == NGHTTP2_NO_ERROR) {
    resets_.Give(kResetsPerAnswer);
    control_frames_.Give(kControlPerAnswer);
  }
  Forget(*call);
}

void Connection::Forget(WireCall& call) {
  loop_->timers().Remove(&call);
  call.Cancel();
  call.ignores_input = true;
  NoteProgress(call);
  call.is_waiting_for_room = false;
  ReleaseRoom(call);
  account_.Add(-static_cast<std::int64_t>(call.outgoing.num_bytes()) -
               std::exchange(call.held_bytes, 0));
  std::vector<Written> never_sent;
  call.outgoing.Clear(&never_sent);
  call.Over();
  for (const Written& one : never_sent) one(false);
  port_.open_calls.End(call.open_stripe);
}

}  // namespace recsys::http2
