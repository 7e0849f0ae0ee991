#ifndef RECSYS_SERVER_HTTP_HTTP_PARSER_H_
#define RECSYS_SERVER_HTTP_HTTP_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/http/http_message.h"

namespace recsys {

/// How much of a request is taken.
struct HttpLimits {
  /// Of the request's line and of each header.
  std::size_t max_line_bytes = 8190;
  /// Of all of them together.
  std::size_t max_head_bytes = 32 << 10;
  std::size_t max_headers = 128;
  std::uint64_t max_body_bytes = 0;
};

/// What is wrong with a request that cannot be read.
enum class HttpFault { kNone, kBadRequest, kBodyTooLarge, kBodyTimeout };

/// Reads requests of HTTP/1.0 and 1.1 from bytes as they come, piece by piece, and trusts none of
/// them: what two readers could take for different requests (two lengths, a length beside chunks,
/// folded headers, lone line feeds) is refused. Memory grows with what has come, not with what was
/// announced. Not thread-safe.
class HttpParser {
 public:
  enum class State { kHead, kBody, kDone, kFailed };

  explicit HttpParser(const HttpLimits& limits) : limits_(limits) {}

  /// Takes bytes of the connection; how many of them it has used: all, unless the request is done
  /// or has failed.
  std::size_t Feed(std::string_view data);

  State state() const { return state_; }
  /// Whether anything of the next request has come.
  bool has_begun() const { return state_ != State::kHead || !line_.empty() || head_bytes_ > 0; }
  /// What has been read so far; whole once kDone.
  const HttpRequest& request() const { return request_; }
  /// Whether the client waits for our word before it sends the body.
  bool expects_continue() const { return expects_continue_; }
  /// Whether the connection may have further requests.
  bool keeps_alive() const { return keeps_alive_; }
  HttpFault fault() const { return fault_; }
  const std::string& fault_text() const { return fault_text_; }

  /// Takes the request, once it is done, and begins with the next.
  HttpRequest Take();

 private:
  enum class Part { kRequestLine, kHeaders, kLength, kChunkSize, kChunk, kChunkEnd, kTrailers };

  /// One line at the front of `data`, without its end; false where it is not whole yet, or not
  /// right.
  bool TakeLine(std::string_view data, std::size_t* used, std::string* line);
  void ReadLine(const std::string& line);
  void ReadRequestLine(const std::string& line);
  void ReadHeader(const std::string& line);
  void EndHead();
  void ReadLength(const std::string& text);
  void ReadChunkSize(const std::string& line);
  std::size_t ReadBody(std::string_view data);
  void Expect(std::uint64_t num_bytes);
  void Fail(std::string text);
  void FailTooLarge(std::uint64_t num_bytes);

  HttpLimits limits_;
  State state_ = State::kHead;
  Part part_ = Part::kRequestLine;
  HttpRequest request_;
  std::string line_;
  std::size_t head_bytes_ = 0;
  /// Of the body, or of the chunk, that are still to come.
  std::uint64_t num_left_ = 0;
  bool is_http11_ = false;
  bool expects_continue_ = false;
  bool keeps_alive_ = false;
  HttpFault fault_ = HttpFault::kNone;
  std::string fault_text_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_HTTP_PARSER_H_
