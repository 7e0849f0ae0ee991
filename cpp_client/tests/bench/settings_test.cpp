#include "bench/settings.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "bench/search.h"
#include "recsys/error.h"

namespace recsys::bench {
namespace {

Settings Read(std::vector<std::string> words) {
  words.insert(words.begin(), "localhost:8500");
  return *ReadSettings(words);
}

std::string TextOf(const std::vector<std::string>& words) {
  try {
    ReadSettings(words);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Settings, AClosedLoopIsTheDefault) {
  const Settings settings = Read({});
  EXPECT_EQ(settings.mode, Mode::kClosed);
  EXPECT_EQ(settings.num_in_flight, 64);
  EXPECT_EQ(settings.num_connections, 4);
  EXPECT_EQ(settings.duration_s, 10);
}

TEST(Settings, ReadsEveryOptionByEachOfItsNames) {
  const Settings settings =
      Read({"--concurrency", "7", "--duration=2.5", "--warm-up", "0", "--ranking", "10-20",
            "--zipf", "1.05", "--ids-per-bag", "3", "--ids-per-bag", "a=b=0-9", "--threads", "2",
            "--model", "m", "--json"});
  EXPECT_EQ(settings.num_in_flight, 7);
  EXPECT_EQ(settings.duration_s, 2.5);
  EXPECT_EQ(settings.warm_up_s, 0);
  EXPECT_TRUE(settings.shape.ranking);
  EXPECT_EQ(settings.shape.rows.text(), "10-20");
  EXPECT_EQ(settings.shape.ids_per_bag_of.at("a=b").text(), "0-9");
  EXPECT_TRUE(settings.as_json);
  EXPECT_EQ(Read({"--rate", "100.5"}).mode, Mode::kOpen);
  EXPECT_EQ(Read({"--ramp", "--p99-ms", "5"}).mode, Mode::kFindRate);
  EXPECT_FALSE(ReadSettings({"--help"}));
}

TEST(Settings, SaysWhatIsWrongWithAnOption) {
  const std::string at = "localhost:8500";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{}, "ADDRESS: got nothing, expected host:port of a server"},
      {{"http://localhost:1"}, "address: got 'http://localhost:1', expected host:port"},
      {{at, "more"}, "got 'more' too, expected one ADDRESS"},
      {{at, "--in-flight", "0"}, "--in-flight: got 0, expected at least 1"},
      {{at, "--in-flight"}, "--in-flight: got nothing, expected N"},
      {{at, "--json=yes"}, "--json: got a value, expected none"},
      {{at, "--rate", "0"}, "--rate: got 0, expected more than 0"},
      {{at, "--rate", "nan"}, "--rate: got nan, expected more than 0"},
      {{at, "--zipf", "100"}, "--zipf: got 100, expected 0 to 99.9"},
      {{at, "--rows", "1", "--candidates", "2"},
       "--candidates: got --rows too, expected one of the two"},
      {{at, "--rate", "5", "--in-flight", "5"},
       "--in-flight: expected only of a closed loop; an open one has --max-in-flight"},
      {{at, "--find-rate"}, "--find-rate: expected a bound, such as --p99-ms 20"},
      {{at, "--find-rate", "--rate", "5", "--p99-ms", "5"},
       "--find-rate: got --rate too, expected one of --rate and --find-rate"},
      {{at, "--p99-ms", "5"},
       "--p99-ms: expected with --find-rate; --expect-p99-ms checks any other run"},
      {{at, "--connections", "1", "--threads", "2"},
       "--connections: got 1 with 2 threads and 64 requests in flight, expected --threads <= "
       "--connections <= "
       "requests in flight"},
      {{at, "--tls-key", "k"}, "tls.certificate, tls.key: got one of them, expected both or none"}};
  for (const auto& [words, text] : cases) EXPECT_EQ(TextOf(words), text);
  EXPECT_NE(TextOf({at, "--in-fligth", "5"}).find("--in-flight"), std::string::npos);
}

TEST(Settings, HelpNamesEveryOptionAnExampleAndTheExitCodes) {
  const std::string help = HelpText();
  for (const char* text : {"--in-flight, --concurrency N", "--find-rate, --ramp", "--payload-bytes",
                           "example:", "exit codes: 0 "}) {
    EXPECT_NE(help.find(text), std::string::npos) << text;
  }
}

TEST(Settings, TheirJsonHasNoPaths) {
  Settings settings = Read({"--rows", "1:0.5,2:0.5"});
  settings.tls = ClientTls{"/secret/ca", "", "", ""};
  const Json json = settings.ToJson();
  EXPECT_EQ(json["rows"], "1:0.5,2:0.5");
  EXPECT_EQ(json["encrypted"], true);
  EXPECT_TRUE(json["asked_per_s"].is_null());
  EXPECT_EQ(json.dump().find("secret"), std::string::npos);
}

TEST(FindRate, FindsTheHighestRateThatPasses) {
  for (const double limit : {37.0, 1000.0, 54321.0}) {
    const Found found = FindRate(
        [&](double rate) { return rate <= limit ? Verdict::kOk : Verdict::kSlow; }, 1000, 0.05);
    ASSERT_TRUE(found.rate_per_s) << limit;
    EXPECT_LE(*found.rate_per_s, limit);
    EXPECT_GT(*found.failing_per_s, limit);
    EXPECT_GT(*found.rate_per_s, limit / 1.06);
    EXPECT_EQ(found.limit, Verdict::kSlow);
    EXPECT_TRUE(found.is_settled);
  }
}

TEST(FindRate, OneStumbleIsOutvoted) {
  bool has_stumbled = false;
  const Found found = FindRate(
      [&](double rate) {
        if (rate > 1000) return Verdict::kSlow;
        if (rate < 900 || has_stumbled) return Verdict::kOk;
        has_stumbled = true;
        return Verdict::kFailed;
      },
      100, 0.05);
  EXPECT_GT(*found.rate_per_s, 900);
  EXPECT_TRUE(found.is_settled);
}

TEST(FindRate, AServerThatAlwaysFailsHasNoRate) {
  int num_steps = 0;
  const Found found = FindRate(
      [&](double) {
        ++num_steps;
        return Verdict::kFailed;
      },
      1000, 0.05);
  EXPECT_FALSE(found.rate_per_s);
  EXPECT_FALSE(found.is_settled);
  EXPECT_LE(num_steps, 10);
}

}  // namespace
}  // namespace recsys::bench
