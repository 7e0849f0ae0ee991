#include "engine/settings/json_fields.h"

#include <limits>
#include <utility>

namespace recsys {
namespace {

[[noreturn]] void Refuse(const std::string& name, const std::string& got,
                         const std::string& expected) {
  throw Error(ErrorKind::kConfig, name + ": got " + got + ", expected " + expected);
}

Json Parsed(std::string_view json, const std::string& what) {
  try {
    return ParseJson(json);
  } catch (const JsonError& error) {
    throw Error(ErrorKind::kConfig, what + ": expected JSON: " + error.what());
  }
}

std::string TextOf(const char* name, const Json& value) {
  if (!value.is_string()) Refuse(name, StrOf(value), "a text");
  return value.get<std::string>();
}

double NumberOf(const char* name, const Json& value) {
  if (!value.is_number()) Refuse(name, StrOf(value), "a number");
  return value.get<double>();
}

std::int64_t WholeOf(const char* name, const Json& value) {
  const bool is_too_large =
      value.is_number_unsigned() &&
      value.get<std::uint64_t>() >
          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_integer() || is_too_large) Refuse(name, StrOf(value), "a whole number");
  return value.get<std::int64_t>();
}

const Json& ListOf(const char* name, const Json& value) {
  if (!value.is_array()) Refuse(name, StrOf(value), "a list");
  return value;
}

}  // namespace

JsonFields::JsonFields(std::string_view json, std::string what)
    : JsonFields(Parsed(json, what), what) {}

JsonFields::JsonFields(Json object, std::string what)
    : object_(std::move(object)), what_(std::move(what)) {
  if (!object_.is_object()) Refuse(what_, StrOf(object_), "an object");
}

const Json* JsonFields::Find(const char* name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::Read(const char* name, std::string* value) {
  if (const Json* found = Find(name)) *value = TextOf(name, *found);
}

void JsonFields::Read(const char* name, bool* value) {
  const Json* found = Find(name);
  if (found == nullptr) return;
  if (!found->is_boolean()) Refuse(name, StrOf(*found), "true or false");
  *value = found->get<bool>();
}

void JsonFields::Read(const char* name, double* value) {
  if (const Json* found = Find(name)) *value = NumberOf(name, *found);
}

void JsonFields::Read(const char* name, std::int64_t* value) {
  if (const Json* found = Find(name)) *value = WholeOf(name, *found);
}

void JsonFields::Read(const char* name, std::vector<std::int64_t>* value) {
  const Json* found = Find(name);
  if (found == nullptr) return;
  value->clear();
  for (const Json& one : ListOf(name, *found)) value->push_back(WholeOf(name, one));
}

void JsonFields::Read(const char* name, std::set<std::string>* value) {
  const Json* found = Find(name);
  if (found == nullptr) return;
  value->clear();
  for (const Json& one : ListOf(name, *found)) value->insert(TextOf(name, one));
}

void JsonFields::Read(const char* name, std::map<std::string, std::string>* value) {
  const Json* found = Find(name);
  if (found == nullptr) return;
  if (!found->is_object()) Refuse(name, StrOf(*found), "an object of texts");
  value->clear();
  for (const auto& [key, text] : found->items()) (*value)[key] = TextOf(name, text);
}

void JsonFields::Read(const char* name, std::optional<std::string>* value) {
  if (const Json* found = Find(name)) *value = TextOf(name, *found);
}

void JsonFields::Read(const char* name, std::optional<double>* value) {
  if (const Json* found = Find(name)) *value = NumberOf(name, *found);
}

std::optional<JsonFields> JsonFields::Object(const char* name) {
  const Json* found = Find(name);
  if (found == nullptr) return std::nullopt;
  return JsonFields(*found, name);
}

void JsonFields::Finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (known_.count(name) == 0) {
      throw Error(ErrorKind::kConfig, what_ + ": got an unknown field " + Short(name));
    }
  }
}

}  // namespace recsys
