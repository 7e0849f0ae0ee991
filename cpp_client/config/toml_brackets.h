#ifndef RECSYS_CONFIG_TOML_BRACKETS_H_
#define RECSYS_CONFIG_TOML_BRACKETS_H_

#include <string_view>

namespace recsys {

/// Sees that brackets and braces outside strings and comments close each other, and nest no deeper
/// than a reader that calls itself can go: cpptoml minds neither. Throws Error (kConfig) with the
/// line. A string that does not end ends the search: whoever reads the document finds it.
void CheckBrackets(std::string_view text);

}  // namespace recsys

#endif  // RECSYS_CONFIG_TOML_BRACKETS_H_
