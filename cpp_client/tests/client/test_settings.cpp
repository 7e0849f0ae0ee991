#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>

#include "client/settings.h"
#include "recsys/client.h"

namespace recsys::client {
namespace {

std::string TextOf(const std::function<void()>& wrong) {
  try {
    wrong();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Settings, AnAddressIsAHostAndAPort) {
  for (const char* address : {"", "localhost", "http://localhost:8500", "localhost:", ":8500",
                              "a:0", "a:65536", "a b:1", "a:1\n"}) {
    EXPECT_NE(TextOf([&] { Client client(address); }).find("expected host:port"), std::string::npos)
        << address;
  }
  EXPECT_EQ(TextOf([] { CheckAddress("a:0"); }), "address: got 'a:0', expected host:port");
  EXPECT_NE(TextOf([] { CheckAddress(std::string(1'000'000, 'a')); }), "nothing was thrown");
  for (const char* address :
       {"localhost:8500", "[::1]:1", "a.b:65535", "dns:///all.of.them:8500"}) {
    EXPECT_NO_THROW(CheckAddress(address)) << address;
  }
}

TEST(Settings, WhatCannotBeIsRefused) {
  const auto with = [](const std::function<void(ClientOptions*)>& change) {
    ClientOptions options;
    change(&options);
    return TextOf([&] { Client client("localhost:1", options); });
  };
  EXPECT_EQ(with([](ClientOptions* o) { o->timeout_s = 0; }),
            "timeout_s: got 0, expected more than 0 seconds");
  EXPECT_EQ(with([](ClientOptions* o) { o->timeout_s = std::nan(""); }),
            "timeout_s: got nan, expected more than 0 seconds");
  EXPECT_EQ(with([](ClientOptions* o) { o->priority = static_cast<Priority>(77); }),
            "priority: got 77, expected one of recsys::Priority");
  EXPECT_EQ(with([](ClientOptions* o) { o->num_connections = 0; }),
            "num_connections: got 0, expected 1 to 1024");
  EXPECT_EQ(with([](ClientOptions* o) { o->num_threads = 1025; }),
            "num_threads: got 1025, expected 1 to 1024");
  EXPECT_EQ(with([](ClientOptions* o) { o->retries.max_attempts = 0; }),
            "retries.max_attempts: got 0, expected at least 1");
  EXPECT_EQ(with([](ClientOptions* o) { o->retries.budget_share = -0.5; }),
            "retries.budget_share: got -0.5, expected at least 0");
  EXPECT_EQ(with([](ClientOptions* o) {
              o->tls = ClientTls{"", "crt", "", ""};
            }),
            "tls.certificate, tls.key: got one of them, expected both or none");
}

TEST(Settings, ACallsTimeoutIsCheckedToo) {
  Client client("localhost:1");
  EXPECT_EQ(TextOf([&] {
              client.Metadata({-1.5, nullptr});
            }),
            "timeout_s: got -1.5, expected more than 0 seconds");
}

TEST(Settings, FilesAreTriedBeforeAnythingIsSent) {
  const std::string path = testing::TempDir() + "recsys_no_pem";
  std::ofstream(path) << "no PEM";
  const auto with = [](const ClientTls& tls) { return TextOf([&] { ReadTls(tls); }); };
  EXPECT_EQ(with({"/missing/ca", "", "", ""}),
            "tls.ca: cannot read '/missing/ca': No such file or directory");
  EXPECT_EQ(with({"/", "", "", ""}), "tls.ca: cannot read '/': Is a directory");
  EXPECT_EQ(with({path, "", "", ""}), "tls.ca: got '" + path + "', expected certificates in PEM");
  EXPECT_EQ(with({"", path, path, ""}), "tls.certificate, tls.key: got '" + path + "' and '" +
                                            path +
                                            "', expected a certificate in PEM and its own key");
  std::remove(path.c_str());
}

}  // namespace
}  // namespace recsys::client
