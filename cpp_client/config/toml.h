#ifndef RECSYS_CONFIG_TOML_H_
#define RECSYS_CONFIG_TOML_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace recsys {

/// A value of a TOML file.
struct Toml {
  /// kOther: a date or a time, which no setting is; `text` has it as it was written.
  enum class Kind { kYesNo, kWhole, kNumber, kText, kOther, kArray, kTable };

  Kind kind = Kind::kTable;
  bool yes = false;
  std::int64_t whole = 0;
  double number = 0;
  std::string text;
  std::vector<Toml> items;
  std::map<std::string, Toml> table;

  /// As Python's str() writes it.
  std::string Str() const;
  /// As Python's repr() writes it.
  std::string Repr() const;
};

/// Reads a document. Throws Error (kConfig) with what is wrong and the line, where it is no TOML;
/// nothing in the text can crash it.
Toml ParseToml(const std::string& text);

}  // namespace recsys

#endif  // RECSYS_CONFIG_TOML_H_
