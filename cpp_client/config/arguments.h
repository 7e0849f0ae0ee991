#ifndef RECSYS_CONFIG_ARGUMENTS_H_
#define RECSYS_CONFIG_ARGUMENTS_H_

// The command line's words, read as Python's argparse reads those of recsys-serve.

#include <optional>
#include <string>
#include <vector>

#include "config/given.h"

namespace recsys {

/// What the program is called in its usage.
inline constexpr char kProgram[] = "recsys-server";

/// The command line ends here: help was asked for (code 0), or the words are wrong (code 2).
struct UsageExit {
  int code = 0;
  /// For stdout where the code is 0, else for stderr; with its line ends.
  std::string text;
};

/// What the words say.
struct Arguments {
  /// Texts of flags by their settings' keys, each once, in the order of the table; the artifact's
  /// last.
  Texts flags;
  std::optional<std::string> config;
  bool check_config = false;
  bool json = false;
};

/// One flag.
struct Flag {
  std::string name;
  /// The key of its setting; empty for those that are no setting.
  std::string key;
  /// What help calls its value; empty where it takes none.
  std::string value_name;
  /// What stands for it where it takes no value.
  std::string word;
  /// Empty where help does not show it.
  std::string about;
  /// Flags with the same one exclude each other; empty for none.
  std::string group;
};

/// A flag for each setting of a section, or two.
std::vector<Flag> FlagsOf(const Section& section);
/// Those that are no settings, and -h, --help first.
const std::vector<Flag>& OwnFlags();

/// Reads the words behind the program's name. `columns`: how wide help may be. Throws UsageExit.
Arguments ReadArguments(const std::vector<std::string>& words, int columns);

/// The text of --help.
std::string HelpText(int columns);
/// Its first line.
std::string UsageLine();

}  // namespace recsys

#endif  // RECSYS_CONFIG_ARGUMENTS_H_
