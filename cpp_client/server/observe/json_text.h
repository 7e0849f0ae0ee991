#ifndef RECSYS_SERVER_OBSERVE_JSON_TEXT_H_
#define RECSYS_SERVER_OBSERVE_JSON_TEXT_H_

#include <string>
#include <string_view>

namespace recsys {

/// A text as JSON has it, in ASCII alone, as Python's json.dumps writes it: nothing in it can end a
/// line, or turn one around in a terminal. What is no UTF-8 becomes U+FFFD.
void AppendJsonString(std::string_view value, std::string* json);

/// A number as JSON has it: the shortest text that reads back as the same number; null for NaN and
/// infinities.
void AppendJsonNumber(double value, std::string* json);

}  // namespace recsys

#endif  // RECSYS_SERVER_OBSERVE_JSON_TEXT_H_
