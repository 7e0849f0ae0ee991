#ifndef RECSYS_FORMAT_JSON_JSON_H_
#define RECSYS_FORMAT_JSON_JSON_H_

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace recsys {

/// JSON whose objects keep the order of their fields.
using Json = nlohmann::ordered_json;

/// A text that is not JSON, or is nested deeper than any file of this project.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads untrusted JSON. If a field occurs twice, the last value is used, at the position of the
/// first. Throws JsonError. Time and memory are bounded in proportion to the text.
Json ParseJson(std::string_view text);

/// Returns the first 80 characters of the value, for messages: a text as it is, others as JSON.
std::string StrOf(const Json& value);

}  // namespace recsys

#endif  // RECSYS_FORMAT_JSON_JSON_H_
