#ifndef RECSYS_CONFIG_CLI_H_
#define RECSYS_CONFIG_CLI_H_

// The command line of recsys-server: the twin of serve/cli.py. A main() calls RunCommandLine with
// what it can do:
//
//   int main(int argc, char** argv) {
//     recsys::ServerCommands commands;
//     commands.open_models = ...;
//     commands.serve = ...;
//     return recsys::RunCommandLine(argc, argv, commands);
//   }

#include <functional>
#include <string>
#include <vector>

#include "config/arguments.h"
#include "config/check.h"
#include "config/effective.h"

namespace recsys {

/// In front of what is wrong with settings and starts: the same as the Python server's, for those
/// who look for it.
inline constexpr char kErrorPrefix[] = "recsys-serve: ";

/// What was asked for.
struct CommandLine {
  Effective effective;
  bool check_config = false;
  /// The ready and stopped lines, or the check, are JSON.
  bool json = false;

  const Settings& settings() const { return effective.settings; }
};

/// What RunCommandLine cannot do by itself.
struct ServerCommands {
  /// Looks at what is served: exactly one of artifact and repository is set. Throws Error where it
  /// is an artifact that cannot be read.
  std::function<ModelsThere(const SourceSettings&)> open_models;
  /// Serves until a signal; returns the exit code. Called once the settings are checked, with
  /// malloc tuned and the limit of open files raised. What it throws is the program's last line: an
  /// Error of settings or artifacts ends with code 2, everything else with 1.
  std::function<int(const CommandLine&)> serve;
};

/// The process's variables, in their order.
Texts ProcessEnvironment();

/// Reads flags, environment and file. Throws UsageExit, Error (kConfig).
CommandLine ParseCommandLine(int argc, const char* const* argv, const Texts& environment);

/// Everything that `recsys-server` does: usage, help, the check, the start's own checks, serving.
/// Returns the exit code; throws nothing.
int RunCommandLine(int argc, const char* const* argv, const ServerCommands& commands);

}  // namespace recsys

#endif  // RECSYS_CONFIG_CLI_H_
