#include "check/json/json.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/text.h"
#include "base/utf8.h"

namespace recsys {
namespace {

// Python's parser also stops at some hundreds.
constexpr std::size_t kMaxDepth = 200;
constexpr std::size_t kMaxStrChars = 80;

using Fields = std::vector<std::pair<const std::string, Json>>;

/// If a field occurs twice, keeps the last value, at the position of the first. Sorts the fields:
/// chosen names could all collide in a hash table.
void KeepLast(Json* object) {
  Fields& fields = object->get_ref<Json::object_t&>();
  if (fields.size() < 2) return;
  std::vector<std::size_t> order(fields.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&fields](std::size_t a, std::size_t b) {
    const int compared = fields[a].first.compare(fields[b].first);
    return compared < 0 || (compared == 0 && a < b);
  });
  std::vector<bool> is_kept(fields.size(), true);
  bool is_doubled = false;
  for (std::size_t i = 1, first = 0; i < order.size(); ++i) {
    if (fields[order[first]].first != fields[order[i]].first) {
      first = i;
      continue;
    }
    fields[order[first]].second = std::move(fields[order[i]].second);
    is_kept[order[i]] = false;
    is_doubled = true;
  }
  if (!is_doubled) return;
  Json::object_t kept;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (!is_kept[i]) continue;
    static_cast<Fields&>(kept).emplace_back(fields[i].first, std::move(fields[i].second));
  }
  *object = std::move(kept);
}

/// Builds the value. The library's own builder searches all fields of an object for each of its
/// fields, and does not bound the depth.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Json Take() { return std::move(root_); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*num*/) override { return Start(Json::object()); }
  bool start_array(std::size_t /*num*/) override { return Start(Json::array()); }
  bool end_array() override { return End(); }
  bool end_object() override {
    KeepLast(open_.back());
    return End();
  }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t at, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    throw JsonError("not JSON at byte " + std::to_string(at));
  }

 private:
  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }
  bool Start(Json value) {
    if (open_.size() >= kMaxDepth) throw JsonError("nested too deeply");
    open_.push_back(Place(std::move(value)));
    return true;
  }
  bool End() {
    open_.pop_back();
    return true;
  }
  /// Adds a value to the innermost open one. An open value is the last item of its parent, which
  /// does not grow before it is closed: pointers to open values stay valid.
  Json* Place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Fields& fields = parent.get_ref<Json::object_t&>();
    fields.emplace_back(std::move(key_), std::move(value));
    return &fields.back().second;
  }

  Json root_;
  std::vector<Json*> open_;
  std::string key_;
};

/// Appends a text like Python's json.dumps with ensure_ascii.
void AppendString(const std::string& value, std::string* out) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto escape = [&](std::uint32_t unit) {
    *out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) *out += kDigits[unit >> shift & 15];
  };
  *out += '"';
  for (std::size_t at = 0; at < value.size();) {
    const Utf8Char found = CharAt(value, at);
    at += found.num_bytes;
    const char* const kShort = "\"\\\n\r\t\f\b";
    const char* const kLetters = "\"\\nrtfb";
    const char* special = found.code != 0 && found.code < 0x80
                              ? std::strchr(kShort, static_cast<int>(found.code))
                              : nullptr;
    if (special != nullptr) {
      *out += '\\';
      *out += kLetters[special - kShort];
    } else if (found.code >= 0x20 && found.code < 0x7f) {
      *out += static_cast<char>(found.code);
    } else if (found.code < 0x10000) {
      escape(found.code);
    } else {
      escape(0xd800 + ((found.code - 0x10000) >> 10));
      escape(0xdc00 + ((found.code - 0x10000) & 0x3ff));
    }
  }
  *out += '"';
}

class Writer {
 public:
  Writer(bool is_canonical, std::string* out) : is_canonical_(is_canonical), out_(out) {}

  void Write(const Json& value, std::size_t depth = 0) {
    if (value.is_object()) {
      std::vector<const Fields::value_type*> fields;
      for (const auto& field : value.get_ref<const Json::object_t&>()) fields.push_back(&field);
      // UTF-8 bytes sort in the order of the characters.
      if (is_canonical_) {
        std::sort(fields.begin(), fields.end(),
                  [](auto* a, auto* b) { return a->first < b->first; });
      }
      List('{', '}', fields.size(), depth, [&](std::size_t i) {
        AppendString(fields[i]->first, out_);
        *out_ += is_canonical_ ? ":" : ": ";
        Write(fields[i]->second, depth + 1);
      });
    } else if (value.is_array()) {
      List('[', ']', value.size(), depth, [&](std::size_t i) { Write(value[i], depth + 1); });
    } else {
      Scalar(value);
    }
  }

 private:
  void Scalar(const Json& value) {
    if (value.is_string()) {
      AppendString(value.get_ref<const std::string&>(), out_);
    } else if (value.is_number_float()) {
      *out_ += ReprFloat(value.get<double>());
    } else {
      *out_ += value.dump();
    }
  }

  template <typename Item>
  void List(char open, char close, std::size_t size, std::size_t depth, Item item) {
    *out_ += open;
    for (std::size_t i = 0; i < size; ++i) {
      if (i > 0) *out_ += ',';
      Line(depth + 1);
      item(i);
    }
    if (size > 0) Line(depth);
    *out_ += close;
  }

  void Line(std::size_t depth) {
    if (is_canonical_) return;
    *out_ += '\n';
    out_->append(depth, ' ');
  }

  bool is_canonical_;
  std::string* out_;
};

/// Appends Python's repr(); stops once it is longer than any message shows.
void AppendPython(const Json& value, std::string* out) {
  if (out->size() > 4 * kMaxStrChars) return;
  if (value.is_string()) {
    *out += Repr(FirstChars(value.get_ref<const std::string&>(), kMaxStrChars + 1));
  } else if (value.is_object() || value.is_array()) {
    const bool is_object = value.is_object();
    *out += is_object ? '{' : '[';
    bool is_first = true;
    for (auto item = value.begin(); item != value.end() && out->size() <= 4 * kMaxStrChars;
         ++item) {
      if (!is_first) *out += ", ";
      is_first = false;
      if (is_object) *out += Repr(FirstChars(item.key(), kMaxStrChars + 1)) + ": ";
      AppendPython(*item, out);
    }
    *out += is_object ? '}' : ']';
  } else if (value.is_boolean()) {
    *out += value.get<bool>() ? "True" : "False";
  } else if (value.is_number_float()) {
    *out += ReprFloat(value.get<double>());
  } else {
    *out += value.is_null() ? "None" : value.dump();
  }
}

}  // namespace

Json ParseJson(std::string_view text) {
  Builder builder;
  if (!Json::sax_parse(text, &builder)) throw JsonError("not JSON");
  return builder.Take();
}

std::string CanonicalJson(const Json& value) {
  std::string text;
  Writer(true, &text).Write(value);
  return text;
}

std::string IndentedJson(const Json& value) {
  std::string text;
  Writer(false, &text).Write(value);
  return text;
}

std::string StrOf(const Json& value) {
  std::string text;
  if (value.is_string()) {
    text = value.get_ref<const std::string&>();
  } else {
    AppendPython(value, &text);
  }
  return std::string(FirstChars(text, kMaxStrChars));
}

std::string TypeOf(const Json& value) {
  if (value.is_object()) return "dict";
  if (value.is_array()) return "list";
  if (value.is_string()) return "str";
  if (value.is_boolean()) return "bool";
  if (value.is_null()) return "NoneType";
  return value.is_number_float() ? "float" : "int";
}

}  // namespace recsys
