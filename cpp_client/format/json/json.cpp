#include "format/json/json.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/text.h"

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

}  // namespace

Json ParseJson(std::string_view text) {
  Builder builder;
  if (!Json::sax_parse(text, &builder)) throw JsonError("not JSON");
  return builder.Take();
}

std::string StrOf(const Json& value) {
  const std::string text = value.is_string()
                               ? value.get<std::string>()
                               : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return std::string(FirstChars(text, kMaxStrChars));
}

}  // namespace recsys
