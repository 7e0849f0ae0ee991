#ifndef RECSYS_CONFIG_TOML_BRACKETS_H_
#define RECSYS_CONFIG_TOML_BRACKETS_H_

#include <string_view>

namespace recsys {

/// Sees that brackets and braces outside strings and comments close each other, and nest no deeper
/// than a reader that calls itself can go, and that strings begin where TOML has them begin, and
/// end: cpptoml minds none of it. Throws Error (kConfig) with the line.
void CheckBrackets(std::string_view text);

}  // namespace recsys

#endif  // RECSYS_CONFIG_TOML_BRACKETS_H_
