// Flags, environment and file: one truth, three ways to say it, and what happens to wrong ones.

#include <gtest/gtest.h>

#include <algorithm>

#include "config/effective.h"
#include "config/fields.h"
#include "tests/config/folder.h"

namespace recsys {
namespace {

std::map<std::string, std::string> Origins(const Effective& effective) {
  std::map<std::string, std::string> origins;
  for (const Effective::Row& row : effective.Rows()) origins[row.key] = row.origin;
  return origins;
}

Settings FromFile(const Folder& folder, const std::string& text) {
  return MakeEffective({}, {}, folder.Write("serve.toml", text)).settings;
}

TEST(Sources, WithoutAnythingTheDefaultsHold) {
  const Effective found = MakeEffective({}, {{"PATH", "/bin"}}, {});
  for (const auto& [key, origin] : Origins(found)) EXPECT_EQ(origin, "default") << key;
  EXPECT_EQ(found.settings.server.port, 8500);
  EXPECT_FALSE(found.settings.server.tls);
}

TEST(Sources, AFlagBeatsTheEnvironmentThatBeatsTheFileThatBeatsTheDefault) {
  const Folder folder;
  const std::string file = folder.Write(
      "serve.toml",
      "port = 1\nmetrics_port = 1\nhttp_port = 1\n[defaults.limits]\nmax_batch_rows = 1\n");
  const Effective found = MakeEffective({{"port", "3"}},
                                        {{"RECSYS_SERVE_PORT", "2"},
                                         {"RECSYS_SERVE_METRICS_PORT", "2"},
                                         {"RECSYS_SERVE_DEFAULTS_LIMITS_MAX_BATCH_ROWS", "2"}},
                                        file);
  const ServerSettings& server = found.settings.server;
  EXPECT_EQ(server.port, 3);
  EXPECT_EQ(server.metrics_port, 2);
  EXPECT_EQ(server.http_port, 1);
  EXPECT_EQ(server.defaults.limits.max_batch_rows, 2);
  std::map<std::string, std::string> origins = Origins(found);
  EXPECT_EQ(origins["port"], "--port");
  EXPECT_EQ(origins["metrics_port"], "RECSYS_SERVE_METRICS_PORT");
  EXPECT_EQ(origins["http_port"], file);
  EXPECT_EQ(origins["host"], "default");
}

TEST(Sources, TheEnvironmentCanNameTheFileAndAFlagAnother) {
  const Folder folder;
  const Texts environment = {{"RECSYS_SERVE_CONFIG", folder.Write("one.toml", "port = 1")}};
  EXPECT_EQ(MakeEffective({}, environment, {}).settings.server.port, 1);
  const std::string other = folder.Write("other.toml", "port = 2");
  EXPECT_EQ(MakeEffective({}, environment, other).settings.server.port, 2);
}

/// A value other than the default, and others that must be there with it.
std::pair<std::string, Texts> Example(const Option& option) {
  static const std::map<std::string, std::pair<std::string, Texts>> kOwn = {
      {"log.requests", {"all", {}}},
      {"defaults.limits.max_request_rows", {"9", {}}},
      {"defaults.limits.max_request_ids", {"9", {}}},
      {"defaults.cpus", {"0-2,5", {}}},
      {"trace.endpoint", {"http://127.0.0.1:4317", {}}},
      {"trace.share", {"0.5", {{"trace.endpoint", "http://c"}}}},
      {"tls.certificate", {"/c", {{"tls.key", "k"}}}},
      {"tls.key", {"/k", {{"tls.certificate", "c"}}}},
      {"tls.client_ca", {"/a", {{"tls.certificate", "c"}, {"tls.key", "k"}}}},
      {"admin.host", {"::1", {{"admin.token_file", "t"}}}},
      {"admin.port", {"9", {{"admin.token_file", "t"}}}},
      {"capture.share", {"0.5", {{"capture.path", "c"}}}},
      {"capture.max_bytes", {"5", {{"capture.path", "c"}}}},
      {"defaults.routing.canary", {"9", {{"defaults.routing.canary_percent", "50"}}}},
      {"defaults.routing.canary_percent", {"50", {{"defaults.routing.canary", "9"}}}},
      {"defaults.routing.shadow", {"9", {{"defaults.routing.shadow_percent", "50"}}}},
      {"defaults.routing.shadow_percent", {"50", {{"defaults.routing.shadow", "9"}}}},
  };
  const auto found = kOwn.find(option.key());
  if (found != kOwn.end()) return found->second;
  switch (option.kind) {
    case Kind::kYesNo:
      return {option.default_text == "true" ? "false" : "true", {}};
    case Kind::kWhole:
      return {option.default_text == "none" ? "8600"
                                            : std::to_string(std::stoll(*option.default_text) + 1),
              {}};
    case Kind::kNumber:
      return {"0.5", {}};
    case Kind::kTexts:
      return {"a,b", {}};
    case Kind::kText:
    case Kind::kPath:
    case Kind::kNumbers:
      break;
  }
  return {"/some/where", {}};
}

std::string TomlOf(const Option& option, const std::string& text) {
  const bool is_bare =
      option.kind == Kind::kYesNo || option.kind == Kind::kWhole || option.kind == Kind::kNumber;
  if (is_bare) return text;
  if (option.kind == Kind::kTexts) return "[\"a\", \"b\"]";
  return '"' + text + '"';
}

bool AreSame(const Settings& a, const Settings& b) {
  const Values of_a = ValuesOf(a), of_b = ValuesOf(b);
  return std::equal(of_a.all().begin(), of_a.all().end(), of_b.all().begin(), of_b.all().end(),
                    [](const auto& one, const auto& other) {
                      return one.first == other.first && one.second.value == other.second.value;
                    });
}

TEST(Sources, EverySettingMeansTheSameInAllThreeWays) {
  const Folder folder;
  for (const Section& section : Sections()) {
    for (const Option& option : section.options) {
      auto [text, beside] = Example(option);
      const std::string head = section.path.empty() ? "" : "[" + KeyOf(section.path) + "]\n";
      const std::string file =
          folder.Write("serve.toml", head + option.path.back() + " = " + TomlOf(option, text));
      const Settings from_file = MakeEffective(beside, {}, file).settings;
      const Settings from_environment =
          MakeEffective(beside, {{option.environment, text}}, {}).settings;
      Texts flags = beside;
      flags.emplace_back(option.key(), text);
      const Settings from_flag = MakeEffective(flags, {}, {}).settings;
      EXPECT_TRUE(AreSame(from_file, from_environment)) << option.key();
      EXPECT_TRUE(AreSame(from_file, from_flag)) << option.key();
      EXPECT_FALSE(AreSame(from_file, Settings())) << option.key();
    }
  }
}

TEST(Sources, ModelsDifferFromTheDefaultsWhereTheySaySo) {
  const Folder folder;
  const std::string file = folder.Write("serve.toml", R"(
[defaults]
num_executors = 2
limits = {max_batch_rows = 100}
[models.ranker]
limits = {max_batch_ids = 77}
[models.ranker.routing]
serve = "3"
canary = "4"
canary_percent = 5
[models."with.dots"]
)");
  const Effective found = MakeEffective({{"defaults.limits.max_batch_rows", "200"}}, {}, file);
  const ServerSettings& server = found.settings.server;
  const ModelSettings& ranker = server.SettingsOf("ranker");
  EXPECT_EQ(ranker.num_executors, 2);
  EXPECT_EQ(ranker.limits.max_batch_rows, 200);
  EXPECT_EQ(ranker.limits.max_batch_ids, 77);
  EXPECT_EQ(ranker.routing.serve, "3");
  EXPECT_EQ(ranker.routing.canary_percent, 5.0);
  ASSERT_EQ(server.models.count("with.dots"), 1U);
  EXPECT_EQ(server.SettingsOf("with.dots").limits.max_batch_rows, 200);
  EXPECT_EQ(&server.SettingsOf("another"), &server.defaults);
  std::map<std::string, std::string> origins = Origins(found);
  EXPECT_EQ(origins["models.ranker.limits.max_batch_ids"], file);
  EXPECT_EQ(origins.count("models.ranker.num_executors"), 0U);
}

TEST(Sources, PathsOfTheFileAreRelativeToItsFolder) {
  const Folder folder;
  const Settings settings = FromFile(
      folder,
      "[tls]\ncertificate = \"tls/crt.pem\"\nkey = \"/abs/key.pem\"\n[source]\nartifact = \"a\"");
  EXPECT_EQ(settings.server.tls->certificate, folder.path("tls/crt.pem"));
  EXPECT_EQ(settings.server.tls->key, "/abs/key.pem");
  EXPECT_EQ(settings.source.artifact, folder.path("a"));
}

TEST(Sources, NoneTakesAPortAway) {
  const Folder folder;
  for (const char* text : {"none", "None", "NONE"}) {
    EXPECT_FALSE(MakeEffective({{"metrics_port", text}}, {}, {}).settings.server.metrics_port);
  }
  EXPECT_FALSE(FromFile(folder, "metrics_port = \"none\"").server.metrics_port);
}

TEST(Sources, WrongFilesAreRefusedWithTheFileTheKeyAndWhatIsExpected) {
  const std::pair<const char*, const char*> cases[] = {
      {"prot = 1", "prot: unknown key, expected one of "},
      {"prot = 1", "; did you mean port?"},
      {"max_batch_rows = 1", "did you mean defaults.limits.max_batch_rows?"},
      {"[models.a.b]\ntarget = 'x'", "models.a.b: unknown key"},
      {"models = 3", "models: got '3', expected tables [models.NAME]"},
      {"[models]\nm = 3", "models.m: got '3', expected a table"},
      {"port = 85.0", "port: got '85.0', expected a whole number"},
      {"port = true", "port: got 'True', expected a whole number"},
      {"port = 65536", "port: got 65536, expected 0 to 65535"},
      {"[admin]\nport = 1",
       "admin.token_file: missing, expected it beside the other settings of admin"},
      {"[admin]\ntoken_file='t'\nport = 99999", "admin.port: got 99999"},
      {"[defaults]\ncpus = [0, -1]", "defaults.cpus: got [0, -1], expected numbers of processors"},
      {"[defaults]\nlimits = 5", "defaults.limits: got '5', expected a table"},
      {"host = ['a', 'b']", "host: got \"['a', 'b']\", expected a text"},
      {"host = 1979-05-27", "host: got '1979-05-27', expected a text"},
      {"poll_repository_s = inf", "poll_repository_s: got inf"},
      {"[models.m.limits]\nmax_queue_rows = 10",
       "models.m.limits.max_request_rows: got 4096, expected at most max_queue_rows (10)"},
      {"port = \nhost = 1", "not readable as TOML: "},
      {"port = 1\nport = 2", "not readable as TOML: "},
      {"port = 99999999999999999999", "not readable as TOML: "},
      {"\xff\xfe", "not readable as TOML: it is not UTF-8"}};
  const Folder folder;
  const std::string file = folder.path("serve.toml");
  for (const auto& [text, complaint] : cases) {
    const std::string error = ErrorOf([&, wrong = text] { FromFile(folder, wrong); });
    EXPECT_EQ(error.rfind(file + ": ", 0), 0U) << error;
    EXPECT_NE(error.find(complaint), error.npos) << text << " was refused so: " << error;
    EXPECT_EQ(error.find('\n'), error.npos) << error;
  }
}

TEST(Sources, AFileThatIsNoneIsRefused) {
  const Folder folder;
  const std::string missing = folder.path("missing.toml");
  EXPECT_EQ(ErrorOf([&] { MakeEffective({}, {}, missing); }),
            missing + ": cannot read it: No such file or directory");
  EXPECT_EQ(ErrorOf([&] { MakeEffective({}, {}, folder.path()); }),
            folder.path() + ": cannot read it: Is a directory");
}

TEST(Sources, WrongEnvironmentsAreRefused) {
  const std::pair<Texts, const char*> cases[] = {
      {{{"RECSYS_SERVE_PROT", "1"}}, "RECSYS_SERVE_PROT: unknown environment name; did you mean "},
      {{{"RECSYS_SERVE_PORT", "x"}}, "RECSYS_SERVE_PORT: port: got 'x', expected a whole number"},
      {{{"RECSYS_SERVE_PORT", "-1"}}, "RECSYS_SERVE_PORT: port: got -1, expected 0 to 65535"},
      {{{"RECSYS_SERVE_TLS_KEY", ""}}, "RECSYS_SERVE_TLS_KEY: tls.key: got '', expected a path"},
      {{{"RECSYS_SERVE_TLS_KEY", "k"}}, "RECSYS_SERVE_TLS_KEY: tls.certificate: missing"},
      {{{"RECSYS_SERVE_PORT_8500_TPC", "1"}}, "RECSYS_SERVE_PORT_8500_TPC: unknown environment"}};
  for (const auto& [environment, complaint] : cases) {
    const Texts& wrong = environment;
    const std::string error = ErrorOf([&wrong] { MakeEffective({}, wrong, {}); });
    EXPECT_EQ(error.rfind(complaint, 0), 0U) << error;
  }
}

TEST(Sources, WhatKubernetesSaysOfAServiceOfOurNameIsNoSetting) {
  const Texts links = {{"RECSYS_SERVE_SERVICE_HOST", "10.0.0.1"},
                       {"RECSYS_SERVE_SERVICE_PORT_GRPC", "8500"},
                       {"RECSYS_SERVE_PORT", "tcp://10.0.0.1:8500"},
                       {"RECSYS_SERVE_PORT_8500_TCP", "tcp://10.0.0.1:8500"},
                       {"RECSYS_SERVE_PORT_8500_TCP_ADDR", "10.0.0.1"},
                       {"RECSYS_SERVE_CANARY_PORT", "tcp://10.0.0.2:8500"}};
  for (const auto& [key, origin] : Origins(MakeEffective({}, links, {}))) {
    EXPECT_EQ(origin, "default") << key;
  }
}

}  // namespace
}  // namespace recsys
