#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/http/http_server.h"
#include "tests/http/client.h"

namespace recsys {
namespace {

/// Answers with the body, or keeps what asks for /late until it is told. Thread-safe.
class Echo : public HttpHandler {
 public:
  void Handle(const std::shared_ptr<HttpExchange>& exchange) override {
    if (exchange->request().path != "/late") return Answer(*exchange);
    exchange->WhenGone([this] {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++num_gone_;
      changed_.notify_all();
    });
    const std::lock_guard<std::mutex> lock(mutex_);
    late_.push_back(exchange);
    changed_.notify_all();
  }
  HttpResponse Refuse(const HttpRequest& request, HttpFault fault,
                      const std::string& text) override {
    HttpResponse response;
    response.status = fault == HttpFault::kBodyTooLarge  ? 413
                      : fault == HttpFault::kBodyTimeout ? 408
                                                         : 400;
    response.body = Message::Of(request.path + "|" + text);
    return response;
  }
  static void Answer(HttpExchange& exchange) {
    HttpResponse response;
    response.closes = exchange.request().path == "/last";
    response.body = Message::Of(exchange.request().method + ":");
    response.body.parts.push_back(Bytes::Of(exchange.request().body));
    exchange.Answer(std::move(response));
  }
  std::shared_ptr<HttpExchange> WaitForLate(std::size_t count = 1) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return late_.size() >= count; });
    return late_[count - 1];
  }
  void WaitForGone(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return num_gone_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<HttpExchange>> late_;
  int num_gone_ = 0;
};

HttpOptions Options() {
  HttpOptions options;
  options.limits.max_body_bytes = 8 << 20;
  return options;
}

TEST(HttpServer, KeepsAConnectionForFurtherRequestsAlsoWhereTheyComeTogether) {
  Echo echo;
  HttpServer server(Options(), echo);
  Client client(server.port());
  client.Send(Post("/", "one") + Get("/") + Post("/", "three"));
  EXPECT_EQ(client.Receive().body, "POST:one");
  EXPECT_EQ(client.Receive().body, "GET:");
  const Reply third = client.Receive();
  EXPECT_EQ(third.body, "POST:three");
  EXPECT_EQ(third.status, 200);
  EXPECT_TRUE(third.Has("Connection: keep-alive"));
  EXPECT_EQ(client.Ask(Post("/", "four")).body, "POST:four");
}

TEST(HttpServer, ClosesAfterAnAnswerThatSaysSo) {
  Echo echo;
  HttpServer server(Options(), echo);
  for (const std::string& data :
       {Get("/last"), Get("/", "Connection: close\r\n"), std::string("GET / HTTP/1.0\r\n\r\n")}) {
    Client client(server.port());
    const Reply reply = client.Ask(data);
    EXPECT_EQ(reply.status, 200);
    EXPECT_TRUE(reply.Has("Connection: close"));
    EXPECT_TRUE(client.IsClosed());
  }
}

TEST(HttpServer, AnswersHeadWithTheLengthAlone) {
  Echo echo;
  HttpServer server(Options(), echo);
  Client client(server.port());
  client.Send("HEAD / HTTP/1.1\r\n\r\n" + Get("/"));
  const Reply head = client.Receive(false);
  EXPECT_TRUE(head.Has("Content-Length: 5"));
  EXPECT_EQ(client.Receive().body, "GET:");
}

TEST(HttpServer, TakesAndGivesLargeBodies) {
  Echo echo;
  HttpServer server(Options(), echo);
  Client client(server.port());
  const std::string body(5 << 20, 'x');
  std::thread sender([&] { client.Send(Post("/", body)); });
  const Reply reply = client.Receive();
  sender.join();
  EXPECT_EQ(reply.body.size(), body.size() + 5);
}

