#ifndef RECSYS_REST_REST_CONNECTION_H_
#define RECSYS_REST_REST_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "port/polling/polled.h"
#include "port/service.h"
#include "rest/request_head.h"
#include "rest/rest_port.h"

namespace recsys {

class ProtocolRequest;
class RestCall;

/// A client's connection over HTTP/1.1, without TLS: one request at a time. Polling thread only.
class RestConnection final : public http2::Polled {
 public:
  RestConnection(http2::Loop* loop, std::int64_t id, FileHandle file, RestPortState* port);
  ~RestConnection() override;

  bool is_closed() const override { return is_closed_; }
  void OnReady(std::uint32_t events) override;
  void OnTurn() override;
  void Flush() override;
  void OnDue(double now_s) override;
  /// Does nothing: further requests are handed over, and their answers say that the server stops.
  void Drain() override {}
  void End() override;
  void CloseForMemory() override { CloseNow(); }
  bool MayLeave() const override { return !is_leaving_; }
  void Join() override;

  /// Sends the response of the call, which has ended.
  void Send(std::string response);

 private:
  bool MayRead() const;
  void Read();
  /// Begins the next request if it is complete.
  void HandleInput();
  void Begin(const RequestHead& head);
  /// Returns the request of a body, whose message `message` receives; null if it is for Python.
  std::shared_ptr<ProtocolRequest> RequestOf(const RequestHead& head, std::string* message) const;
  /// Has the connection handed over once its answers are sent.
  void Leave();
  void HandOver();
  void EndCall();
  void CloseNow() override;
  void CountMemory();
  double NextTime() const override;

  RestPortState& port_;
  /// What was received and not handled; when its first byte came.
  std::string in_;
  double began_s_ = 0;
  /// The request being answered; null if there is none.
  std::shared_ptr<RestCall> call_;
  std::shared_ptr<UnaryHandler> handler_;
  /// Of the port's count of open calls, until the response is sent.
  std::optional<std::size_t> open_stripe_;
  double idle_since_s_;
  bool is_leaving_ = false;
  bool is_closed_ = false;
};

}  // namespace recsys

#endif  // RECSYS_REST_REST_CONNECTION_H_
