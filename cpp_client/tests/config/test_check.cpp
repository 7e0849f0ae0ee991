// What --check-config finds, and how it is printed.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "config/check.h"
#include "config/machine.h"
#include "config/report.h"
#include "tests/config/folder.h"

namespace recsys {
namespace {

using Names = std::vector<std::string>;

/// A repository of "small" (versions 1 and 2) and "other" (version 7); nothing is wrong with it.
ModelsThere Good() {
  ModelsThere models;
  models.names = models.all_names = [] { return Names{"other", "small"}; };
  models.versions = [](const std::string& name) {
    return name == "small" ? Names{"1", "2"} : Names{"7"};
  };
  models.path = [](const std::string& name, const std::string& version) {
    return name + "/" + version;
  };
  models.check_manifest = [](const std::string&) {};
  models.check_artifact = [](const std::string&, const std::string& target) {
    if (!target.empty() && target != "cpu") {
      throw Error(ErrorKind::kTarget, "target: got '" + target + "', expected one of cpu");
    }
  };
  models.check_capture = [](const std::string&) {};
  return models;
}

Settings OfRepository() {
  Settings settings;
  settings.source.repository = "models";
  return settings;
}

Names Texts(const std::vector<Finding>& findings, bool is_error) {
  Names texts;
  for (const Finding& finding : findings) {
    if (finding.is_error == is_error) texts.push_back(finding.text);
  }
  return texts;
}

Names Errors(const Settings& settings, const ModelsThere& models = Good()) {
  return Texts(CheckSettings(settings, models), true);
}

Names Warnings(const Settings& settings) { return Texts(CheckSettings(settings, Good()), false); }

TEST(Check, GoodSettingsHaveNothingToFind) {
  const std::vector<Finding> findings = CheckSettings(OfRepository(), Good());
  EXPECT_TRUE(findings.empty()) << findings.front().text;
}

TEST(Check, PortsThatAreUsedTwiceAreFoundInTheStartToo) {
  Settings settings = OfRepository();
  settings.server.port = 8501;
  settings.server.http_port = 8501;
  settings.server.admin.emplace();
  settings.server.admin->port = 0;
  const Names wanted = {
      "port and metrics_port and http_port: got 8501 for each, expected ports that differ"};
  EXPECT_EQ(CheckStart(settings, Good()), wanted);
  settings.server.port = settings.server.metrics_port.emplace(0);
  EXPECT_EQ(CheckStart(settings, Good()), Names());  // The system chooses each.
}

TEST(Check, ModelsAndVersionsThatAreNotThereAreFound) {
  Settings settings = OfRepository();
  settings.source.models = {"smal"};
  EXPECT_EQ(Errors(settings),
            Names{"source.models: got 'smal', which is not there; did you mean small?"});
  settings = OfRepository();
  settings.server.models["small"].routing.serve = "9";
  EXPECT_EQ(Errors(settings),
            Names{"small: routing.serve: got '9', expected one of its versions: 1, 2"});
  settings = OfRepository();
  settings.server.models["smal"];
  EXPECT_EQ(Warnings(settings), Names{"models.smal: there is no such model; did you mean small?"});
  ModelsThere models = Good();
  models.names = models.all_names = [] { return Names(); };
  EXPECT_EQ(Errors(OfRepository(), models),
            Names{"source.repository: holds no model, expected at least one folder of versions"});
  models.names = []() -> Names {
    throw std::system_error(std::make_error_code(std::errc::no_such_file_or_directory));
  };
  EXPECT_EQ(Errors(OfRepository(), models),
            Names{"source.repository: cannot read 'models': No such file or directory"});
}

TEST(Check, TargetsAndPartsOfEveryVersionAreLookedAt) {
  Settings settings = OfRepository();
  settings.server.models["small"].target = "cuda:9";
  EXPECT_EQ(Errors(settings),
            (Names{"small, version 1: target: got 'cuda:9', expected one of cpu",
                   "small, version 2: target: got 'cuda:9', expected one of cpu"}));
  ModelsThere models = Good();
  models.check_manifest = [](const std::string& path) {
    if (path == "small/2") throw Error(ErrorKind::kManifest, "manifest: got a list");
  };
  const auto good = models.check_artifact;
  models.check_artifact = [good](const std::string& path, const std::string& target) {
    good(path, target);
    if (path == "small/1") throw Error(ErrorKind::kPartSize, "part 'rows.bin': got 1 bytes");
  };
  EXPECT_EQ(Errors(settings, models),
            (Names{"small, version 1: target: got 'cuda:9', expected one of cpu",
                   "small, version 1: part 'rows.bin': got 1 bytes",
                   "small, version 2: manifest: got a list"}));
}

TEST(Check, ProcessorsThatTheProcessMayNotUseAreFoundOnce) {
  Settings settings = OfRepository();
  settings.server.defaults.cpus = {65001, OwnCpus().front(), 65000};
  settings.server.models["small"] = settings.server.defaults;
  settings.server.models["other"].cpus = {65002};
  const Names errors = Errors(settings);
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0].rfind("defaults.cpus: got [65000, 65001], expected some of this process's "
                            "own: [",
                            0),
            0U)
      << errors[0];
  EXPECT_EQ(errors[1].rfind("models.other.cpus: got [65002], expected", 0), 0U) << errors[1];
}

