// The table of settings fits the structs that are filled from it.

#include <gtest/gtest.h>

#include <set>

#include "config/effective.h"
#include "config/value_text.h"

namespace recsys {
namespace {

std::vector<Option> AllOptions() {
  std::vector<Option> options;
  for (const Section& section : Sections()) {
    options.insert(options.end(), section.options.begin(), section.options.end());
  }
  return options;
}

Value DefaultOf(const Option& option) {
  if (option.kind == Kind::kTexts && option.default_text->empty()) {
    return std::vector<std::string>();
  }
  if (option.kind == Kind::kNumbers && option.default_text->empty()) {
    return std::vector<std::int64_t>();
  }
  return option.FromText(*option.default_text);
}

/// Settings in which everything that can be off is on.
Settings Everything() {
  Settings settings;
  settings.server.tls.emplace();
  settings.server.admin.emplace();
  settings.server.trace.emplace();
  settings.server.capture.emplace();
  return settings;
}

TEST(OptionsTable, EveryFieldOfTheStructsIsASettingAndEverySettingAField) {
  std::set<SettingPath> in_table, in_structs;
  for (const Option& option : AllOptions()) in_table.insert(option.path);
  const Values values = ValuesOf(Everything());
  for (const auto& [path, given] : values.all()) in_structs.insert(path);
  EXPECT_EQ(in_table, in_structs);
  EXPECT_GT(in_table.size(), 40U);
}

TEST(OptionsTable, TheStructsHaveItsDefaults) {
  const Values values = ValuesOf(Everything());
  for (const Option& option : AllOptions()) {
    if (!option.default_text) continue;
    ASSERT_NE(values.Find(option.path), nullptr) << option.key();
    EXPECT_EQ(values.Find(option.path)->value, DefaultOf(option)) << option.key();
  }
}

TEST(OptionsTable, NamesAreUniqueAndEverySettingIsExplained) {
  std::set<std::string> flags, variables;
  for (const Option& option : AllOptions()) {
    EXPECT_TRUE(flags.insert(option.flag).second) << option.flag;
    EXPECT_TRUE(variables.insert(option.environment).second) << option.environment;
    EXPECT_NE(option.about, "") << option.key();
  }
}

TEST(OptionsTable, OneModelHasTheSettingsOfTheDefaultsUnderItsOwnName) {
  std::size_t num_defaults = 0, num_own = 0;
  for (const Section& section : Sections()) {
    if (!section.path.empty() && section.path[0] == "defaults")
      num_defaults += section.options.size();
  }
  for (const Section& section : ModelSections("a.b")) {
    for (const Option& option : section.options) {
      EXPECT_EQ(option.key().rfind("models.a.b.", 0), 0U) << option.key();
      ++num_own;
    }
  }
  EXPECT_EQ(num_own, num_defaults);
}

struct SizeCase {
  std::string text;
  std::optional<std::int64_t> num_bytes;
};

TEST(Values, SizesMayHaveUnits) {
  const SizeCase cases[] = {{"4096", 4096},
                            {"4MiB", 4 << 20},
                            {" 8 KiB ", 8192},
                            {"1.5GB", 1'500'000'000},
                            {"80g", 80'000'000'000},
                            {"1TiB", 1LL << 40},
                            {"7B", 7},
                            {"", std::nullopt},
                            {"1 byte", std::nullopt},
                            {"MiB", std::nullopt},
                            {"1i", std::nullopt},
                            {"-1", std::nullopt},
                            {"1.", std::nullopt},
                            {".5K", std::nullopt},
                            {"1Kii", std::nullopt},
                            {"1e3", std::nullopt},
                            {"1234567890123456", std::nullopt}};
  for (const auto& [text, num_bytes] : cases) {
    const std::optional<Value> found = ReadSize(text);
    EXPECT_EQ(found.has_value(), num_bytes.has_value()) << text;
    if (found && num_bytes) {
      EXPECT_EQ(std::get<std::int64_t>(*found), *num_bytes) << text;
    }
  }
  // Python's numbers have no end; these stay the largest there is room for.
  EXPECT_GT(std::get<std::int64_t>(*ReadSize("999999999999999TiB")), 1LL << 60);
}

TEST(Values, NumbersAreReadAsPythonReadsThem) {
  for (const char* text : {"0x10", "", ".", "e5", "1e", "1__0", "_1", "1_", "1 2", "--1", "nano"}) {
    EXPECT_FALSE(ReadNumber(text)) << text;
  }
  EXPECT_EQ(std::get<double>(*ReadNumber(" 1_000.5e-1\n")), 100.05);
  EXPECT_EQ(std::get<double>(*ReadNumber("-.5")), -0.5);
  EXPECT_EQ(std::get<double>(*ReadNumber("+5.")), 5.0);
  EXPECT_EQ(std::get<double>(*ReadNumber("1e999")), std::numeric_limits<double>::infinity());
  EXPECT_EQ(std::get<double>(*ReadNumber("1e-999")), 0.0);
  EXPECT_EQ(std::get<double>(*ReadNumber("-Infinity")), -std::numeric_limits<double>::infinity());
}

TEST(Values, RangesOfProcessorsAreWrittenOutOnceAndInOrder) {
  const std::vector<std::int64_t> wanted = {0, 1, 2, 3, 7};
  EXPECT_EQ(std::get<std::vector<std::int64_t>>(*ReadNumbers("7, 0-3 ,2")), wanted);
  for (const char* text : {"", "3-1", "-1", "1-", "0-999999999", "65536", "1,,2", "1-2-3", "a"}) {
    EXPECT_FALSE(ReadNumbers(text)) << text;
  }
}

TEST(Values, TextsOfJsonArePythons) {
  EXPECT_EQ(JsonText("a\"\\\b\f\n\r\t\x01\x7f/"), "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u007f/\"");
  EXPECT_EQ(JsonText("\u00e9\U0001f600"), "\"\\u00e9\\ud83d\\ude00\"");
  EXPECT_EQ(JsonText("\xff"), "\"\\udcff\"");
}

TEST(Paths, AreWrittenAsPythonsPathWritesThem) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "."},      {"./a", "a"},     {"a//b/./c/", "a/b/c"}, {"/", "/"},     {"//a", "//a"},
      {"///a", "/a"}, {"../a", "../a"}, {"a/../b", "a/../b"},   {"/./a", "/a"}, {".", "."}};
  for (const auto& [text, clean] : cases) EXPECT_EQ(CleanPath(text), clean) << text;
}

}  // namespace
}  // namespace recsys
