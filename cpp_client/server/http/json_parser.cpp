#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"
#include "recsys/error.h"
#include "server/http/json_value.h"

namespace recsys {
namespace {

// Python's reader gives up at some hundreds too.
constexpr int kMaxDepth = 500;
// Python's bound of digits that it makes a number of.
constexpr std::size_t kMaxDigits = 4300;
constexpr char kByteOrderMark[] = "\xef\xbb\xbf";

/// It is no JSON; the text is that of Python's JSONDecodeError, without the place.
struct Wrong {
  const char* text;
  std::size_t at;
};
/// It is nested too deep, or holds a number that is too long.
struct TooMuch {};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

/// Of names that stand twice, the last counts, at the place of the first. Sorts them: names that a
/// client chooses could all fall into one place of a hash table.
void KeepLast(JsonValue::Object* object) {
  if (object->size() < 2) return;
  std::vector<std::size_t> order(object->size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [object](std::size_t a, std::size_t b) {
    const int compared = (*object)[a].name.compare((*object)[b].name);
    return compared < 0 || (compared == 0 && a < b);
  });
  std::vector<bool> is_kept(object->size(), true);
  std::size_t num_kept = object->size();
  for (std::size_t i = 1, first = 0; i < order.size(); ++i) {
    JsonMember& earlier = (*object)[order[first]];
    JsonMember& later = (*object)[order[i]];
    if (earlier.name != later.name) {
      first = i;
      continue;
    }
    earlier.value = std::move(later.value);
    is_kept[order[i]] = false;
    --num_kept;
  }
  if (num_kept == object->size()) return;
  JsonValue::Object kept;
  kept.reserve(num_kept);
  for (std::size_t i = 0; i < object->size(); ++i) {
    if (is_kept[i]) kept.push_back(std::move((*object)[i]));
  }
  *object = std::move(kept);
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  JsonValue Parse() {
    SkipSpace();
    JsonValue value = Value(0);
    SkipSpace();
    if (at_ < text_.size()) throw Wrong{"Extra data", at_};
    return value;
  }

 private:
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void SkipSpace() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  bool TakeWord(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  JsonValue Value(int depth) {
    if (depth > kMaxDepth) throw TooMuch();
    switch (Peek()) {
      case '{':
        return JsonValue(ObjectAt(depth));
      case '[':
        return JsonValue(ListAt(depth));
      case '"':
        return JsonValue(Text());
      default:
        return Scalar();
    }
  }

  JsonValue Scalar() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (TakeWord("null")) return JsonValue();
    if (TakeWord("true")) return JsonValue(true);
    if (TakeWord("false")) return JsonValue(false);
    if (TakeWord("NaN")) return JsonValue(std::numeric_limits<double>::quiet_NaN());
    if (TakeWord("Infinity")) return JsonValue(kInfinity);
    if (TakeWord("-Infinity")) return JsonValue(-kInfinity);
    return Number();
  }

  JsonValue Number() {
    const std::size_t start = at_;
    std::size_t end = at_ + (Peek() == '-' ? 1 : 0);
    const std::size_t first = end;
    const auto digit_at = [this](std::size_t i) { return i < text_.size() && IsDigit(text_[i]); };
    while (digit_at(end)) ++end;
    if (end == first) throw Wrong{"Expecting value", start};
    // A number has no zeros before it.
    if (text_[first] == '0') end = first + 1;
    bool is_whole = true;
    if (end < text_.size() && text_[end] == '.' && digit_at(end + 1)) {
      is_whole = false;
      for (++end; digit_at(end);) ++end;
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const bool is_signed =
          end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-');
      std::size_t digits = end + (is_signed ? 2 : 1);
      if (digit_at(digits)) {
        is_whole = false;
        while (digit_at(digits)) ++digits;
        end = digits;
      }
    }
    at_ = end;
    const std::string_view number = text_.substr(start, end - start);
    return is_whole ? Whole(number) : Fraction(number);
  }

  static JsonValue Whole(std::string_view number) {
    std::int64_t value = 0;
    const auto read = std::from_chars(number.data(), number.data() + number.size(), value);
    if (read.ec == std::errc()) return JsonValue(value);
    if (number.size() > kMaxDigits) throw TooMuch();
    return JsonValue(JsonValue::Big{std::string(number)});
  }

  static JsonValue Fraction(std::string_view number) {
    double value = 0;
    const auto read = std::from_chars(number.data(), number.data() + number.size(), value);
    // Beyond the range there are zero and infinity.
    if (read.ec != std::errc()) value = std::strtod(std::string(number).c_str(), nullptr);
    return JsonValue(value);
  }

  JsonValue::List ListAt(int depth) {
    JsonValue::List list;
    ++at_;
    SkipSpace();
    if (Peek() == ']') {
      ++at_;
      return list;
    }
    for (;;) {
      list.push_back(Value(depth + 1));
      SkipSpace();
      const char c = Peek();
      if (c != ',' && c != ']') throw Wrong{"Expecting ',' delimiter", at_};
      ++at_;
      if (c == ']') return list;
      SkipSpace();
    }
  }

  JsonValue::Object ObjectAt(int depth) {
    JsonValue::Object object;
    ++at_;
    SkipSpace();
    if (Peek() == '}') {
      ++at_;
      return object;
    }
    for (;;) {
      if (Peek() != '"') throw Wrong{"Expecting property name enclosed in double quotes", at_};
      std::string name = Text();
      SkipSpace();
      if (Peek() != ':') throw Wrong{"Expecting ':' delimiter", at_};
      ++at_;
      SkipSpace();
      object.push_back({std::move(name), Value(depth + 1)});
      SkipSpace();
      const char c = Peek();
      if (c != ',' && c != '}') throw Wrong{"Expecting ',' delimiter", at_};
      ++at_;
      if (c == '}') break;
      SkipSpace();
    }
    KeepLast(&object);
    return object;
  }

  std::string Text() {
    const std::size_t start = at_++;
    std::string text;
    for (;;) {
      const std::size_t from = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
             static_cast<unsigned char>(text_[at_]) >= 0x20) {
        ++at_;
      }
      text.append(text_.substr(from, at_ - from));
      if (at_ >= text_.size()) throw Wrong{"Unterminated string starting at", start};
      const char c = text_[at_++];
      if (c == '"') return text;
      if (c != '\\') throw Wrong{"Invalid control character at", at_ - 1};
      Escape(start, &text);
    }
  }

