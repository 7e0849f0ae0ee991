#include <gtest/gtest.h>

#include "server/http/http_exchange.h"

namespace recsys {
namespace {

std::shared_ptr<HttpExchange> Asked() {
  HttpRequest request;
  request.path = "/a";
  request.body = std::string(1 << 20, 'x');
  return std::make_shared<HttpExchange>(std::move(request), std::make_shared<HttpMailbox>(), 1, 1);
}

TEST(HttpExchange, KeepsNoBodyOfAClientThatHasLeft) {
  const auto exchange = Asked();
  EXPECT_FALSE(exchange->is_gone());
  exchange->Gone();
  EXPECT_TRUE(exchange->is_gone());
  EXPECT_LT(exchange->request().body.capacity(), 100U);
  EXPECT_EQ(exchange->TakeBody(), "");
  EXPECT_EQ(exchange->request().path, "/a");
}

TEST(HttpExchange, GivesItsBodyOnceAndLeavesItToWhoHasTakenIt) {
  const auto exchange = Asked();
  const std::string body = exchange->TakeBody();
  exchange->Gone();
  EXPECT_EQ(body.size(), 1U << 20);
  EXPECT_EQ(exchange->TakeBody(), "");
}

}  // namespace
}  // namespace recsys
