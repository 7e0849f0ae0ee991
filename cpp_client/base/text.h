#ifndef RECSYS_BASE_TEXT_H_
#define RECSYS_BASE_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

namespace recsys {

/// A text as Python's repr() writes it, so that both servers say the same: quotes, escapes, what is
/// no UTF-8 as \x..
std::string Repr(std::string_view text);

/// Repr of at most 64 characters of it (serve/texts.py).
std::string Short(std::string_view text);

/// Names with commas between: the first eight, and how many more there are (serve/texts.py).
std::string Listed(const std::vector<std::string>& names);

/// `; did you mean a or b?`, or nothing where nothing known is near (serve/texts.py, difflib's
/// ratio).
std::string NearMisses(std::string_view name, const std::vector<std::string>& known);

/// A double as Python's repr() writes it: the shortest text that reads back as the same number.
std::string ReprFloat(double value);

/// Whether all of it is well-formed UTF-8 (no surrogates, nothing overlong).
bool IsUtf8(std::string_view text);

}  // namespace recsys

#endif  // RECSYS_BASE_TEXT_H_
