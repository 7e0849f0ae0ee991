#include "server/http/http_parser.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace recsys {
namespace {

// Of what is set aside for a body before it has come.
constexpr std::uint64_t kMaxReserved = 64 << 10;
constexpr std::size_t kMaxSizeDigits = 15;
constexpr std::string_view kSpaces = " \t";

/// RFC 9110's token characters.
bool IsTokenChar(char c) {
  const bool is_alphanumeric =
      (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  return is_alphanumeric || (c != '\0' && std::strchr("!#$%&'*+-.^_`|~", c) != nullptr);
}

bool IsToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenChar);
}

bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7f;
}

bool HasControls(std::string_view text) { return std::any_of(text.begin(), text.end(), IsControl); }

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view Trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

/// Whether a comma-separated header has the word.
bool HasWord(const std::string* value, std::string_view word) {
  std::string_view left = value == nullptr ? std::string_view() : *value;
  while (!left.empty()) {
    const std::size_t comma = std::min(left.find(','), left.size());
    if (Lower(Trimmed(left.substr(0, comma))) == word) return true;
    left.remove_prefix(std::min(comma + 1, left.size()));
  }
  return false;
}

}  // namespace

std::size_t HttpParser::Feed(std::string_view data) {
  std::size_t used = 0;
  while (used < data.size() && state_ != State::kDone && state_ != State::kFailed) {
    const std::string_view left = data.substr(used);
    if (part_ == Part::kLength || part_ == Part::kChunk) {
      used += ReadBody(left);
      continue;
    }
    std::string line;
    std::size_t taken = 0;
    const bool is_whole = TakeLine(left, &taken, &line);
    used += taken;
    if (is_whole) ReadLine(line);
  }
  return used;
}

bool HttpParser::TakeLine(std::string_view data, std::size_t* used, std::string* line) {
  // What is no HTTP at all need not go on until a line would end.
  if (part_ == Part::kRequestLine && line_.empty() && !IsTokenChar(data[0]) && data[0] != '\r') {
    *used = 0;
    Fail("got something else than a request of HTTP/1.1");
    return false;
  }
  const std::size_t end = data.find('\n');
  *used = end == data.npos ? data.size() : end + 1;
  head_bytes_ += *used;
  if (line_.size() + *used > limits_.max_line_bytes + 2 || head_bytes_ > limits_.max_head_bytes) {
    Fail("got headers that are too long");
    return false;
  }
  line_.append(data.substr(0, *used));
  if (end == data.npos) return false;
  if (line_.size() < 2 || line_[line_.size() - 2] != '\r') {
    Fail("got a line that ends without a carriage return");
    return false;
  }
  line_.resize(line_.size() - 2);
  *line = std::exchange(line_, {});
  return true;
}

void HttpParser::ReadLine(const std::string& line) {
  // Some readers end a line at a carriage return alone.
  const bool is_chunked = part_ == Part::kChunkSize || part_ == Part::kTrailers;
  if (is_chunked && HasControls(line)) return Fail("got a chunk with control characters");
  switch (part_) {
    case Part::kRequestLine:
      // Some clients send an empty line after a body.
      if (!line.empty()) ReadRequestLine(line);
      return;
    case Part::kHeaders:
      return line.empty() ? EndHead() : ReadHeader(line);
    case Part::kChunkSize:
      return ReadChunkSize(line);
    case Part::kChunkEnd:
      if (!line.empty()) return Fail("got a chunk that is longer than it says");
      head_bytes_ = 0;
      part_ = Part::kChunkSize;
      return;
    case Part::kTrailers:
      // Nobody reads them.
      if (line.empty()) state_ = State::kDone;
      return;
    case Part::kLength:
    case Part::kChunk:
      return;
  }
}

void HttpParser::ReadRequestLine(const std::string& line) {
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == line.npos || first == last) return Fail("got a request's line without its parts");
  request_.method = line.substr(0, first);
  const std::string target = line.substr(first + 1, last - first - 1);
  const std::string version = line.substr(last + 1);
  if (!IsToken(request_.method)) return Fail("got a method that is none");
  const bool has_odd_chars = std::any_of(target.begin(), target.end(), [](char c) {
    return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f;
  });
  if (target.empty() || has_odd_chars) return Fail("got an address that is none");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return Fail("got another version, expected HTTP/1.1");
  }
  is_http11_ = version == "HTTP/1.1";
  const std::string in_path = target.substr(0, target.find('#'));
  const std::size_t question = in_path.find('?');
  request_.path = in_path.substr(0, question);
  if (question != in_path.npos) request_.query = in_path.substr(question + 1);
  part_ = Part::kHeaders;
}

