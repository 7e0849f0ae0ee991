#ifndef RECSYS_BASE_TEXT_H_
#define RECSYS_BASE_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

namespace recsys {

/// Returns a text as Python's repr() writes it, so that both servers print the same: quotes,
/// escapes, invalid UTF-8 as \x..
std::string Repr(std::string_view text);

/// Returns Repr of at most the first 64 characters (serve/errors.py).
std::string Short(std::string_view text);

/// Joins names with commas: the first eight, and how many more there are (serve/errors.py).
std::string Listed(const std::vector<std::string>& names);

/// Returns `; did you mean a or b?`, or an empty text if no known name is close (recsys/cli.py,
/// difflib's ratio).
std::string NearMisses(std::string_view name, const std::vector<std::string>& known);

/// Returns a double as Python's repr() writes it: the shortest text that reads back as the same
/// number.
std::string ReprFloat(double value);

/// Whether the text is well-formed UTF-8 (no surrogates, no overlong sequences).
bool IsUtf8(std::string_view text);

}  // namespace recsys

#endif  // RECSYS_BASE_TEXT_H_