TEST(Check, FilesThatCannotBeReadOrWrittenAreFound) {
  const Folder folder;
  Settings settings = OfRepository();
  settings.server.defaults.warm_up = "gone";
  settings.server.capture.emplace();
  settings.server.capture->path = "nowhere/requests";
  EXPECT_EQ(Errors(settings),
            (Names{"defaults.warm_up: got 'gone', expected a file that can be read",
                   "capture.path: got 'nowhere/requests', expected a file in a folder that can be "
                   "written"}));
  settings.server.capture->path = folder.path("requests");
  settings.server.defaults.warm_up = folder.Write("old", "[]");
  EXPECT_EQ(Errors(settings), Names());
  ModelsThere models = Good();
  models.check_capture = [](const std::string&) {
    throw Error(ErrorKind::kCapture, "header: got b'[]'");
  };
  EXPECT_EQ(Errors(settings, models),
            Names{"defaults.warm_up: '" + folder.path("old") + "': header: got b'[]'"});
}

TEST(Check, AddressesThatAreOpenWithoutTlsAreAWarning) {
  const Folder folder;
  Settings settings = OfRepository();
  settings.server.host = "0.0.0.0";
  settings.server.admin.emplace();
  settings.server.admin->host = "::";
  settings.server.admin->token_file = folder.Write("token", "a-token-of-the-tests", 0600);
  EXPECT_EQ(Warnings(settings),
            (Names{"host: 0.0.0.0 is open to the network without TLS",
                   "admin.host: the token crosses the network to :: without TLS"}));
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "::1%lo", "localhost"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host : {"10.0.0.1", "127.1", "0127.0.0.1", "localhost.", "::", ""}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

TEST(Check, TracesAreNotSent) {
  Settings settings = OfRepository();
  settings.server.trace.emplace();
  settings.server.trace->endpoint = "http://127.0.0.1:4317";
  const Names errors = Errors(settings);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_NE(errors[0].find("the native server sends no traces"), std::string::npos);
}

TEST(Report, JsonHasEverySettingWithItsOriginAndWhatWasFound) {
  const Effective effective = MakeEffective(
      {{"metrics_port", "none"}, {"defaults.cpus", "0-1"}, {"host", "\u00e9"}}, {}, {});
  const std::string text = JsonReport(effective, {{true, "it's \"wrong\""}, {false, "hm"}});
  EXPECT_EQ(text.rfind("{\"ok\": false, \"settings\": {\"source.artifact\": {\"value\": null, "
                       "\"from\": \"default\"}, ",
                       0),
            0U)
      << text;
  EXPECT_NE(text.find("\"host\": {\"value\": \"\\u00e9\", \"from\": \"--host\"}"), text.npos);
  const nlohmann::json read = nlohmann::json::parse(text);
  EXPECT_EQ(read["settings"]["defaults.cpus"]["value"], nlohmann::json({0, 1}));
  EXPECT_EQ(read["settings"]["metrics_port"]["from"], "--metrics-port");
  EXPECT_EQ(read["settings"]["drain_timeout_s"]["value"], 30.0);
  EXPECT_EQ(read["errors"], nlohmann::json({"it's \"wrong\""}));
  EXPECT_EQ(read["warnings"], nlohmann::json({"hm"}));
  EXPECT_FALSE(read["settings"].contains("tls.key"));
}

TEST(Report, TheTableForPeopleKeepsToItsWidthAndLosesNothing) {
  const std::string path = "/" + std::string(300, 'x') + "/artifact";
  const Effective effective = MakeEffective({{"source.artifact", path}}, {}, {});
  const std::string text = TextReport(effective, {{false, "hm"}}, 80);
  std::size_t num_x = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    num_x += static_cast<std::size_t>(std::count(line.begin(), line.end(), 'x'));
    if (line.find("\u2500") == line.npos) {
      EXPECT_LE(line.size(), 80U) << line;
    }
  }
  EXPECT_GE(num_x, 300U);
  EXPECT_NE(text.find("warning: hm\nthe settings can be used\n"), text.npos);
  EXPECT_EQ(TextReport(effective, {{true, "no"}}, 80).find("can be used"), text.npos);
}

}  // namespace
}  // namespace recsys
