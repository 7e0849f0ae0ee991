#ifndef RECSYS_SERVER_HTTP_HTTP_MESSAGE_H_
#define RECSYS_SERVER_HTTP_HTTP_MESSAGE_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace recsys {

struct HttpHeader {
  /// Of a request in lower case.
  std::string name;
  std::string value;
};

/// One request over HTTP/1. A plain value.
struct HttpRequest {
  std::string method;
  /// Before the question mark, as it came: percent signs and all.
  std::string path;
  /// Behind it.
  std::string query;
  std::vector<HttpHeader> headers;
  std::string body;

  /// The first value of a header (in lower case); null where there is none.
  const std::string* Find(std::string_view name) const;
};

/// One answer. A plain value.
struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  /// Beside those that every answer has: nothing that a client wrote.
  std::vector<HttpHeader> headers;
  Message body;
  /// Whether the connection is closed then.
  bool closes = false;
};

/// "Not Found" and so on.
const char* HttpReason(int status);

/// A text without its percent signs; `plus_is_space`: as in the query. What stands behind a percent
/// sign and is no number stays as it is.
std::string PercentDecoded(std::string_view text, bool plus_is_space = false);

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_HTTP_MESSAGE_H_