void HttpParser::ReadHeader(const std::string& line) {
  const std::size_t colon = line.find(':');
  if (colon == line.npos || !IsToken(std::string_view(line).substr(0, colon))) {
    return Fail("got a header without a name");
  }
  if (HasControls(line)) return Fail("got a header with control characters");
  if (request_.headers.size() >= limits_.max_headers) return Fail("got too many headers");
  const std::string_view value = Trimmed(std::string_view(line).substr(colon + 1));
  request_.headers.push_back({Lower(line.substr(0, colon)), std::string(value)});
}

void HttpParser::EndHead() {
  const std::string* const connection = request_.Find("connection");
  keeps_alive_ = is_http11_ ? !HasWord(connection, "close") : HasWord(connection, "keep-alive");
  const std::string* const expect = request_.Find("expect");
  expects_continue_ = is_http11_ && expect != nullptr && Lower(*expect) == "100-continue";
  const auto count = [this](std::string_view name) {
    return std::count_if(request_.headers.begin(), request_.headers.end(),
                         [name](const HttpHeader& header) { return header.name == name; });
  };
  const auto num_lengths = count("content-length");
  const auto num_encodings = count("transfer-encoding");
  if (num_lengths + num_encodings > 1) return Fail("got more than one length of the body");
  state_ = State::kBody;
  head_bytes_ = 0;
  if (num_lengths == 1) return ReadLength(*request_.Find("content-length"));
  if (num_encodings == 0) {
    state_ = State::kDone;
  } else if (is_http11_ && Lower(*request_.Find("transfer-encoding")) == "chunked") {
    part_ = Part::kChunkSize;
  } else {
    Fail("got a Transfer-Encoding that is not known, expected chunked");
  }
}

void HttpParser::ReadLength(const std::string& text) {
  const bool is_number = !text.empty() && text.size() <= kMaxSizeDigits &&
                         text.find_first_not_of("0123456789") == text.npos;
  if (!is_number) return Fail("got a Content-Length that is no number");
  part_ = Part::kLength;
  Expect(std::stoull(text));
  if (state_ == State::kBody && num_left_ == 0) state_ = State::kDone;
}

void HttpParser::ReadChunkSize(const std::string& line) {
  const std::string size = line.substr(0, line.find(';'));
  const std::string_view digits = Trimmed(size);
  const bool is_number = !digits.empty() && digits.size() <= kMaxSizeDigits &&
                         digits.find_first_not_of("0123456789abcdefABCDEF") == digits.npos;
  if (!is_number) return Fail("got a chunk without its size");
  const std::uint64_t num_bytes = std::stoull(std::string(digits), nullptr, 16);
  head_bytes_ = 0;
  part_ = num_bytes == 0 ? Part::kTrailers : Part::kChunk;
  Expect(num_bytes);
}

void HttpParser::Expect(std::uint64_t num_bytes) {
  const std::uint64_t all = request_.body.size() + num_bytes;
  if (all > limits_.max_body_bytes) return FailTooLarge(all);
  num_left_ = num_bytes;
  request_.body.reserve(request_.body.size() + std::min(num_bytes, kMaxReserved));
}

std::size_t HttpParser::ReadBody(std::string_view data) {
  const auto num_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(num_left_, data.size()));
  request_.body.append(data.substr(0, num_bytes));
  num_left_ -= num_bytes;
  if (num_left_ > 0) return num_bytes;
  if (part_ == Part::kLength) {
    state_ = State::kDone;
  } else {
    part_ = Part::kChunkEnd;
  }
  return num_bytes;
}

HttpRequest HttpParser::Take() {
  HttpRequest request = std::move(request_);
  *this = HttpParser(limits_);
  return request;
}

void HttpParser::Fail(std::string text) {
  state_ = State::kFailed;
  keeps_alive_ = false;
  fault_ = HttpFault::kBadRequest;
  fault_text_ = std::move(text);
}

void HttpParser::FailTooLarge(std::uint64_t num_bytes) {
  Fail("body: got more bytes than one request may have (Maximum request body size " +
       std::to_string(limits_.max_body_bytes) + " exceeded, actual body size " +
       std::to_string(num_bytes) + ")");
  fault_ = HttpFault::kBodyTooLarge;
}

}  // namespace recsys
