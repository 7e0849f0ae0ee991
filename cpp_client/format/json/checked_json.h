#ifndef RECSYS_FORMAT_JSON_CHECKED_JSON_H_
#define RECSYS_FORMAT_JSON_CHECKED_JSON_H_

// Reads untrusted JSON: every field is checked, every error (kManifest) names it, as in
// recsys/base/json_checks.py. `at` is the path of the object being read, `key` the field in it.

#include <cstdint>
#include <string>
#include <vector>

#include "format/json/json.h"
#include "recsys/error.h"

namespace recsys {

/// Returns the field, of any type.
const Json& JsonField(const Json& data, const char* key, const std::string& at);

/// Returns the error for an invalid field. `got`: of StrOf.
Error WrongField(const std::string& at, const std::string& key, const std::string& got,
                 const std::string& expected);

/// Returns the field, which must be a list.
const Json& JsonList(const Json& data, const char* key, const std::string& at);

/// Calls `call` with the path and value of each item of a list.
template <typename Call>
void ForEachItem(const Json& data, const char* key, const std::string& at, Call call) {
  std::size_t i = 0;
  for (const Json& item : JsonList(data, key, at)) {
    call(at + "." + key + "[" + std::to_string(i++) + "]", item);
  }
}

/// Returns the field, which must be an object.
const Json& JsonMapping(const Json& data, const char* key, const std::string& at);

/// Returns a non-empty text.
std::string JsonText(const Json& data, const char* key, const std::string& at);

/// Returns one of the choices.
std::string JsonChoice(const Json& data, const char* key, const std::string& at,
                       const std::vector<std::string>& choices);

/// Returns a whole number from `least` to the largest int64.
std::int64_t JsonWhole(const Json& data, const char* key, const std::string& at,
                       std::int64_t least = 0);

/// Returns a whole number of at least 1.
std::int64_t JsonCount(const Json& data, const char* key, const std::string& at);

/// Whether the value is a whole number from `least` to the largest int64.
bool IsWhole(const Json& value, std::int64_t least);

/// Checks that the field `format_version` is not above `newest`. May also throw Error
/// (kNewerFormat).
void CheckFormatVersion(const Json& data, std::int64_t newest, const std::string& at);

bool JsonFlag(const Json& data, const char* key, const std::string& at);

/// Returns a list of whole numbers of at least 1.
std::vector<std::int64_t> JsonShape(const Json& data, const char* key, const std::string& at);

/// Returns a text of `num_digits` hexadecimal digits.
std::string JsonHex(const Json& data, const char* key, const std::string& at,
                    std::size_t num_digits);

/// Returns the names that occur more than once, sorted, each once.
std::vector<std::string> Doubled(std::vector<std::string> names);

}  // namespace recsys

#endif  // RECSYS_FORMAT_JSON_CHECKED_JSON_H_
