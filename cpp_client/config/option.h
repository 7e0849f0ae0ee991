#ifndef RECSYS_CONFIG_OPTION_H_
#define RECSYS_CONFIG_OPTION_H_

// Every setting's names and values. The table is options_table.inc, made from Python's; nothing
// here knows a setting.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/toml.h"

namespace recsys {

/// The fields that lead to a setting, from the top of the file.
using SettingPath = std::vector<std::string>;

/// A setting's value; monostate for none. Paths are texts.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string,
                           std::vector<std::int64_t>, std::vector<std::string>>;

enum class Kind { kYesNo, kWhole, kNumber, kText, kPath, kNumbers, kTexts };

/// One setting (serve/options.py).
struct Option {
  SettingPath path;
  Kind kind = Kind::kText;
  /// Whether "none" is a value.
  bool is_optional = false;
  /// As a text; none where somebody must give it.
  std::optional<std::string> default_text;
  /// What help calls it where it needs none.
  std::string flag;
  std::string environment;
  std::string about;

  /// Its key in the file, with the tables that it stands in.
  std::string key() const;
  bool is_size() const;
  /// The value of a flag or an environment variable. Throws Error (kConfig) with what was got and
  /// expected.
  Value FromText(const std::string& text) const;
  /// The value of a key of the file. Throws Error (kConfig).
  Value FromFile(const Toml& value) const;
  /// What its values look like, for people.
  std::string Expected() const;
};

/// Settings that stand in one table of the file.
struct Section {
  SettingPath path;
  std::string about;
  /// Whether what it is about is off where none of it is given.
  bool is_optional = false;
  std::vector<Option> options;
};

inline constexpr char kEnvironmentPrefix[] = "RECSYS_SERVE_";

/// All settings but those of single models.
const std::vector<Section>& Sections();
/// The settings of one model.
std::vector<Section> ModelSections(const std::string& model);
/// The one setting that the command line takes without a flag.
bool IsPositional(const Option& option);

/// A path as people write it.
std::string KeyOf(const SettingPath& path);
/// A path without doubled slashes and dots, as Python's Path writes it.
std::string CleanPath(std::string_view text);
/// Repr of at most 80 characters.
std::string Cut(std::string_view text);

}  // namespace recsys

#endif  // RECSYS_CONFIG_OPTION_H_
