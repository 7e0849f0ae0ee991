// Settings out of their range; what routing and limits say of themselves.

#include <gtest/gtest.h>

#include <limits>

#include "config/settings.h"
#include "tests/config/folder.h"

namespace recsys {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename S, typename T, typename V>
std::string Refused(T S::*field, V value) {
  S settings;
  settings.*field = value;
  return ErrorOf([&settings] { settings.Check(); });
}

TEST(SettingsCheck, DefaultsAreRight) {
  EXPECT_EQ(ErrorOf([] {
              ServerSettings().Check();
              ModelSettings().Check();
              BatchLimits().Check();
              Routing().Check();
              ConnectionLimits().Check();
              LogSettings().Check();
              SourceSettings().Check();
              ProcessSettings().Check();
            }),
            "nothing was thrown");
}

TEST(SettingsCheck, OutOfRangeIsRefusedWithTheFieldAndWhatWasExpected) {
  EXPECT_EQ(Refused(&ServerSettings::host, ""),
            "host: got an empty text, expected an address such as 127.0.0.1");
  EXPECT_EQ(Refused(&ServerSettings::port, 65536), "port: got 65536, expected 0 to 65535");
  EXPECT_EQ(Refused(&ServerSettings::metrics_port, -1),
            "metrics_port: got -1, expected 0 to 65535");
  EXPECT_EQ(Refused(&ServerSettings::drain_timeout_s, 0.0),
            "drain_timeout_s: got 0.0, expected more than 0");
  EXPECT_EQ(Refused(&ServerSettings::drain_timeout_s, kNan),
            "drain_timeout_s: got nan, expected more than 0");
  EXPECT_EQ(Refused(&ServerSettings::poll_repository_s, kInfinity),
            "poll_repository_s: got inf, expected 0 or more");
  EXPECT_EQ(Refused(&ModelSettings::num_executors, 0), "num_executors: got 0, expected at least 1");
  EXPECT_EQ(Refused(&ModelSettings::target, ""),
            "target: got an empty text, expected the name of a target such as cpu");
  EXPECT_EQ(Refused(&ConnectionLimits::max_message_bytes, 10),
            "max_message_bytes: got 10, expected at least 1024");
  EXPECT_EQ(Refused(&ConnectionLimits::max_message_bytes, 1LL << 31),
            "max_message_bytes: got 2147483648, expected at most 2147483647");
  EXPECT_EQ(Refused(&ConnectionLimits::max_connection_age_s, 1e-9),
            "max_connection_age_s: got 1e-09, expected 0 (no bound) or 0.001 to 2147483");
  EXPECT_EQ(Refused(&ConnectionLimits::max_connection_idle_s, kNan),
            "max_connection_idle_s: got nan, expected 0 (no bound) or 0.001 to 2147483");
  EXPECT_EQ(Refused(&CaptureSettings::share, 0.0), "share: got 0.0, expected above 0, up to 1");
  EXPECT_EQ(Refused(&LogSettings::requests, "some"),
            "requests: got 'some', expected none, errors or all");
  EXPECT_EQ(Refused(&AdminSettings::port, -1), "port: got -1, expected 0 to 65535");
  EXPECT_EQ(Refused(&ProcessSettings::switch_interval_us, 0),
            "switch_interval_us: got 0, expected at least 1");
  EXPECT_EQ(Refused(&BatchLimits::max_queue_rows, 10),
            "max_request_rows: got 4096, expected at most max_queue_rows (10), or such a request "
            "could never be taken in");
  EXPECT_EQ(Refused(&Routing::canary, "4"), "canary_percent: got 0.0, expected above 0, up to 100");
  EXPECT_EQ(Refused(&Routing::shadow_percent, 3.0),
            "shadow: got no version for 3.0 percent of the requests");
}

TEST(SettingsCheck, ACanaryIsAnotherVersionThanTheOneThatServes) {
  Routing routing;
  routing.serve = routing.canary = "4";
  routing.canary_percent = 5;
  EXPECT_EQ(ErrorOf([&] { routing.Check(); }),
            "canary: got '4', expected another version than the one that serves");
}

TEST(BatchLimits, WhatIsTooLargeIsNamed) {
  BatchLimits limits;
  limits.max_request_rows = 3;
  limits.max_request_ids = 4;
  limits.max_queue_bytes = 5;
  limits.CheckRequest(3, 4, 5);
  EXPECT_EQ(ErrorOf([&] { limits.CheckRequest(4, 4, 5); }),
            "num_rows: got 4, expected at most 3 in one request; split it");
  EXPECT_EQ(ErrorOf([&] { limits.CheckRequest(3, 5, 5); }),
            "sparse: got 5 IDs, expected at most 4 in one request; split it");
  EXPECT_EQ(ErrorOf([&] { limits.CheckRequest(3, 4, 6); }),
            "message: got 6 bytes, expected at most 5 in one request; split it");
}

TEST(Routing, KnowsWhatItNamesAndCanBeTakenApart) {
  const Routing routing{"latest", "4", 5.0, "5", 10.0};
  EXPECT_EQ(routing.Named(), (std::set<std::string>{"4", "5"}));
  EXPECT_EQ(routing.Without("4"), (Routing{"latest", "", 0.0, "5", 10.0}));
  EXPECT_EQ(routing.Pinned("5"), (Routing{"5", "4", 5.0, "", 0.0}));
}

}  // namespace
}  // namespace recsys
