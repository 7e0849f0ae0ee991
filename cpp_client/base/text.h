#ifndef RECSYS_BASE_TEXT_H_
#define RECSYS_BASE_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

namespace recsys {

/// Returns a text in quotes, for messages and logs: quotes, backslashes, control characters and
/// what is no UTF-8 are escaped.
std::string Repr(std::string_view text);

/// Returns Repr of at most the first 64 characters.
std::string Short(std::string_view text);

/// Joins names with commas: the first eight, and how many more there are.
std::string Listed(const std::vector<std::string>& names);

/// Returns the shortest text that reads back as the same number.
std::string ReprFloat(double value);

/// Whether the text is well-formed UTF-8 (no surrogates, no overlong sequences).
bool IsUtf8(std::string_view text);

}  // namespace recsys

#endif  // RECSYS_BASE_TEXT_H_
