// The command line's words, and what is said of wrong ones.

#include <gtest/gtest.h>

#include <sstream>

#include "config/arguments.h"
#include "config/cli.h"
#include "recsys/error.h"

namespace recsys {
namespace {

using Words = std::vector<std::string>;

UsageExit ExitOf(const Words& words) {
  try {
    ReadArguments(words, 80);
  } catch (const UsageExit& end) {
    return end;
  }
  return {-1, "it was read"};
}

/// What is wrong, behind the usage.
std::string Wrong(const Words& words) {
  const UsageExit end = ExitOf(words);
  EXPECT_EQ(end.code, 2);
  const std::string start = UsageLine() + "recsys-server: error: ";
  EXPECT_EQ(end.text.rfind(start, 0), 0U) << end.text;
  return end.text.substr(std::min(start.size(), end.text.size()));
}

TEST(Arguments, FlagsComeInTheTablesOrderTheArtifactLastAndTheLastWordCounts) {
  const Arguments read =
      ReadArguments({"--port", "1", "art", "--cpus=0-3", "--port=2", "--models", ""}, 80);
  const Texts wanted = {
      {"source.models", ""}, {"port", "2"}, {"defaults.cpus", "0-3"}, {"source.artifact", "art"}};
  EXPECT_EQ(read.flags, wanted);
  EXPECT_FALSE(read.config);
}

TEST(Arguments, SwitchesTurnOnAndOff) {
  const Arguments read =
      ReadArguments({"--no-verify-checksums", "--verify-checksums", "--no-malloc-tuning",
                     "--no-metrics", "--json", "--check-config", "--config", "./serve.toml"},
                    80);
  const Texts wanted = {{"process.malloc_tuning", "false"},
                        {"metrics_port", "none"},
                        {"defaults.verify_checksums", "true"}};
  EXPECT_EQ(read.flags, wanted);
  EXPECT_TRUE(read.json && read.check_config);
  EXPECT_EQ(read.config, "serve.toml");
}

TEST(Arguments, WordsThatLookLikeNumbersOrHaveSpacesAreValues) {
  EXPECT_EQ(ReadArguments({"--port", "-1"}, 80).flags, (Texts{{"port", "-1"}}));
  EXPECT_EQ(ReadArguments({"-a b"}, 80).flags, (Texts{{"source.artifact", "-a b"}}));
  EXPECT_EQ(ReadArguments({"--", "--port"}, 80).flags, (Texts{{"source.artifact", "--port"}}));
}

TEST(Arguments, WhatIsWrongIsSaidWithWhatWasProbablyMeant) {
  EXPECT_EQ(Wrong({"a", "--prot", "1"}),
            "unrecognized arguments: --prot 1; did you mean --port?\n");
  EXPECT_EQ(Wrong({"a", "--max-batch-row=4"}),
            "unrecognized arguments: --max-batch-row=4; did you mean --max-batch-rows?\n");
  EXPECT_EQ(Wrong({"a", "--wwwwwwww"}), "unrecognized arguments: --wwwwwwww\n");
  EXPECT_EQ(Wrong({"a", "--port"}), "argument --port: expected one argument\n");
  EXPECT_EQ(Wrong({"a", "--port", "--prot"}),
            "argument --port: expected one argument; got --prot; did you mean --port?\n");
  EXPECT_EQ(Wrong({"a", "--json=1"}), "argument --json: ignored explicit argument '1'\n");
  EXPECT_EQ(Wrong({"a", "--no-metrics", "--metrics-port", "1"}),
            "argument --metrics-port: not allowed with argument --no-metrics\n");
}

TEST(Arguments, HelpHasEveryFlagAndEndsWell) {
  for (const char* word : {"-h", "--help"}) {
    const UsageExit end = ExitOf({"--port", "1", word, "--prot"});
    EXPECT_EQ(end.code, 0);
    for (const Section& section : Sections()) {
      for (const Flag& flag : FlagsOf(section)) {
        if (flag.about.empty()) continue;
        EXPECT_NE(end.text.find("\n  " + flag.name), end.text.npos) << flag.name;
      }
    }
  }
}

TEST(Arguments, LinesOfHelpAreNoWiderThanTheTerminal) {
  std::istringstream lines(HelpText(60));
  std::size_t num_explained = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(std::string(24, ' '), 0) != 0) continue;
    EXPECT_LE(line.size(), 58U) << line;
    ++num_explained;
  }
  EXPECT_GT(num_explained, 50U);
  // However narrow it is, there is something to read.
  EXPECT_NE(HelpText(0).find("--port N"), std::string::npos);
}

int RunServer(Words words, ServerCommands commands, std::string* said) {
  words.insert(words.begin(), "recsys-server");
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  testing::internal::CaptureStderr();
  const int code = RunCommandLine(static_cast<int>(argv.size()), argv.data(), commands);
  *said = testing::internal::GetCapturedStderr();
  return code;
}

ServerCommands Commands() {
  ServerCommands commands;
  commands.open_models = [](const SourceSettings& source) {
    if (source.artifact == "missing") {
      throw Error(ErrorKind::kArtifactNotFound, "artifact: nothing at 'missing'");
    }
    ModelsThere models;
    models.names = [] { return Words{"small"}; };
    return models;
  };
  commands.serve = [](const CommandLine&) { return 7; };
  return commands;
}

TEST(CommandLine, ServesOnceTheSettingsAreChecked) {
  std::string said;
  EXPECT_EQ(RunServer({"a"}, Commands(), &said), 7);
  EXPECT_EQ(said, "");
}

TEST(CommandLine, WhatIsWrongIsOneLineAndCode2) {
  const std::pair<Words, std::string> cases[] = {
      {{},
       "source: got neither an artifact nor a repository, expected ARTIFACT or --repository "
       "DIR"},
      {{"a", "--repository", "b"},
       "source: got an artifact (ARTIFACT) and a repository (--repository), expected one of them"},
      {{"missing"}, "artifact: nothing at 'missing'"},
      {{"a", "--port", "99999"}, "--port: port: got 99999, expected 0 to 65535"},
      {{"a", "--port", "8501"},
       "port and metrics_port: got 8501 for each, expected ports that differ"},
      {{"a", "--trace-endpoint", "http://c"},
       "trace.endpoint: got 'http://c', expected none: the native server sends no traces; leave it "
       "out, or start the Python server"}};
  for (const auto& [words, text] : cases) {
    std::string said;
    EXPECT_EQ(RunServer(words, Commands(), &said), 2) << text;
    EXPECT_EQ(said, "recsys-serve: " + text + "\n");
  }
}

TEST(CommandLine, WhatServingThrowsEndsWithItsCode) {
  ServerCommands commands = Commands();
  std::string said;
  commands.serve = [](const CommandLine&) -> int {
    throw Error(ErrorKind::kChecksum, "rows: the checksum does not match");
  };
  EXPECT_EQ(RunServer({"a"}, commands, &said), 2);
  commands.serve = [](const CommandLine&) -> int { throw std::runtime_error("the port is taken"); };
  EXPECT_EQ(RunServer({"a"}, commands, &said), 1);
  EXPECT_EQ(said, "recsys-serve: the port is taken\n");
}

}  // namespace
}  // namespace recsys
