// The flags and their help, laid out as Python's argparse does it: arguments.h.

#include <algorithm>
#include <sstream>

#include "config/arguments.h"

namespace recsys {
namespace {

// Where the explanation of a flag begins, unless that leaves too little room for it.
constexpr int kColumn = 24;
constexpr int kRoom = 20;
constexpr int kIndent = 2;
constexpr int kLeastWidth = 11;
constexpr char kExample[] = R"(example:
  recsys-server model.artifact --port 8500 --metrics-port 8501
  recsys-predict 127.0.0.1:8500 --random
  recsys-server --repository models/ --models dlrm,ranker --config serve.toml
  recsys-server --config serve.toml --check-config

Every setting can also stand in the file of --config or in the environment; a flag beats the environment, that beats
the file. docs/configuration.md has their names, docs/native_configuration.md what is other here than in recsys-serve.

exit codes: 0 stopped with every accepted request answered, 1 failed, 2 bad usage, settings or artifact
)";

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string About(const Option& option) {
  const std::string about = Replaced(Replaced(option.about, "None", "none"), "``", "");
  if (!option.default_text || option.default_text->empty()) return about;
  return about + " (default: " + *option.default_text + ")";
}

std::string ValueName(Kind kind) {
  if (kind == Kind::kWhole) return "N";
  if (kind == Kind::kNumber) return "X";
  return kind == Kind::kPath ? "PATH" : "TEXT";
}

/// Words in lines that are no longer than `width`; a word that is longer has a line of its own.
std::vector<std::string> Wrapped(const std::string& text, std::size_t width) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    while (word.size() > width) {
      const bool goes_on = !lines.empty() && lines.back().size() + 1 < width;
      const std::size_t room = goes_on ? width - lines.back().size() - 1 : width;
      if (goes_on) {
        lines.back() += " " + word.substr(0, room);
      } else {
        lines.push_back(word.substr(0, room));
      }
      word.erase(0, room);
    }
    if (lines.empty() || lines.back().size() + 1 + word.size() > width) {
      lines.push_back(word);
    } else {
      lines.back() += " " + word;
    }
  }
  return lines;
}

/// A flag, or another argument, and what it is for.
std::string Entry(const std::string& name, const std::string& about, int columns) {
  const int width = columns - 2;
  const int begin = std::min(kColumn, std::max(width - kRoom, 2 * kIndent));
  const std::string gap(static_cast<std::size_t>(begin), ' ');
  std::string text = std::string(kIndent, ' ') + name;
  if (text.size() + 2 > gap.size()) {
    text += "\n" + gap;
  } else {
    text.resize(gap.size(), ' ');
  }
  bool is_first = true;
  for (const std::string& line :
       Wrapped(about, static_cast<std::size_t>(std::max(width - begin, kLeastWidth)))) {
    text += (is_first ? "" : gap) + line + "\n";
    is_first = false;
  }
  return text;
}

std::string Entries(const std::vector<Flag>& flags, int columns) {
  std::string text;
  for (const Flag& flag : flags) {
    if (flag.about.empty()) continue;
    std::string name = flag.value_name.empty() ? flag.name : flag.name + " " + flag.value_name;
    if (name == "--help") name = "-h, --help";
    text += Entry(name, flag.about, columns);
  }
  return text;
}

}  // namespace

std::vector<Flag> FlagsOf(const Section& section) {
  std::vector<Flag> flags;
  for (const Option& option : section.options) {
    if (IsPositional(option)) continue;
    const std::string key = option.key(), about = About(option);
    if (option.kind == Kind::kYesNo) {
      const bool is_on = option.default_text == "true";
      // The one that changes the default comes first, with the help.
      const Flag on{option.flag, key, "", "true", is_on ? "" : about, ""};
      const Flag off{"--no-" + option.flag.substr(2),   key, "", "false",
                     is_on ? "turn off: " + about : "", ""};
      flags.insert(flags.end(), {is_on ? off : on, is_on ? on : off});
    } else if (key == "metrics_port") {
      flags.push_back({option.flag, key, ValueName(option.kind), "", about, "metrics"});
      flags.push_back({"--no-metrics", key, "", "none", "serve no metrics", "metrics"});
    } else {
      flags.push_back({option.flag, key, ValueName(option.kind), "", about, ""});
    }
  }
  return flags;
}

const std::vector<Flag>& OwnFlags() {
  static const std::vector<Flag> flags = {
      {"--help", "", "", "", "show this help message and exit", ""},
      {"--config", "", "FILE", "", "settings in TOML", ""},
      {"--check-config", "", "", "",
       "print the settings that hold, look at all they name, and stop", ""},
      {"--json", "", "", "", "print the ready and stopped lines, or the check, as JSON", ""},
  };
  return flags;
}

std::string UsageLine() {
  return std::string("usage: ") + kProgram +
         " [ARTIFACT | --repository DIR] [--config FILE] [--check-config] [setting ...]\n";
}

std::string HelpText(int columns) {
  std::string text = UsageLine() +
                     "\nServe an artifact, or a repository of models, over gRPC until SIGTERM or "
                     "SIGINT.\n\npositional arguments:\n";
  text += Entry("artifact", "what recsys-export wrote; or --repository", columns);
  text += "\noptions:\n" + Entries(OwnFlags(), columns);
  for (const Section& section : Sections()) {
    const std::string name = section.path.empty() ? "server" : KeyOf(section.path);
    text += "\n" + name + ":\n  " + section.about + "\n\n" + Entries(FlagsOf(section), columns);
  }
  return text + "\n" + kExample;
}

}  // namespace recsys