TEST(HttpServer, SaysThatABodyMayComeToWhoWaitsForIt) {
  Echo echo;
  HttpServer server(Options(), echo);
  Client client(server.port());
  client.Send("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.Receive(false).status, 100);
  EXPECT_EQ(client.Ask("abc").body, "POST:abc");
}

TEST(HttpServer, RefusesWhatItCannotReadAndTheClientSeesWhy) {
  Echo echo;
  HttpOptions options = Options();
  options.limits.max_body_bytes = 10;
  HttpServer server(options, echo);
  Client client(server.port());
  // Much of it is still on its way when it is refused.
  const Reply reply = client.Ask(Post("/path", std::string(1 << 20, 'x')));
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(reply.body.rfind("/path|body: got more bytes", 0), 0U);
  EXPECT_TRUE(reply.Has("Connection: close"));
  Client garbage(server.port());
  EXPECT_EQ(garbage.Ask(std::string("\0\0", 2)).status, 400);
}

TEST(HttpServer, AnswersFromAnotherThread) {
  Echo echo;
  HttpServer server(Options(), echo);
  Client client(server.port());
  client.Send(Post("/late", "x"));
  const auto exchange = echo.WaitForLate();
  std::thread([&] { Echo::Answer(*exchange); }).join();
  EXPECT_EQ(client.Receive().body, "POST:x");
  // Only the first counts.
  Echo::Answer(*exchange);
  EXPECT_EQ(client.Ask(Get("/")).body, "GET:");
}

TEST(HttpServer, TellsWhoAnswersThatTheClientHasGone) {
  Echo echo;
  HttpServer server(Options(), echo);
  {
    Client client(server.port());
    client.Send(Post("/late", "x"));
    echo.WaitForLate();
  }
  echo.WaitForGone(1);
  Echo::Answer(*echo.WaitForLate());
  Client other(server.port());
  EXPECT_EQ(other.Ask(Get("/")).status, 200);
}

TEST(HttpServer, TellsWhoAnswersThatTheDeadlineHasPassedAndTakesTheAnswer) {
  Echo echo;
  HttpServer server(Options(), echo);
  Client client(server.port());
  client.Send(Post("/late", "x"));
  const auto exchange = echo.WaitForLate();
  exchange->SetDeadline(MonotonicSeconds());
  echo.WaitForGone(1);
  Echo::Answer(*exchange);
  EXPECT_EQ(client.Receive().body, "POST:x");
}

TEST(HttpServer, ClosesFurtherConnectionsUntilOthersLeave) {
  Echo echo;
  HttpOptions options = Options();
  options.max_connections = 2;
  HttpServer server(options, echo);
  Client first(server.port());
  {
    Client second(server.port());
    EXPECT_EQ(first.Ask(Get("/")).status, 200);
    EXPECT_EQ(second.Ask(Get("/")).status, 200);
    for (int i = 0; i < 3; ++i) {
      Client third(server.port());
      EXPECT_TRUE(third.IsClosed());
    }
    EXPECT_EQ(second.Ask(Get("/")).status, 200);
  }
  // The place is free once the server has seen that it is.
  for (int status = 0; status == 0;) status = Client(server.port()).Ask(Get("/")).status;
  EXPECT_EQ(first.Ask(Get("/")).status, 200);
}

TEST(HttpServer, LetsTheOldestGiveWayWhereAsked) {
  Echo echo;
  HttpOptions options = Options();
  options.max_connections = 8;
  options.oldest_gives_way = true;
  HttpServer server(options, echo);
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(std::make_unique<Client>(server.port()));
    silent.back()->Send("GET / HTTP/1.1\r\n");
  }
  EXPECT_EQ(Client(server.port()).Ask(Get("/")).status, 200);
  EXPECT_TRUE(silent[0]->IsClosed());
}

TEST(HttpServer, EndsWhatTakesTooLong) {
  Echo echo;
  HttpOptions options = Options();
  options.times.idle_s = 0.02;
  HttpServer silent(options, echo);
  EXPECT_TRUE(Client(silent.port()).IsClosed());
  Client half(silent.port());
  half.Send("GET / HT");
  EXPECT_TRUE(half.IsClosed());
  options = Options();
  options.times.body_s = 0.02;
  HttpServer bodies(options, echo);
  Client slow(bodies.port());
  EXPECT_EQ(slow.Ask("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab").status, 408);
  options = Options();
  options.times.connection_s = 0.02;
  HttpServer whole(options, echo);
  Client late(whole.port());
  late.Send(Get("/late"));
  EXPECT_TRUE(late.IsClosed());
  echo.WaitForGone(1);
}

TEST(HttpServer, ClientsThatDoNotReadKeepNobodyWaiting) {
  Echo echo;
  HttpServer server(Options(), echo);
  std::vector<std::unique_ptr<Client>> deaf;
  const std::string large = Post("/", std::string(1 << 20, 'x'));
  for (int i = 0; i < 4; ++i) {
    deaf.push_back(std::make_unique<Client>(server.port()));
    deaf.back()->Send(large);
    deaf.back()->EndSending();
  }
  EXPECT_EQ(Client(server.port()).Ask(Get("/")).status, 200);
}

TEST(HttpServer, LetsAnswersComeToTheirEndWhenItCloses) {
  Echo echo;
  HttpServer server(Options(), echo);
  Client silent(server.port());
  Client asking(server.port());
  asking.Send(Post("/late", "x"));
  const auto exchange = echo.WaitForLate();
  std::thread closing([&] { server.Close(60); });
  EXPECT_TRUE(silent.IsClosed());
  Echo::Answer(*exchange);
  const Reply reply = asking.Receive();
  EXPECT_EQ(reply.body, "POST:x");
  EXPECT_TRUE(reply.Has("Connection: close"));
  EXPECT_TRUE(asking.IsClosed());
  closing.join();
  EXPECT_FALSE(Client(server.port()).is_connected());
  server.Close(60);
}

TEST(HttpServer, DoesNotWaitForAnswersForever) {
  Echo echo;
  {
    HttpServer server(Options(), echo);
    Client asking(server.port());
    asking.Send(Post("/late", "x"));
    echo.WaitForLate();
    server.Close(0);
    EXPECT_TRUE(asking.IsClosed());
  }
  echo.WaitForGone(1);
  // There is no server any more that could take it.
  Echo::Answer(*echo.WaitForLate());
}

TEST(HttpServer, SaysThatAPortIsTaken) {
  Echo echo;
  HttpServer server(Options(), echo);
  HttpOptions options = Options();
  options.port = server.port();
  EXPECT_THROW(HttpServer(options, echo), std::system_error);
}

}  // namespace
}  // namespace recsys
