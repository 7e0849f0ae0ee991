#ifndef RECSYS_CONFIG_CHECK_H_
#define RECSYS_CONFIG_CHECK_H_

// What --check-config finds: everything that can be known without serving (serve/check_config.py).

#include <functional>
#include <string>
#include <vector>

#include "config/settings.h"

namespace recsys {

/// What the check asks rooms that config/ does not know. Each may throw what it says; all may
/// block.
struct ModelsThere {
  /// The models, sorted: those that source.models names, or all. Throws std::system_error where a
  /// repository cannot be read.
  std::function<std::vector<std::string>()> names;
  /// All models of a repository, whatever source.models names. Throws as `names`.
  std::function<std::vector<std::string>()> all_names;
  /// A model's versions, the oldest first.
  std::function<std::vector<std::string>(const std::string& model)> versions;
  /// The artifact. Throws Error.
  std::function<std::string(const std::string& model, const std::string& version)> path;
  /// Reads and checks a manifest (DescribeArtifact). Throws Error.
  std::function<void(const std::string& path)> check_manifest;
  /// Looks at the parts' sizes and the target (CheckArtifact); an empty target is any. Throws
  /// Error.
  std::function<void(const std::string& path, const std::string& target)> check_artifact;
  /// Opens a capture and reads its header. Throws Error (kCapture). May be empty: then captures are
  /// not looked at.
  std::function<void(const std::string& path)> check_capture;
};

/// Something that an operator should know.
struct Finding {
  /// Whether the server would not start, or not serve, with it.
  bool is_error = true;
  /// Names the setting, what it is, and what it should be.
  std::string text;
};

/// Looks at all files, ports and processors that the settings name. Nothing is loaded, no port is
/// opened.
std::vector<Finding> CheckSettings(const Settings& settings, const ModelsThere& models);

/// The errors among what is cheap to find, and would not show before the server is up, or never by
/// itself.
std::vector<std::string> CheckStart(const Settings& settings, const ModelsThere& models);

/// What the settings ask for and this server has not: the text says what to do. Empty where there
/// is nothing.
std::string Unsupported(const ServerSettings& settings);

}  // namespace recsys

#endif  // RECSYS_CONFIG_CHECK_H_
