#ifndef RECSYS_PORT_CONNECTION_CONNECTION_H_
#define RECSYS_PORT_CONNECTION_CONNECTION_H_

#include <nghttp2/nghttp2.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "port/bounds/session_memory.h"
#include "port/connection/call.h"
#include "port/polling/polled.h"
#include "port/port_state.h"
#include "port/service.h"

namespace recsys::http2 {

class Loop;

/// The PING whose reply shows that a client has read the first GOAWAY.
inline constexpr std::uint8_t kDrainPing[] = {'d', 'r', 'a', 'i', 'n', 'i', 'n', 'g'};

/// Why a connection is closed although the client did not violate HTTP/2. kSession: nghttp2 could
/// not go on, as without memory.
enum class CloseReason { kResets, kControlFrames, kMemory, kHeaders, kSession };

/// State of a gRPC port.
struct RpcPortState final : PortState {
  using PortState::PortState;
  std::unique_ptr<Polled> Open(Loop* loop, std::int64_t id, FileHandle file) override;

  /// By path, "/package.Service/Method".
  std::map<std::string, Method, std::less<>> methods;
};

/// A client's connection: an nghttp2 session between a socket and calls. Polling thread only.
class Connection final : public Polled {
 public:
  Connection(Loop* loop, std::int64_t id, FileHandle file, RpcPortState* port);
  ~Connection() override;

  int file() const { return socket_.number(); }
  /// Whether it can be deleted.
  bool is_closed() const override { return state_ == State::kClosed; }

  /// Handles epoll's events.
  void OnReady(std::uint32_t events) override;
  /// Takes a turn of the backlog: handles input that was left for later, for which epoll sends no
  /// event.
  void OnTurn() override;
  /// Sends pending data.
  void Flush() override;
  void OnDue(double now_s) override;
  /// Lets open calls finish and accepts no new ones (GOAWAY), then closes.
  void Drain() override;
  /// Ends all calls with CANCELLED, sends what can be sent at once, and closes.
  void End() override;
  void CloseForMemory() override { CloseFor(CloseReason::kMemory); }
  bool MayLeave() const override;
  void LeaveFor(Loop* to) override;
  void Join() override;
  void CloseFor(CloseReason reason);

  // For calls.
  void Send(WireCall& call, Message message, Written written);
  /// Ends the call with a status, after the messages already sent.
  void End(WireCall& call, const Status& status);
  /// Ends a call that its handler has not ended, and notifies the handler.
  void Abort(WireCall& call, const Status& status);
  /// Takes a call's complete message, and frees the room it was granted.
  Status TakeMessage(WireCall& call, Bytes* message);
  /// Grants the client room for the message that has begun, however large it is.
  void AwaitMessage(WireCall& call);
  /// Counts one more message of a stream against the connection's turn. If the turn is over,
  /// returns false: the call's OnData is called in the next one.
  bool MayGoOn(WireCall& call);
  /// Called by nghttp2: returns how much of the call's messages goes into the next frame.
  ssize_t ProvideData(WireCall& call, std::size_t size, std::uint32_t* flags);

 private:
  friend struct Callback;
  enum class State { kHandshake, kWaiting, kOpen, kLingering, kClosed };
  using Calls = std::unordered_map<std::int32_t, std::shared_ptr<WireCall>>;
  struct DeleteSession {
    void operator()(nghttp2_session* session) const { nghttp2_session_del(session); }
  };

  // connection_reading.cpp: input, in turns.
  /// Whether some input is left for the next turn.
  enum class Input { kAllHandled, kLeft };
  void ContinueHandshake();
  void Read();
  /// Reads as far as the turn goes.
  Input ReadInTurn();
  /// Returns how many bytes were used: not all if the turn is over.
  std::size_t Receive(std::string_view data);
  void KeepUnread(std::string_view data);
  Input HandleUnread();
  Input GoOnWithStreams();
  bool IsTurnOver() const;
  /// Whether it has lately had more input than a turn takes.
  bool IsBusy() const;
  void BeBusy();
  void LeaveForLater();
  bool OpenSession();
  bool HoldsTooMuch() const;
  bool MayOpenCall() const;
  /// Counts the memory that is the connection's, and not a call's.
  void CountMemory();
  /// Reads for a moment longer, so that sent data arrives although the client is still sending.
  void Linger();

