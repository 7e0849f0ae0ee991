#include "format/json/checked_json.h"

#include <algorithm>
#include <limits>

#include "base/text.h"

namespace recsys {

const Json& JsonField(const Json& data, const char* key, const std::string& at) {
  if (data.is_object()) {
    const auto found = data.find(key);
    if (found != data.end()) return *found;
  }
  throw Error(ErrorKind::kManifest, at + "." + key + ": missing");
}

Error WrongField(const std::string& at, const std::string& key, const std::string& got,
                 const std::string& expected) {
  return Error(ErrorKind::kManifest,
               at + "." + key + ": got " + Repr(got) + ", expected " + expected);
}

const Json& JsonList(const Json& data, const char* key, const std::string& at) {
  const Json& items = JsonField(data, key, at);
  if (!items.is_array()) throw WrongField(at, key, StrOf(items), "a list");
  return items;
}

const Json& JsonMapping(const Json& data, const char* key, const std::string& at) {
  const Json& value = JsonField(data, key, at);
  if (!value.is_object()) throw WrongField(at, key, StrOf(value), "an object");
  return value;
}

std::string JsonText(const Json& data, const char* key, const std::string& at) {
  const Json& value = JsonField(data, key, at);
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    throw WrongField(at, key, StrOf(value), "a non-empty text");
  }
  return value.get<std::string>();
}

std::string JsonChoice(const Json& data, const char* key, const std::string& at,
                       const std::vector<std::string>& choices) {
  std::string value = JsonText(data, key, at);
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  std::string expected;
  for (const std::string& choice : choices) expected += (expected.empty() ? "" : ", ") + choice;
  throw WrongField(at, key, StrOf(Json(value)), "one of " + expected);
}

bool IsWhole(const Json& value, std::int64_t least) {
  if (value.is_number_unsigned()) {
    const auto found = value.get<std::uint64_t>();
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return found <= kMost && static_cast<std::int64_t>(found) >= least;
  }
  return value.is_number_integer() && value.get<std::int64_t>() >= least;
}

std::int64_t JsonWhole(const Json& data, const char* key, const std::string& at,
                       std::int64_t least) {
  const Json& value = JsonField(data, key, at);
  if (!IsWhole(value, least)) {
    throw WrongField(at, key, StrOf(value), "a whole number of at least " + std::to_string(least));
  }
  return value.get<std::int64_t>();
}

std::int64_t JsonCount(const Json& data, const char* key, const std::string& at) {
  return JsonWhole(data, key, at, 1);
}

void CheckFormatVersion(const Json& data, std::int64_t newest, const std::string& at) {
  const std::int64_t version = JsonCount(data, "format_version", at);
  if (version > newest) {
    throw Error(ErrorKind::kNewerFormat, at + ": got format version " + std::to_string(version) +
                                             ", expected at most " + std::to_string(newest) +
                                             "; install a newer release");
  }
}

bool JsonFlag(const Json& data, const char* key, const std::string& at) {
  const Json& value = JsonField(data, key, at);
  if (!value.is_boolean()) throw WrongField(at, key, StrOf(value), "true or false");
  return value.get<bool>();
}

std::vector<std::int64_t> JsonShape(const Json& data, const char* key, const std::string& at) {
  const Json& value = JsonField(data, key, at);
  const bool is_shape =
      value.is_array() &&
      std::all_of(value.begin(), value.end(), [](const Json& v) { return IsWhole(v, 1); });
  if (!is_shape) throw WrongField(at, key, StrOf(value), "a list of whole numbers of at least 1");
  return value.get<std::vector<std::int64_t>>();
}

std::string JsonHex(const Json& data, const char* key, const std::string& at,
                    std::size_t num_digits) {
  std::string value = JsonText(data, key, at);
  if (value.size() != num_digits || value.find_first_not_of("0123456789abcdef") != value.npos) {
    throw WrongField(at, key, StrOf(Json(value)),
                     std::to_string(num_digits) + " hexadecimal digits");
  }
  return value;
}

std::vector<std::string> Doubled(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  std::vector<std::string> doubled;
  for (std::size_t i = 1; i < names.size(); ++i) {
    if (names[i] == names[i - 1] && (doubled.empty() || doubled.back() != names[i])) {
      doubled.push_back(names[i]);
    }
  }
  return doubled;
}

}  // namespace recsys
