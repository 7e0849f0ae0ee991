#include "engine/settings/read_settings.h"

#include <limits>
#include <string>
#include <type_traits>

#include "base/text.h"
#include "format/json/json.h"
#include "recsys/error.h"

namespace recsys {
namespace {

[[noreturn]] void Refuse(const std::string& name, const Json& got, const char* expected) {
  throw Error(ErrorKind::kConfig, name + ": got " + StrOf(got) + ", expected " + expected);
}

void Read(const char* name, const Json& json, std::string* value) {
  if (!json.is_string()) Refuse(name, json, "a text");
  *value = json.get<std::string>();
}

void Read(const char* name, const Json& json, bool* value) {
  if (!json.is_boolean()) Refuse(name, json, "true or false");
  *value = json.get<bool>();
}

void Read(const char* name, const Json& json, double* value) {
  if (!json.is_number()) Refuse(name, json, "a number");
  *value = json.get<double>();
}

void Read(const char* name, const Json& json, std::int64_t* value) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool is_too_large = json.is_number_unsigned() && json.get<std::uint64_t>() > kMost;
  if (!json.is_number_integer() || is_too_large) Refuse(name, json, "a whole number");
  *value = json.get<std::int64_t>();
}

void Read(const char* name, const Json& json, std::vector<std::int64_t>* value) {
  if (!json.is_array()) Refuse(name, json, "a list");
  value->resize(json.size());
  for (std::size_t i = 0; i < json.size(); ++i) Read(name, json[i], &(*value)[i]);
}

void Read(const char* name, const Json& json, std::set<std::string>* value) {
  if (!json.is_array()) Refuse(name, json, "a list");
  for (const Json& one : json) {
    std::string text;
    Read(name, one, &text);
    value->insert(std::move(text));
  }
}

void Read(const char* name, const Json& json, std::map<std::string, std::string>* value) {
  if (!json.is_object()) Refuse(name, json, "an object of texts");
  for (const auto& [key, text] : json.items()) Read(name, text, &(*value)[key]);
}

template <typename Value>
void Read(const char* name, const Json& json, std::optional<Value>* value) {
  Read(name, json, &value->emplace());
}

template <typename Settings>
std::enable_if_t<std::is_aggregate_v<Settings>> Read(const char* name, const Json& json,
                                                     Settings* settings) {
  if (!json.is_object()) Refuse(name, json, "an object");
  std::set<std::string> known;
  Settings::ForEach(*settings, [&](const char* field, auto& value, const Bounds&) {
    known.insert(field);
    const auto found = json.find(field);
    if (found != json.end() && !found->is_null()) Read(field, *found, &value);
  });
  for (const auto& [field, value] : json.items()) {
    if (known.count(field) > 0) continue;
    throw Error(ErrorKind::kConfig, std::string(name) + ": got an unknown field " + Short(field));
  }
}

const char* NameOf(const EngineSettings*) { return "the engine's settings"; }
const char* NameOf(const PortSettings*) { return "the port's settings"; }
const char* NameOf(const VersionSettings*) { return "the version's settings"; }
const char* NameOf(const RouteSpec*) { return "the route table"; }
const char* NameOf(const SubmitOptions*) { return "the request's options"; }

}  // namespace

template <typename Settings>
Settings ReadSettings(std::string_view json) {
  Settings settings;
  const char* const name = NameOf(&settings);
  try {
    Read(name, ParseJson(json), &settings);
  } catch (const JsonError& error) {
    throw Error(ErrorKind::kConfig, std::string(name) + ": expected JSON: " + error.what());
  }
  settings.Check();
  return settings;
}

template EngineSettings ReadSettings(std::string_view);
template PortSettings ReadSettings(std::string_view);
template VersionSettings ReadSettings(std::string_view);
template RouteSpec ReadSettings(std::string_view);
template SubmitOptions ReadSettings(std::string_view);

}  // namespace recsys
