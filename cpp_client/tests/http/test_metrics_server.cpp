#include <gtest/gtest.h>

#include <memory>
#include <system_error>
#include <vector>

#include "server/http/metrics_server.h"
#include "tests/http/client.h"

namespace recsys {
namespace {

TEST(MetricsServer, ShowsThePage) {
  Metrics metrics;
  metrics.Begin("dlrm", "7")->Answered(0.01);
  MetricsServer server(metrics, {});
  Client client(server.port());
  const Reply reply = client.Ask(Get("/metrics?x=1"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.Has("Content-Type: text/plain; version=0.0.4; charset=utf-8"));
  EXPECT_NE(
      reply.body.find("recsys_requests_total{model=\"dlrm\",outcome=\"ok\",version=\"7\"} 1.0"),
      reply.body.npos);
  EXPECT_TRUE(client.IsClosed());
}

TEST(MetricsServer, GivesOpenMetricsToWhoAsks) {
  Metrics metrics;
  MetricsServer server(metrics, {});
  const Reply reply =
      Client(server.port())
          .Ask(Get("/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n"));
  EXPECT_NE(reply.head.find("Content-Type: application/openmetrics-text; version=1.0.0"),
            reply.head.npos);
  EXPECT_EQ(reply.body.substr(reply.body.size() - 6), "# EOF\n");
}

TEST(MetricsServer, TellsOtherRequestsSo) {
  Metrics metrics;
  MetricsServer server(metrics, {});
  EXPECT_EQ(Client(server.port()).Ask(Get("/")).status, 404);
  EXPECT_EQ(Client(server.port()).Ask(Get("/metrics/x")).status, 404);
  const Reply reply = Client(server.port()).Ask(Post("/metrics", ""));
  EXPECT_EQ(reply.status, 405);
  EXPECT_TRUE(reply.Has("Allow: GET, HEAD"));
  EXPECT_EQ(Client(server.port()).Ask("GET\r\n\r\n").status, 400);
}

TEST(MetricsServer, ClientsThatSayNothingKeepNobodyWaiting) {
  Metrics metrics;
  MetricsServer server(metrics, {});
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 150; ++i) silent.push_back(std::make_unique<Client>(server.port()));
  EXPECT_EQ(Client(server.port()).Ask(Get("/metrics")).status, 200);
  EXPECT_TRUE(silent[0]->IsClosed());
}

TEST(MetricsServer, EndsASlowRequest) {
  Metrics metrics;
  MetricsServer::Options options;
  options.timeout_s = 0.02;
  MetricsServer server(metrics, options);
  Client slow(server.port());
  slow.Send("GET /metr");
  EXPECT_TRUE(slow.IsClosed());
}

TEST(MetricsServer, SaysThatItsPortIsTaken) {
  Metrics metrics;
  MetricsServer server(metrics, {});
  MetricsServer::Options options;
  options.port = server.port();
  try {
    MetricsServer other(metrics, options);
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.what(), "cannot serve metrics on port " + std::to_string(server.port()) +
                                ": Address already in use");
  }
}

TEST(ChoosePageForm, IsPythons) {
  // As prometheus_client 0.26 chooses.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "text/plain; version=0.0.4; charset=utf-8"},
      {"*/*", "text/plain; version=0.0.4; charset=utf-8"},
      {"text/plain;version=0.0.4;q=0.5", "text/plain; version=0.0.4; charset=utf-8"},
      {"application/openmetrics-text",
       "application/openmetrics-text; version=1.0.0; charset=utf-8"},
      {"application/openmetrics-text;version=0.0.1", "text/plain; version=0.0.4; charset=utf-8"},
      {"text/html, application/openmetrics-text; version=1.0.0; q=0.6,text/plain",
       "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"},
      {"text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6",
       "text/plain; version=1.0.0; charset=utf-8; escaping=allow-utf-8"},
  };
  for (const auto& [accept, expected] : cases) {
    EXPECT_EQ(ChoosePageForm(accept).content_type, expected) << accept;
  }
}

}  // namespace
}  // namespace recsys
