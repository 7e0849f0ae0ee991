#ifndef RECSYS_CONFIG_GIVEN_H_
#define RECSYS_CONFIG_GIVEN_H_

// What flags, the environment and the file say, each value with who said it (serve/config_file.py).

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "config/option.h"

namespace recsys {

/// A value and who gave it: a flag, an environment name, or the file.
struct Given {
  Value value;
  std::string origin;
};

/// Values by path, in the order in which they came.
class Values {
 public:
  /// What is there already keeps its place.
  void Set(const SettingPath& path, Given given);
  /// Null where nobody gave it.
  const Given* Find(const SettingPath& path) const;
  /// Null where nobody gave anything at or below `path`; else who did first.
  const Given* FirstBelow(const SettingPath& path) const;
  const std::vector<std::pair<SettingPath, Given>>& all() const { return all_; }

 private:
  std::vector<std::pair<SettingPath, Given>> all_;
  std::map<SettingPath, std::size_t> places_;
};

/// Names and texts in their order: variables of the process, or texts of flags by the setting's
/// key.
using Texts = std::vector<std::pair<std::string, std::string>>;

inline constexpr char kModelsTable[] = "models";
inline constexpr char kDefaultsTable[] = "defaults";
/// The environment's way to say --config.
inline constexpr char kConfigEnvironment[] = "RECSYS_SERVE_CONFIG";

/// Adds the settings of a TOML file, whose paths are relative to its own folder. Throws Error
/// (kConfig): it cannot be read, is no TOML, or holds a key or a value that is none of ours.
void ReadFile(const std::string& path, Values* values);
/// Adds those of the variables that are ours; what Kubernetes says of a service of our name is
/// passed over.
void ReadEnvironment(const Texts& environment, Values* values);
/// Adds those of the flags, which are named by their settings' keys.
void ReadFlags(const Texts& flags, Values* values);

}  // namespace recsys

#endif  // RECSYS_CONFIG_GIVEN_H_