  // connection.cpp: output and timeouts.
  bool MayRead() const;
  /// Moves nghttp2's pending output to `out_`, as complete frames; returns false if there is no
  /// more.
  bool Pull();
  void UpdateInterest();
  void CloseIfOver();
  void FinishDrain();
  void CheckTimes(double now_s);
  double NextTime() const override;
  void NoteIdle();
  /// Has messages that do not come, or do not grow, noticed in time.
  void WatchMessages();
  void CheckMessages(double now_s);
  void CheckSilence(double now_s);
  void CloseNow() override;
  void DropCalls();
  void SendGoaway(std::uint32_t code, std::string_view text);

  // connection_calls.cpp: nghttp2's callbacks, on the side of calls.
  int OnFrameHeader(const nghttp2_frame_hd& head);
  void OnHeadersBegin(std::int32_t stream_id);
  int OnHeader(std::int32_t stream_id, std::string_view name, std::string_view value);
  void OnFrame(const nghttp2_frame& frame);
  void OnRequest(std::int32_t stream_id, bool is_half_closed);
  /// Takes the headers that were received.
  CallOrigin OriginOf(std::int32_t stream_id);
  /// Why a call is refused before it starts; OK if it is not.
  Status RefusalOf(const WireCall& call, bool may_open);
  void OnData(std::int32_t stream_id, std::string_view data);
  void OnHalfClose(std::int32_t stream_id);
  void OnStreamClosed(std::int32_t stream_id, std::uint32_t code);
  int OnFrameSent(const nghttp2_frame& frame);
  void OnPingReply(const std::uint8_t* data);
  void SendData(WireCall& call, const std::uint8_t* head, std::size_t size);
  void RefuseHttp(std::int32_t stream_id);
  void Begin(WireCall& call);
  void Grant(WireCall& call);
  void ReleaseRoom(WireCall& call);
  /// Counts the memory of a call and its request.
  void CountMemory(WireCall& call);
  void NoteProgress(WireCall& call);
  /// Releases everything the connection holds for a call whose stream is closed.
  void Forget(WireCall& call);
  WireCall* Find(std::int32_t stream_id);
  /// Returns whether nghttp2 took something, by its result; if not, the connection is being closed.
  bool Took(int result);
  /// Returns false if the connection exceeds the limit; then it is being closed.
  bool Charge(TokenBucket* bucket, double tokens, CloseReason reason);

  RpcPortState& port_;
  const std::shared_ptr<const std::string> peer_;
  State state_ = State::kHandshake;
  SessionMemory session_memory_;
  std::unique_ptr<nghttp2_session, DeleteSession> session_;
  Calls calls_;

  /// Input that was read and not handled, from `unread_at_` on.
  std::string unread_;
  std::size_t unread_at_ = 0;
  /// How much is read at a time: little while a backlog is left.
  std::size_t read_bytes_;
  /// Calls, and messages of streams, that were begun in this turn.
  int num_turn_calls_ = 0;
  std::size_t num_turn_bytes_ = 0;
  /// Streams with messages that are left for the next turn.
  std::deque<std::int32_t> unfinished_turns_;
  /// Until then its input waits for a turn of the backlog.
  double busy_until_s_ = 0;
  /// Whether the loop will give it a turn.
  bool has_backlog_ = false;

  /// The stream whose request headers are being received; 0 for none.
  std::int32_t headers_stream_ = 0;
  RequestHeaders headers_;

  std::vector<Written> written_;
  bool has_ended_writing_ = false;
  std::size_t num_lingered_ = 0;

  TokenBucket resets_;
  TokenBucket control_frames_;
  /// Why the session must not be used any more; set within nghttp2's callbacks.
  std::optional<CloseReason> close_reason_;

  /// Room granted to large messages, and the calls waiting for some, in order.
  std::size_t reserved_bytes_ = 0;
  std::deque<std::int32_t> waiting_for_room_;

  const double opened_s_;
  double read_s_;
  double idle_since_s_;
  /// When the last unanswered PING was sent; infinite if there is none.
  double pinged_s_;
  double drain_began_s_;
  double lingers_until_s_ = 0;
  bool has_had_call_ = false;
  bool is_draining_ = false;
  /// Whether the client was told which call is the last.
  bool is_last_call_known_ = false;
};

}  // namespace recsys::http2

#endif  // RECSYS_PORT_CONNECTION_CONNECTION_H_
