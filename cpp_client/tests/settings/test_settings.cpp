#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "engine/settings/read_settings.h"
#include "recsys/error.h"

namespace recsys {
namespace {

std::string RefusalOf(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "none";
}

TEST(Settings, LeftOutAndNullFieldsKeepTheirDefaults) {
  const VersionSettings version = ReadSettings<VersionSettings>(R"({"name": "m", "target": null})");
  EXPECT_EQ(version.name, "m");
  EXPECT_FALSE(version.target.has_value());
  EXPECT_FALSE(version.numa.has_value());
  EXPECT_TRUE(version.verify_checksums);
  EXPECT_EQ(version.limits.max_batch_rows, BatchLimits().max_batch_rows);
  const EngineSettings engine = ReadSettings<EngineSettings>("{}");
  EXPECT_EQ(engine.ended, "errors");
  EXPECT_FALSE(engine.trace_share.has_value());
}

TEST(Settings, EveryFieldIsRead) {
  const VersionSettings version = ReadSettings<VersionSettings>(R"({"name": "m", "version": "3",
      "target": "cpu", "verify_checksums": false, "copy_rows": true, "allow_non_finite": true,
      "lock_rows": true, "numa": "local", "random_access": true,
      "limits": {"max_batch_rows": 1, "max_batch_ids": 2, "max_request_rows": 3,
                 "max_request_ids": 4, "max_queue_rows": 5, "max_queue_ids": 6,
                 "max_queue_bytes": 7, "max_delay_us": 8, "priority_window_us": 9},
      "num_executors": 4, "cpus": [0, 2]})");
  EXPECT_EQ(version.version, "3");
  EXPECT_EQ(version.target, "cpu");
  EXPECT_FALSE(version.verify_checksums);
  EXPECT_TRUE(version.copy_rows && version.allow_non_finite);
  EXPECT_TRUE(version.lock_rows && version.random_access);
  EXPECT_EQ(version.numa, "local");
  std::int64_t number = 0;
  BatchLimits::ForEach(version.limits,
                       [&number](const char* name, std::int64_t got, const Bounds&) {
                         EXPECT_EQ(got, ++number) << name;
                       });
  EXPECT_EQ(number, 9);
  EXPECT_EQ(version.num_executors, 4);
  EXPECT_EQ(version.cpus, (std::vector<std::int64_t>{0, 2}));
  const PortSettings port =
      ReadSettings<PortSettings>(R"({"host": "::", "port": 8500, "num_threads": 2,
      "connections": {"max_connections": 1, "max_message_bytes": 2048,
                      "max_concurrent_streams": 3, "max_stream_requests": 4,
                      "max_connection_idle_s": 5, "max_connection_age_s": 6.5,
                      "max_port_bytes": 8192}})");
  EXPECT_EQ(port.host, "::");
  EXPECT_EQ(port.port, 8500);
  EXPECT_EQ(port.num_threads, 2);
  EXPECT_EQ(port.connections.max_connections, 1);
  EXPECT_EQ(port.connections.max_message_bytes, 2048);
  EXPECT_EQ(port.connections.max_concurrent_streams, 3);
  EXPECT_EQ(port.connections.max_stream_requests, 4);
  EXPECT_EQ(port.connections.max_connection_idle_s, 5);
  EXPECT_EQ(port.connections.max_connection_age_s, 6.5);
  EXPECT_EQ(port.connections.max_port_bytes, 8192);
  const EngineSettings engine = ReadSettings<EngineSettings>(R"({"ended": "all", "trace_share": 0.5,
      "capture_share": 0.25, "ended_ring": {"max_entries": 1, "max_bytes": 2},
      "call_ring": {"max_entries": 3}})");
  EXPECT_EQ(engine.ended, "all");
  EXPECT_EQ(engine.trace_share, 0.5);
  EXPECT_EQ(engine.capture_share, 0.25);
  EXPECT_EQ(engine.ended_ring.max_bytes, 2);
  EXPECT_EQ(engine.call_ring.max_entries, 3);
  const RouteSpec route = ReadSettings<RouteSpec>(R"({"model": "m", "serving": "1", "canary": "2",
      "canary_share": 0.1, "key_feature": "f", "key_header": "h", "shadow": "3", "shadow_share": 1, "loading": ["4"],
      "is_unloaded": true, "is_only": true})");
  EXPECT_EQ(route.serving + route.canary + route.shadow + route.key_feature + route.key_header,
            "123fh");
  EXPECT_EQ(route.loading.count("4"), 1U);
  EXPECT_TRUE(route.is_unloaded && route.is_only);
  const SubmitOptions submit = ReadSettings<SubmitOptions>(R"({"form": "kserve", "protocol": "ray",
      "remaining_s": 1.5, "headers": {"traceparent": "00-"}, "drew_version": true, "client": "rest:1"})");
  EXPECT_EQ(submit.form + submit.protocol + submit.headers.at("traceparent"), "kserveray00-");
  EXPECT_EQ(submit.remaining_s, 1.5);
  EXPECT_TRUE(submit.drew_version);
  EXPECT_EQ(submit.client, "rest:1");
}

TEST(Settings, WrongFieldsAreRefusedByTheirNames) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "the version's settings: expected JSON: "},
      {"[]", "the version's settings: got []"},
      {R"({"nme": "m"})", "the version's settings: got an unknown field 'nme'"},
      {R"({"name": 1})", "name: got 1, expected a text"},
      {R"({"copy_rows": "yes"})", "copy_rows: got yes, expected true or false"},
      {R"({"num_executors": 1.5})", "num_executors: got 1.5, expected a whole number"},
      {R"({"num_executors": 18446744073709551615})", "num_executors: got 18446744073709551615"},
      {R"({"num_executors": 0})", "num_executors: got 0, expected at least 1"},
      {R"({"cpus": [-1]})", "cpus: got [-1], expected numbers of processors, from 0"},
      {R"({"limits": {"max_batch_rows": 0}})", "max_batch_rows: got 0, expected at least 1"},
      {R"({"limits": {"max_batch_row": 1}})", "limits: got an unknown field 'max_batch_row'"},
      {R"({"limits": 3})", "limits: got 3, expected an object"},
  };
  for (const auto& [json, text] : cases) {
    const std::string refusal =
        RefusalOf([&, given = json] { ReadSettings<VersionSettings>(given); });
    EXPECT_EQ(refusal.rfind(text, 0), 0U) << json << ": " << refusal;
  }
  EXPECT_EQ(RefusalOf([] { ReadSettings<PortSettings>(R"({"port": 65536})"); }),
            "port: got 65536, expected at most 65535");
  EXPECT_EQ(RefusalOf([] {
              ReadSettings<PortSettings>(R"({"connections": {"max_port_bytes": -1}})");
            }).rfind("max_port_bytes: got -1, expected at least 0", 0),
            0U);
  EXPECT_EQ(RefusalOf([] { ReadSettings<EngineSettings>(R"({"ended": "some"})"); }),
            "ended: got 'some', expected none, errors or all");
  EXPECT_EQ(RefusalOf([] { ReadSettings<EngineSettings>(R"({"capture_share": 1.5})"); }),
            "capture_share: got 1.5, expected at most 1");
  EXPECT_EQ(RefusalOf([] { ReadSettings<SubmitOptions>(R"({"headers": {"x": 1}})"); }),
            "headers: got 1, expected a text");
  EXPECT_EQ(RefusalOf([] { ReadSettings<SubmitOptions>(R"({"headers": []})"); }),
            "headers: got [], expected an object of texts");
}

}  // namespace
}  // namespace recsys
