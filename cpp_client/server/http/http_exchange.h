#ifndef RECSYS_SERVER_HTTP_HTTP_EXCHANGE_H_
#define RECSYS_SERVER_HTTP_HTTP_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "server/http/http_message.h"
#include "server/http/http_parser.h"
#include "server/rpc/listening.h"

namespace recsys {

/// What other threads tell the thread of a server. Thread-safe; outlives the server where an answer
/// is late.
class HttpMailbox {
 public:
  struct Letter {
    std::uint64_t connection = 0;
    /// Which of the connection's requests.
    std::uint64_t number = 0;
    /// When who answers is to be told that it is too late, on the clock of MonotonicSeconds; else
    /// the answer counts.
    double deadline_s = 0.0;
    HttpResponse response;
  };

  HttpMailbox();
  void Post(Letter letter);
  /// Wakes the thread without a letter.
  void Wake();
  std::vector<Letter> Take();
  /// Readable when there is something to take.
  int file() const { return event_.number(); }

 private:
  FileHandle event_;
  std::mutex mutex_;
  std::vector<Letter> letters_;
};

/// One request that is being answered. Thread-safe; held by shared_ptr by whoever will answer it.
class HttpExchange {
 public:
  HttpExchange(HttpRequest request, std::shared_ptr<HttpMailbox> mailbox, std::uint64_t connection,
               std::uint64_t number);

  /// Its body is only for who reads it within HttpHandler::Handle.
  const HttpRequest& request() const { return request_; }
  /// The body, once, from any thread; empty where the client has left: what waits for its turn must
  /// not keep the bodies of all who have left meanwhile.
  std::string TakeBody();
  bool is_gone() const;
  /// Answers; only the first answer counts.
  void Answer(HttpResponse response);
  /// Calls `gone` once, from any thread, perhaps at once, where the client leaves, or the deadline
  /// passes, before the answer. The answer may come all the same, and after a deadline it must.
  void WhenGone(std::function<void()> gone);
  void SetDeadline(double deadline_s);

  /// The server's: the deadline has passed.
  void TooLate();
  /// The server's: the client has left.
  void Gone();

 private:
  HttpRequest request_;
  const std::shared_ptr<HttpMailbox> mailbox_;
  const std::uint64_t connection_;
  const std::uint64_t number_;
  mutable std::mutex mutex_;
  std::function<void()> gone_;
  bool is_gone_ = false;
  bool is_answered_ = false;
};

/// Answers requests.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  /// Runs in the server's thread: must not block, and must not throw. The exchange is answered now
  /// or later.
  virtual void Handle(const std::shared_ptr<HttpExchange>& exchange) = 0;
  /// The answer to a request that cannot be read; `request` holds what could be. Likewise.
  virtual HttpResponse Refuse(const HttpRequest& request, HttpFault fault,
                              const std::string& text) = 0;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_HTTP_EXCHANGE_H_