  void Escape(std::size_t start, std::string* text) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kChars = "\"\\/\b\f\n\r\t";
    if (at_ >= text_.size()) throw Wrong{"Unterminated string starting at", start};
    const char c = text_[at_++];
    if (c == 'u') return Unicode(text);
    const std::size_t which = kLetters.find(c);
    if (which == kLetters.npos) throw Wrong{"Invalid \\escape", at_ - 2};
    *text += kChars[which];
  }

  std::uint32_t Unit() {
    std::uint32_t unit = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), unit, 16);
    if (digits.size() < 4 || read.ptr != digits.data() + 4 || digits[0] == '-') {
      throw Wrong{"Invalid \\uXXXX escape", at_ - 1};
    }
    at_ += 4;
    return unit;
  }

  void Unicode(std::string* text) {
    std::uint32_t code = Unit();
    // Half a pair of surrogates alone stays what it is: who reads the text as UTF-8 sees it.
    const bool is_high = code >= 0xd800 && code < 0xdc00;
    if (is_high && text_.substr(at_, 2) == "\\u") {
      const std::size_t before = at_;
      at_ += 2;
      const std::uint32_t low = Unit();
      if (low >= 0xdc00 && low < 0xe000) {
        code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
      } else {
        at_ = before;
      }
    }
    AppendUtf8(code, text);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

/// "line 1 column 2 (char 1)", in characters.
std::string PlaceOf(std::string_view text, std::size_t at) {
  std::size_t num_chars = 0;
  std::size_t line = 1;
  std::size_t column = 1;
  for (std::size_t i = 0; i < at;) {
    const bool is_end = text[i] == '\n';
    i += CharAt(text, i).num_bytes;
    ++num_chars;
    line += is_end ? 1 : 0;
    column = is_end ? 1 : column + 1;
  }
  return "line " + std::to_string(line) + " column " + std::to_string(column) + " (char " +
         std::to_string(num_chars) + ")";
}

}  // namespace

JsonValue::Object ParseJsonBody(std::string_view data, std::size_t max_bytes) {
  const std::string size = std::to_string(data.size());
  if (data.size() > max_bytes) {
    throw Error(ErrorKind::kBodyTooLarge,
                "body: got " + size + " bytes of JSON, expected at most " +
                    std::to_string(max_bytes) +
                    "; split the request, send binary tensors, or use the gRPC port");
  }
  std::string_view text = data;
  if (text.substr(0, 3) == kByteOrderMark) text.remove_prefix(3);
  JsonValue value;
  try {
    if (!IsUtf8(text)) throw TooMuch();
    value = Parser(text).Parse();
  } catch (const Wrong& wrong) {
    throw Error(ErrorKind::kRequest, "body: got " + size + " bytes that are not JSON (" +
                                         wrong.text + ": " + PlaceOf(text, wrong.at) + ")");
  } catch (const TooMuch&) {
    throw Error(ErrorKind::kRequest,
                "body: got " + size + " bytes that are not JSON in UTF-8, or nested too deep");
  }
  if (auto* const object = value.As<JsonValue::Object>()) return std::move(*object);
  throw Error(ErrorKind::kRequest,
              std::string("body: got ") + value.kind() + ", expected an object");
}

}  // namespace recsys
