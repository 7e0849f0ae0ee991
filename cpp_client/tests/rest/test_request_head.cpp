#include <gtest/gtest.h>

#include <string>

#include "rest/request_head.h"

namespace recsys {
namespace {

std::string Head(const std::string& line, const std::string& headers) {
  return line + "\r\nHost: a\r\n" + headers + "\r\n";
}

HeadResult ResultOf(const std::string& text) {
  RequestHead head;
  return ReadRequestHead(text, &head);
}

const std::string kLine = "POST /v2/models/small/infer HTTP/1.1";

TEST(RequestHeadTest, PredictionsAreRead) {
  const std::string text = Head("POST /v1/models/a-b/versions/2.0:predict HTTP/1.1",
                                "content-LENGTH:  12 \r\nX-Key: me\r\nConnection: Keep-Alive\r\n");
  const std::string received = text + "body";
  RequestHead head;
  ASSERT_EQ(ReadRequestHead(received, &head), HeadResult::kNative);
  EXPECT_EQ(head.target.model, "a-b");
  EXPECT_EQ(head.target.version, "2.0");
  EXPECT_FALSE(head.is_infer);
  EXPECT_EQ(head.num_body_bytes, 12U);
  EXPECT_EQ(head.num_bytes, text.size());
  EXPECT_EQ(HeaderOf(head.lines, "x-key"), "me");
  EXPECT_EQ(HeaderOf(head.lines, "x-other"), "");
}

TEST(RequestHeadTest, EveryPrefixIsIncomplete) {
  const std::string text =
      Head(kLine, "Content-Length: 9\r\nInference-Header-Content-Length: 4\r\n");
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(ResultOf(text.substr(0, size)), HeadResult::kIncomplete) << size;
  }
  RequestHead head;
  ASSERT_EQ(ReadRequestHead(text, &head), HeadResult::kNative);
  EXPECT_TRUE(head.is_infer);
  EXPECT_EQ(head.num_json_bytes, 4U);
}

TEST(RequestHeadTest, OtherRequestsAreForPython) {
  const std::string size = "Content-Length: 2\r\n";
  for (const char* line :
       {"GET /v2/models/small HTTP/1.1", "POST /v2/models/small/infer HTTP/1.0",
        "POST /v2/models/small/infer?timeout_ms=1 HTTP/1.1", "POST /v2/models/a%20b/infer HTTP/1.1",
        "POST /v2/models/../infer HTTP/1.1", "POST /v2/models//infer HTTP/1.1",
        "POST /v1/models/small/infer HTTP/1.1", "POST /v1/feedback HTTP/1.1",
        "POST /v2/models/small/infer  HTTP/1.1", "PRI * HTTP/2.0"}) {
    EXPECT_EQ(ResultOf(Head(line, size)), HeadResult::kPython) << line;
  }
  for (const char* headers :
       {"", "Content-Length: 2\r\nContent-Length: 2\r\n", "Content-Length: -1\r\n",
        "Content-Length: 1x\r\n", "Content-Length: 9999999999999\r\n", "Content-Length : 2\r\n",
        "Content-Length: 2\r\n folded\r\n", "Content-Length: 2\r\nno colon\r\n",
        "Content-Length: 2\r\nHost: b\r\n", "Content-Length: 2\r\nExpect: 100-continue\r\n",
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 2\r\nContent-Encoding: gzip\r\n",
        "Content-Length: 2\r\nConnection: close\r\n", "Content-Length: 2\r\nOrigin: http://b\r\n",
        "Content-Length: 2\r\nX: a\nb\r\n",
        "Content-Length: 2\r\nInference-Header-Content-Length: 3\r\n"}) {
    EXPECT_EQ(ResultOf(Head(kLine, headers)), HeadResult::kPython) << headers;
  }
  EXPECT_EQ(ResultOf(kLine + "\r\nX: " + std::string(kMostHeadBytes, 'x')), HeadResult::kPython);
}

}  // namespace
}  // namespace recsys
