#include "config/toml_brackets.h"

#include <algorithm>
#include <string>
#include <vector>

#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::size_t kMaxDepth = 32;
// Behind them another key begins, or a value.
constexpr std::string_view kBetweenKeys = "\n=,[]{}";
constexpr std::string_view kBeforeString = " \t\n=[{,.";

/// Behind the string that begins at `at`; npos where it does not end.
std::size_t EndOfString(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string_view three = text.substr(at, 3);
  const bool is_long = three.size() == 3 && three == std::string(3, quote);
  for (std::size_t i = at + (is_long ? 3 : 1); i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (!is_long && text[i] == '\n') {
      return text.npos;
    } else if (is_long ? text.substr(i, 3) == three : text[i] == quote) {
      return i + (is_long ? 3 : 1);
    }
  }
  return text.npos;
}

class Brackets {
 public:
  explicit Brackets(std::string_view text) : text_(text) {}

  void Check() {
    std::size_t at = 0;
    while (at < text_.size()) {
      const char c = text_[at];
      if (c == '"' || c == '\'') {
        at = BehindString(at);
        continue;
      }
      if (c == '#') {
        at = std::min(text_.find('\n', at), text_.size());
        continue;
      }
      Take(c, at++);
    }
    if (!open_.empty()) Refuse("a bracket is not closed", at);
  }

 private:
  /// Nothing may hide in a string that cpptoml takes for a part of a key: it lets a bare key have
  /// quotes.
  std::size_t BehindString(std::size_t at) const {
    if (at > 0 && kBeforeString.find(text_[at - 1]) == kBeforeString.npos) {
      Refuse("a quote stands in the middle of a word", at);
    }
    const std::size_t end = EndOfString(text_, at);
    if (end == text_.npos) Refuse("a string is not closed", at);
    return end;
  }

  void Take(char c, std::size_t at) {
    // Each part of a key is a table in another.
    if (c == '.' && ++num_dots_ > kMaxDepth) Refuse("a key has too many parts", at);
    if (kBetweenKeys.find(c) != kBetweenKeys.npos) num_dots_ = 0;
    if (c == '[' || c == '{') {
      if (open_.size() == kMaxDepth) Refuse("brackets are nested too deep", at);
      open_.push_back(c == '[' ? ']' : '}');
    } else if (c == ']' || c == '}') {
      if (open_.empty() || open_.back() != c) Refuse("a bracket closes none", at);
      open_.pop_back();
    }
  }

  [[noreturn]] void Refuse(const std::string& what, std::size_t at) const {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    throw Error(ErrorKind::kConfig, what + " at line " + std::to_string(line));
  }

  std::string_view text_;
  std::vector<char> open_;
  std::size_t num_dots_ = 0;
};

}  // namespace

void CheckBrackets(std::string_view text) { Brackets(text).Check(); }

}  // namespace recsys
