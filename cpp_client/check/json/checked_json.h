#ifndef RECSYS_CHECK_JSON_CHECKED_JSON_H_
#define RECSYS_CHECK_JSON_CHECKED_JSON_H_

// Reading JSON that nobody vouches for: every field is checked, every error (kManifest) names it,
// in the words of recsys/checked.py. `at` is the path of the object that is read, `key` the field
// in it.

#include <cstdint>
#include <string>
#include <vector>

#include "check/json/json.h"
#include "recsys/error.h"

namespace recsys {

/// The field, whatever it is.
const Json& JsonField(const Json& data, const char* key, const std::string& at);

/// The error for a field that is not what it should be. `got`: as Python's str() writes it.
Error WrongField(const std::string& at, const std::string& key, const std::string& got,
                 const std::string& expected);

/// The field, which is a list.
const Json& JsonList(const Json& data, const char* key, const std::string& at);

/// Calls with each item of a list and its path.
template <typename Call>
void ForEachItem(const Json& data, const char* key, const std::string& at, Call call) {
  std::size_t i = 0;
  for (const Json& item : JsonList(data, key, at)) {
    call(at + "." + key + "[" + std::to_string(i++) + "]", item);
  }
}

/// The field, which is an object.
const Json& JsonMapping(const Json& data, const char* key, const std::string& at);

/// A non-empty text.
std::string JsonText(const Json& data, const char* key, const std::string& at);

/// One of the choices.
std::string JsonChoice(const Json& data, const char* key, const std::string& at,
                       const std::vector<std::string>& choices);

/// A whole number from `least` to what an int64 holds.
std::int64_t JsonWhole(const Json& data, const char* key, const std::string& at,
                       std::int64_t least = 0);

/// A whole number of at least 1.
std::int64_t JsonCount(const Json& data, const char* key, const std::string& at);

/// Whether the value is a whole number from `least` to what an int64 holds.
bool IsWhole(const Json& value, std::int64_t least);

/// The field `format_version`: not above `newest`. Throws Error (kNewerFormat) too.
void CheckFormatVersion(const Json& data, std::int64_t newest, const std::string& at);

bool JsonFlag(const Json& data, const char* key, const std::string& at);

/// A list of whole numbers of at least 1.
std::vector<std::int64_t> JsonShape(const Json& data, const char* key, const std::string& at);

/// That many hexadecimal digits.
std::string JsonHex(const Json& data, const char* key, const std::string& at,
                    std::size_t num_digits);

/// Names as Python prints a list of texts, at most the first `most`.
std::string PythonList(const std::vector<std::string>& names, std::size_t most = SIZE_MAX);

/// Names that stand more than once, sorted, each once.
std::vector<std::string> Doubled(std::vector<std::string> names);

}  // namespace recsys

#endif  // RECSYS_CHECK_JSON_CHECKED_JSON_H_
