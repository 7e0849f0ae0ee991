#ifndef RECSYS_CHECK_JSON_JSON_H_
#define RECSYS_CHECK_JSON_JSON_H_

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace recsys {

/// JSON whose objects keep the order of their fields.
using Json = nlohmann::ordered_json;

/// A text that is no JSON, or is nested more deeply than anything of ours.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads JSON that nobody vouches for: of fields that stand twice, the last counts, at the place of
/// the first. Throws JsonError. Never takes more than time and memory in proportion to the text.
Json ParseJson(std::string_view text);

/// As Python's json.dumps(value, sort_keys=True, separators=(",", ":")) writes it: what digests are
/// taken of.
std::string CanonicalJson(const Json& value);

/// As Python's json.dumps(value, indent=1) writes it.
std::string IndentedJson(const Json& value);

/// The first 80 characters of what Python's str() makes of the value: for messages.
std::string StrOf(const Json& value);

/// The name of Python's type of the value: for messages.
std::string TypeOf(const Json& value);

}  // namespace recsys

#endif  // RECSYS_CHECK_JSON_JSON_H_
