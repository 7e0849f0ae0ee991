#ifndef RECSYS_SERVER_HTTP_HTTP_CONNECTION_H_
#define RECSYS_SERVER_HTTP_HTTP_CONNECTION_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "base/clock.h"
#include "server/http/http_exchange.h"
#include "server/http/http_parser.h"
#include "server/http/http_stream.h"

namespace recsys {

/// How connections of a server are treated.
struct HttpTimes {
  /// How long one may wait for the next request, its headers included, or for the client to take an
  /// answer.
  double idle_s = 75.0;
  /// How long a body may take.
  double body_s = 30.0;
  /// How long one may take in all.
  double connection_s = std::numeric_limits<double>::infinity();
  /// How long a client that was refused may still send what nobody reads.
  double linger_s = 2.0;
};

/// What connections of one server have in common; outlives them.
struct HttpShared {
  HttpHandler& handler;
  std::shared_ptr<HttpMailbox> mailbox;
  HttpLimits limits;
  HttpTimes times;
  bool keeps_alive = true;
  Clock clock;
};

/// One connection: reads a request, has it answered, writes the answer, and so on. Belongs to the
/// server's thread.
class HttpConnection {
 public:
  /// What it waits for of its socket.
  enum class Interest { kNone, kRead, kWrite };

  HttpConnection(const HttpShared& shared, std::uint64_t id, FileHandle file,
                 const std::shared_ptr<SSL_CTX>& tls);
  /// Who still answers is told that the client has gone.
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  /// Goes on as far as it can; the socket may be ready.
  void Proceed();
  /// The client has gone, as the socket says: what is not read need not be.
  void HungUp();
  /// An answer, or a deadline, of its request `number`.
  void Take(HttpMailbox::Letter letter);
  /// The time that it waits for has come.
  void TimedOut();
  /// Answers what is being answered, and then no more.
  void Finish();

  bool is_closed() const { return stage_ == Stage::kClosed; }
  Interest interest() const { return interest_; }
  /// When TimedOut is to be called; infinite for never.
  double due_s() const;
  int file() const { return stream_.file(); }
  std::uint64_t id() const { return id_; }

 private:
  enum class Stage { kHandshake, kReading, kAnswering, kWriting, kLingering, kClosed };

  /// One step; false where the socket has to become ready first.
  bool Step();
  bool Await(HttpStream::Result result);
  bool Shake();
  bool Read();
  bool Write();
  bool Linger();
  bool Parse(std::string_view data);
  void Begin();
  void Refuse(HttpFault fault, const std::string& text);
  void Respond(HttpResponse response);
  void Close();
  void SetStage(Stage stage, double seconds);

  const HttpShared& shared_;
  const std::uint64_t id_;
  HttpStream stream_;
  HttpParser parser_;
  Stage stage_ = Stage::kHandshake;
  Interest interest_ = Interest::kRead;
  const double ends_s_;
  double stage_ends_s_ = 0.0;
  double deadline_s_ = std::numeric_limits<double>::infinity();
  /// Came, but not looked at yet: the beginning of the next request.
  std::string ahead_;
  bool has_continued_ = false;
  bool is_finishing_ = false;
  bool is_head_ = false;
  bool closes_ = false;
  std::uint64_t number_ = 0;
  std::shared_ptr<HttpExchange> exchange_;
  Message outgoing_;
  std::size_t part_ = 0;
  std::size_t part_bytes_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_HTTP_CONNECTION_H_
