#include "config/cli.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "base/allocator.h"
#include "config/machine.h"
#include "config/report.h"
#include "recsys/error.h"

extern char** environ;

namespace recsys {
namespace {

constexpr int kWrongSettings = 2;
constexpr int kFailed = 1;
// Columns where nobody says how many there are.
constexpr int kHelpColumns = 80;
constexpr int kPipeColumns = 150;

/// How wide the terminal is, if it is one; COLUMNS has the first word.
int Columns(int otherwise) {
  const char* said = std::getenv("COLUMNS");
  const int columns = said == nullptr ? 0 : std::atoi(said);
  if (columns > 0) return columns;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return otherwise;
}

int Say(const std::string& text, int code) {
  std::cerr << kErrorPrefix << text << std::endl;
  return code;
}

std::string OriginOf(const Effective& effective, const char* name) {
  const Given* given = effective.given.Find({"source", name});
  return given == nullptr ? "" : given->origin;
}

void CheckOneSource(const Effective& effective) {
  const SourceSettings& source = effective.settings.source;
  if (source.artifact && source.repository) {
    throw Error(ErrorKind::kConfig, "source: got an artifact (" + OriginOf(effective, "artifact") +
                                        ") and a repository (" + OriginOf(effective, "repository") +
                                        "), expected one of them");
  }
  if (!source.artifact && !source.repository) {
    throw Error(ErrorKind::kConfig,
                "source: got neither an artifact nor a repository, expected ARTIFACT or "
                "--repository DIR");
  }
}

int Check(const CommandLine& line, const ModelsThere& models) {
  const std::vector<Finding> findings = CheckSettings(line.settings(), models);
  if (line.json) {
    std::cout << JsonReport(line.effective, findings) << std::flush;
  } else {
    std::cout << TextReport(line.effective, findings, Columns(kPipeColumns)) << std::flush;
  }
  int code = 0;
  for (const Finding& finding : findings) {
    if (!finding.is_error) continue;
    code = kWrongSettings;
    if (!line.json) Say(finding.text, code);
  }
  return code;
}

int Serve(const CommandLine& line, const ModelsThere& models, const ServerCommands& commands) {
  const Settings& settings = line.settings();
  if (const std::string text = Unsupported(settings.server); !text.empty()) {
    throw Error(ErrorKind::kConfig, text);
  }
  const std::vector<std::string> errors = CheckStart(settings, models);
  for (const std::string& text : errors) Say(text, kWrongSettings);
  if (!errors.empty()) return kWrongSettings;
  if (settings.process.malloc_tuning) TuneMalloc();
  AllowOpenFiles(settings.server);
  return commands.serve(line);
}

int Run(int argc, const char* const* argv, const ServerCommands& commands) {
  const CommandLine line = ParseCommandLine(argc, argv, ProcessEnvironment());
  CheckOneSource(line.effective);
  const ModelsThere models = commands.open_models(line.settings().source);
  return line.check_config ? Check(line, models) : Serve(line, models, commands);
}

bool IsOfSettings(ErrorKind kind) {
  return IsArtifactError(kind) || kind == ErrorKind::kConfig || kind == ErrorKind::kCapture;
}

}  // namespace

Texts ProcessEnvironment() {
  Texts variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::size_t sign = text.find('=');
    if (sign == text.npos) continue;
    variables.emplace_back(text.substr(0, sign), text.substr(sign + 1));
  }
  return variables;
}

CommandLine ParseCommandLine(int argc, const char* const* argv, const Texts& environment) {
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  const Arguments arguments = ReadArguments(words, Columns(kHelpColumns));
  CommandLine line;
  line.effective = MakeEffective(arguments.flags, environment, arguments.config);
  line.check_config = arguments.check_config;
  line.json = arguments.json;
  return line;
}

int RunCommandLine(int argc, const char* const* argv, const ServerCommands& commands) {
  try {
    return Run(argc, argv, commands);
  } catch (const UsageExit& end) {
    (end.code == 0 ? std::cout : std::cerr) << end.text << std::flush;
    return end.code;
  } catch (const Error& error) {
    return Say(error.what(), IsOfSettings(error.kind()) ? kWrongSettings : kFailed);
  } catch (const std::exception& error) {
    return Say(error.what(), kFailed);
  }
}

}  // namespace recsys
