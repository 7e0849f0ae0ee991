// Requests of HTTP, one after the other on a connection: the pieces that their bytes come in make
// no difference, and nothing is kept that is larger than it may be.

#include "server/http/http_parser.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace {

using recsys::HttpParser;
using recsys::HttpRequest;

void Expect(bool holds) {
  if (!holds) __builtin_trap();
}

recsys::HttpLimits Limits() {
  recsys::HttpLimits limits;
  limits.max_line_bytes = 200;
  limits.max_head_bytes = 600;
  limits.max_headers = 8;
  limits.max_body_bytes = 300;
  return limits;
}

bool IsOpen(const HttpParser& parser) {
  return parser.state() == HttpParser::State::kHead || parser.state() == HttpParser::State::kBody;
}

/// How many bytes one request has used, given so many at a time.
std::size_t Feed(std::string_view data, std::size_t piece, HttpParser* parser) {
  std::size_t used = 0;
  while (used < data.size() && IsOpen(*parser)) used += parser->Feed(data.substr(used, piece));
  return used;
}

void ExpectSound(const HttpRequest& request) {
  Expect(request.body.size() <= Limits().max_body_bytes);
  Expect(request.headers.size() <= Limits().max_headers);
  for (const recsys::HttpHeader& header : request.headers) {
    Expect(!header.name.empty());
    for (const char c : header.value) Expect(c != '\r' && c != '\n' && c != '\0');
  }
}

void ExpectSame(const HttpRequest& a, const HttpRequest& b) {
  Expect(a.method == b.method && a.path == b.path && a.query == b.query && a.body == b.body);
  const auto is_same = [](const recsys::HttpHeader& one, const recsys::HttpHeader& other) {
    return one.name == other.name && one.value == other.value;
  };
  Expect(
      std::equal(a.headers.begin(), a.headers.end(), b.headers.begin(), b.headers.end(), is_same));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) return 0;
  std::string_view left(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const std::size_t piece = 1 + bytes[0] % 32;
  HttpParser whole(Limits()), pieces(Limits());
  while (true) {
    const std::size_t used = Feed(left, left.size(), &whole);
    const std::size_t used_in_pieces = Feed(left, piece, &pieces);
    Expect(whole.state() == pieces.state() && whole.fault() == pieces.fault());
    Expect(whole.fault_text() == pieces.fault_text());
    Expect((whole.state() == HttpParser::State::kFailed) == !whole.fault_text().empty());
    ExpectSound(whole.request());
    if (whole.state() != HttpParser::State::kDone) return 0;
    Expect(used == used_in_pieces && used > 0);
    Expect(whole.keeps_alive() == pieces.keeps_alive());
    ExpectSame(whole.Take(), pieces.Take());
    left.remove_prefix(used);
  }
}
