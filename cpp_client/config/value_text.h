#ifndef RECSYS_CONFIG_VALUE_TEXT_H_
#define RECSYS_CONFIG_VALUE_TEXT_H_

// Values as texts of flags, of environment variables and of the file. None where the text is no
// such value.

#include <optional>
#include <string>
#include <string_view>

#include "config/option.h"

namespace recsys {

/// Of ASCII letters alone.
std::string LowerCase(std::string_view text);
/// "true", "yes", "on", "1" and their opposites.
std::optional<Value> ReadYesNo(std::string_view text);
/// At most 18 digits, perhaps with a minus.
std::optional<Value> ReadWhole(std::string_view text);
/// Bytes: 4096, 8MiB, 1.5GB, 80G (recsys/options.py).
std::optional<Value> ReadSize(std::string_view text);
/// What Python's float() reads: "0.5", "1e3", "inf", "nan", "1_000", with white space around.
std::optional<Value> ReadNumber(std::string_view text);
/// "0-3,5" as numbers, each once, in ascending order; none above 65535.
std::optional<Value> ReadNumbers(std::string_view text);
/// Names with commas between, without white space around.
std::optional<Value> ReadTexts(std::string_view text);

/// A value as the check's table shows it to people.
std::string ShownValue(const Value& value);
/// A value as Python's json.dumps() writes it.
std::string JsonValue(const Value& value);
/// A text as Python's json.dumps() writes it: ASCII alone. What is no UTF-8 is a lone surrogate, as
/// in Python.
std::string JsonText(std::string_view text);

}  // namespace recsys

#endif  // RECSYS_CONFIG_VALUE_TEXT_H_
