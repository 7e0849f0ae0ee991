#include <gtest/gtest.h>

#include "server/http/http_parser.h"

namespace recsys {
namespace {

using State = HttpParser::State;

HttpLimits Limits() {
  HttpLimits limits;
  limits.max_body_bytes = 10;
  return limits;
}

/// Feeds it byte by byte, so that every boundary lies between two pieces once.
HttpParser Slowly(const std::string& data) {
  HttpParser parser(Limits());
  for (const char c : data) parser.Feed(std::string_view(&c, 1));
  return parser;
}

HttpParser AtOnce(const std::string& data) {
  HttpParser parser(Limits());
  parser.Feed(data);
  return parser;
}

TEST(HttpParser, ReadsARequestHoweverItsBytesCome) {
  const std::string data =
      "POST /a%20b?x=1#y HTTP/1.1\r\nHost: h\r\nX-Two:\t a b \r\ncontent-length: 3\r\n\r\nabc";
  for (HttpParser parser : {AtOnce(data), Slowly(data)}) {
    ASSERT_EQ(parser.state(), State::kDone);
    EXPECT_TRUE(parser.keeps_alive());
    const HttpRequest request = parser.Take();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/a%20b");
    EXPECT_EQ(request.query, "x=1");
    EXPECT_EQ(*request.Find("x-two"), "a b");
    EXPECT_EQ(request.body, "abc");
    EXPECT_EQ(parser.state(), State::kHead);
    EXPECT_FALSE(parser.has_begun());
  }
}

TEST(HttpParser, ReadsChunks) {
  const std::string data =
      "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0A\r\n";
  HttpParser parser = Slowly(data);
  EXPECT_EQ(parser.fault(), HttpFault::kBodyTooLarge);
  const std::string right =
      "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX: "
      "y\r\n\r\n";
  for (HttpParser whole : {AtOnce(right), Slowly(right)}) {
    ASSERT_EQ(whole.state(), State::kDone);
    EXPECT_EQ(whole.Take().body, "abcde");
  }
}

TEST(HttpParser, LeavesTheNextRequestAlone) {
  HttpParser parser(Limits());
  const std::string first = "GET /a HTTP/1.1\r\n\r\n";
  EXPECT_EQ(parser.Feed(first + "GET /b"), first.size());
  EXPECT_EQ(parser.Take().path, "/a");
}

TEST(HttpParser, KnowsWhetherTheConnectionStays) {
  const auto keeps = [](const std::string& version, const std::string& header) {
    return AtOnce("GET / HTTP/" + version + "\r\n" + header + "\r\n").keeps_alive();
  };
  EXPECT_TRUE(keeps("1.1", ""));
  EXPECT_FALSE(keeps("1.1", "Connection: Upgrade, close\r\n"));
  EXPECT_FALSE(keeps("1.0", ""));
  EXPECT_TRUE(keeps("1.0", "Connection: Keep-Alive\r\n"));
}

TEST(HttpParser, HearsWhoWaitsForOurWord) {
  EXPECT_TRUE(AtOnce("POST / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n")
                  .expects_continue());
}

class Refused : public testing::TestWithParam<std::string> {};

TEST_P(Refused, IsWhatTwoReadersCouldTakeForDifferentRequests) {
  for (const HttpParser& parser : {AtOnce(GetParam()), Slowly(GetParam())}) {
    EXPECT_EQ(parser.state(), State::kFailed) << GetParam();
    EXPECT_EQ(parser.fault(), HttpFault::kBadRequest);
    EXPECT_FALSE(parser.keeps_alive());
    EXPECT_FALSE(parser.fault_text().empty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Requests, Refused,
    testing::Values(std::string("\0\0\0\0", 4), "\x16\x03\x01", "PRI * HTTP/2.0\r\n",
                    "GET / HTTP/9.9\r\n", "GET /\r\n", "GET  HTTP/1.1\r\n", "GET / HTTP/1.1\n",
                    "G\xc3T / HTTP/1.1\r\n", "GET /\x01 HTTP/1.1\r\n",
                    "GET / HTTP/1.1\r\nno colon\r\n", "GET / HTTP/1.1\r\n: x\r\n",
                    "GET / HTTP/1.1\r\nA : x\r\n", "GET / HTTP/1.1\r\nA: x\r\n folded\r\n",
                    "GET / HTTP/1.1\r\nA: \x01\r\n", "GET / HTTP/1.1\r\nA: x\ry\r\n",
                    "GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                    "GET / HTTP/1.1\r\nContent-Length: +5\r\n\r\n",
                    "GET / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n",
                    "GET / HTTP/1.1\r\nContent-Length: 9999999999999999999\r\n\r\n",
                    "GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
                    "GET / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                    "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
                    "GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
                    "GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
                    "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
                    "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
                    "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
                    "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\nab",
                    "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;\rx\r\na\r\n",
                    "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: x\rB: y\r\n"));

TEST(HttpParser, TakesNoMoreThanItsLimits) {
  const auto fails = [](const std::string& data) {
    return AtOnce(data).fault() == HttpFault::kBadRequest &&
           Slowly(data).fault() == HttpFault::kBadRequest;
  };
  EXPECT_TRUE(fails("GET /" + std::string(8200, 'a')));
  EXPECT_TRUE(fails("GET / HTTP/1.1\r\nA: " + std::string(8200, 'b')));
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 129; ++i) many += "A: b\r\n";
  EXPECT_TRUE(fails(many));
  std::string large = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 5; ++i) large += "A: " + std::string(8000, 'b') + "\r\n";
  EXPECT_TRUE(fails(large));
  std::string trailers = "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n";
  for (int i = 0; i < 5; ++i) trailers += "A: " + std::string(8000, 'b') + "\r\n";
  EXPECT_TRUE(fails(trailers));
}

TEST(HttpParser, RefusesABodyThatIsAnnouncedToBeTooLargeBeforeItComes) {
  const HttpParser parser = AtOnce("POST / HTTP/1.1\r\nContent-Length: 11\r\n\r\n");
  EXPECT_EQ(parser.fault(), HttpFault::kBodyTooLarge);
  EXPECT_EQ(parser.fault_text(),
            "body: got more bytes than one request may have (Maximum request body size 10 "
            "exceeded, actual body size 11)");
  EXPECT_EQ(AtOnce("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n").state(), State::kBody);
}

TEST(PercentDecoded, LeavesWhatIsNoNumber) {
  EXPECT_EQ(PercentDecoded("a%20b%2fc%zz%4"), "a b/c%zz%4");
  EXPECT_EQ(PercentDecoded("a+b", true), "a b");
  EXPECT_EQ(PercentDecoded("a+b"), "a+b");
}

}  // namespace
}  // namespace recsys
