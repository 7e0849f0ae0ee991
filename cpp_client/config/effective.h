#ifndef RECSYS_CONFIG_EFFECTIVE_H_
#define RECSYS_CONFIG_EFFECTIVE_H_

#include <optional>
#include <string>
#include <vector>

#include "config/given.h"
#include "config/settings.h"

namespace recsys {

/// What holds (serve/config_file.py).
struct Effective {
  /// All settings, checked.
  Settings settings;
  /// Those that somebody gave; the others have their defaults.
  Values given;

  /// A setting that holds, its value, and where it came from.
  struct Row {
    std::string key;
    Value value;
    std::string origin;
  };
  /// All of them; of single models those alone that differ from `defaults` because somebody said
  /// so.
  std::vector<Row> Rows() const;
};

/// Puts the sources together: a flag beats the environment, that beats the file, that beats the
/// default. `file`: none for the one that the environment names, if any. Throws Error (kConfig)
/// with who said it, which key, what was got and what was expected.
Effective MakeEffective(const Texts& flags, const Texts& environment,
                        const std::optional<std::string>& file);

/// The values of all settings by path: for the report, and for tests. Tables that are off have
/// none.
Values ValuesOf(const Settings& settings);

}  // namespace recsys

#endif  // RECSYS_CONFIG_EFFECTIVE_H_
