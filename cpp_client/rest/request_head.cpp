#include "rest/request_head.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <system_error>

namespace recsys {
namespace {

constexpr std::string_view kLine = "\r\n";
constexpr std::string_view kPost = "POST /v";
constexpr std::string_view kVersion = " HTTP/1.1";
constexpr std::size_t kMostSizeDigits = 12;
// Headers that change how a request is read, whether it is answered, or its answer.
constexpr std::string_view kForPython[] = {
    "transfer-encoding", "expect", "content-encoding", "upgrade",   "origin", "sec-fetch-site",
    "trailer",           "te",     "proxy-connection", "keep-alive"};

bool IsTokenChar(char c) {
  const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  return is_plain || c == '-' || c == '_' || c == '.';
}

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool IsSame(std::string_view text, std::string_view lower) {
  return text.size() == lower.size() && std::equal(text.begin(), text.end(), lower.begin(),
                                                   [](char a, char b) { return Lower(a) == b; });
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// Takes a name of plain characters; empty if there is none.
std::string_view TakeName(std::string_view* path) {
  const auto end = std::find_if_not(path->begin(), path->end(), IsTokenChar);
  const auto size = static_cast<std::size_t>(end - path->begin());
  const std::string_view name = path->substr(0, size);
  path->remove_prefix(size);
  return name == "." || name == ".." ? std::string_view() : name;
}

bool TakePrefix(std::string_view prefix, std::string_view* text) {
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

bool ReadPath(std::string_view path, RequestHead* head) {
  head->is_infer = TakePrefix("/v2/models/", &path);
  if (!head->is_infer && !TakePrefix("/v1/models/", &path)) return false;
  head->target.model = TakeName(&path);
  if (head->target.model.empty()) return false;
  if (TakePrefix("/versions/", &path)) {
    head->target.version = TakeName(&path);
    if (head->target.version.empty()) return false;
  }
  return path == (head->is_infer ? "/infer" : ":predict");
}

bool ReadSize(std::string_view text, std::size_t* size) {
  if (text.empty() || text.size() > kMostSizeDigits) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *size);
  return error == std::errc() && end == text.data() + text.size() && text[0] != '-';
}

/// Takes one header line off `lines`; returns false if it is malformed.
bool TakeHeader(std::string_view* lines, std::string_view* name, std::string_view* value) {
  const std::size_t end = lines->find(kLine);
  const std::string_view line = lines->substr(0, end);
  lines->remove_prefix(end + kLine.size());
  const std::size_t colon = line.find(':');
  if (colon == 0 || colon == line.npos) return false;
  *name = line.substr(0, colon);
  *value = Trimmed(line.substr(colon + 1));
  const auto is_text = [](char c) { return (c >= ' ' && c != '\x7f') || c == '\t' || c < 0; };
  return std::all_of(name->begin(), name->end(), IsTokenChar) &&
         std::all_of(value->begin(), value->end(), is_text);
}

bool ReadHeaders(RequestHead* head) {
  std::string_view lines = head->lines, name, value;
  bool has_size = false, has_host = false;
  while (!lines.empty()) {
    if (!TakeHeader(&lines, &name, &value)) return false;
    if (IsSame(name, "content-length")) {
      if (has_size || !ReadSize(value, &head->num_body_bytes)) return false;
      has_size = true;
    } else if (IsSame(name, "host")) {
      if (has_host) return false;
      has_host = true;
    } else if (IsSame(name, "inference-header-content-length")) {
      std::size_t size = 0;
      if (head->num_json_bytes || !ReadSize(value, &size)) return false;
      head->num_json_bytes = size;
    } else if (IsSame(name, "connection")) {
      if (!IsSame(value, "keep-alive")) return false;
    } else if (std::any_of(std::begin(kForPython), std::end(kForPython),
                           [&](std::string_view other) { return IsSame(name, other); })) {
      return false;
    }
  }
  return has_size && has_host && head->num_json_bytes.value_or(0) <= head->num_body_bytes;
}

}  // namespace

HeadResult ReadRequestHead(std::string_view received, RequestHead* head) {
  const std::size_t num_same = std::min(received.size(), kPost.size());
  if (received.substr(0, num_same) != kPost.substr(0, num_same)) return HeadResult::kPython;
  const std::size_t end = received.substr(0, kMostHeadBytes).find("\r\n\r\n");
  if (end == received.npos) {
    return received.size() < kMostHeadBytes ? HeadResult::kIncomplete : HeadResult::kPython;
  }
  *head = {};
  head->num_bytes = end + 2 * kLine.size();
  const std::size_t end_of_line = received.find(kLine);
  std::string_view line = received.substr(0, end_of_line);
  head->lines = received.substr(end_of_line + kLine.size(), end - end_of_line);
  if (line.size() < kVersion.size() || line.substr(line.size() - kVersion.size()) != kVersion) {
    return HeadResult::kPython;
  }
  line.remove_suffix(kVersion.size());
  line.remove_prefix(kPost.find('/'));
  return ReadPath(line, head) && ReadHeaders(head) ? HeadResult::kNative : HeadResult::kPython;
}

std::string_view HeaderOf(std::string_view lines, std::string_view name) {
  std::string_view found, value;
  while (!lines.empty()) {
    if (!TakeHeader(&lines, &found, &value)) return {};
    if (IsSame(found, name)) return value;
  }
  return {};
}

}  // namespace recsys
