// What opens a call.

#include <gtest/gtest.h>

#include <cmath>

#include "port/framing/request_headers.h"

namespace recsys::http2 {
namespace {

constexpr std::size_t kMost = 4096;

RequestHeaders Made(const std::vector<std::pair<std::string, std::string>>& more = {}) {
  RequestHeaders headers;
  EXPECT_TRUE(headers.Add(":method", "POST", kMost));
  EXPECT_TRUE(headers.Add(":path", "/a.B/C", kMost));
  EXPECT_TRUE(headers.Add("content-type", "application/grpc", kMost));
  EXPECT_TRUE(headers.Add("te", "trailers", kMost));
  for (const auto& [name, value] : more) headers.Add(name, value, kMost);
  return headers;
}

TEST(RequestHeaders, ACallHasAPathAndMetadataWithoutWhatGrpcNeeds) {
  const RequestHeaders headers =
      Made({{"x-a", "1"}, {"x-b", ""}, {"x-a", "2"}, {"grpc-accept-encoding", "gzip"}});
  EXPECT_TRUE(headers.is_grpc());
  EXPECT_TRUE(headers.failure().ok());
  EXPECT_EQ(headers.path(), "/a.B/C");
  EXPECT_EQ(headers.Metadata("x-a"), "1");
  EXPECT_EQ(headers.Count("x-a"), 2);
  EXPECT_EQ(headers.Count("x-b"), 1);
  EXPECT_EQ(headers.Metadata("te"), "");
  EXPECT_EQ(headers.Metadata(":path"), "");
  EXPECT_EQ(headers.Metadata("grpc-accept-encoding"), "");
  EXPECT_TRUE(std::isinf(headers.timeout_s()));
}

TEST(RequestHeaders, OtherMethodsAndContentTypesAreNoGrpc) {
  for (const char* type : {"application/json", "application/grpcx", "application/grp", ""}) {
    RequestHeaders headers;
    headers.Add(":method", "POST", kMost);
    headers.Add("content-type", type, kMost);
    EXPECT_FALSE(headers.is_grpc()) << type;
  }
  for (const char* type : {"application/grpc+proto", "application/grpc;charset=utf-8"}) {
    RequestHeaders headers;
    headers.Add(":method", "POST", kMost);
    headers.Add("content-type", type, kMost);
    EXPECT_TRUE(headers.is_grpc()) << type;
  }
  RequestHeaders get;
  get.Add(":method", "GET", kMost);
  get.Add("content-type", "application/grpc", kMost);
  EXPECT_FALSE(get.is_grpc());
}

TEST(RequestHeaders, BinaryValuesAreDecoded) {
  const RequestHeaders headers =
      Made({{"k-bin", "AAH/"}, {"p-bin", "YQ=="}, {"u-bin", "YQ"}, {"m-bin", "YQ==,Yg,"}});
  EXPECT_EQ(headers.Metadata("k-bin"), std::string_view("\0\1\xff", 3));
  EXPECT_EQ(headers.Metadata("p-bin"), "a");
  EXPECT_EQ(headers.Metadata("u-bin"), "a");
  EXPECT_EQ(headers.Count("m-bin"), 3);
  EXPECT_TRUE(headers.failure().ok());
  for (const char* wrong : {"Y", "Y===", "YQ=", "Y Q=", "====", "\xff\xff"}) {
    EXPECT_EQ(Made({{"k-bin", wrong}}).failure().code, StatusCode::kInternal) << wrong;
  }
}

TEST(RequestHeaders, EncodingsThatAreUnknownAreUnimplemented) {
  EXPECT_EQ(Made({{"grpc-encoding", "gzip"}}).encoding(), MessageEncoding::kGzip);
  EXPECT_EQ(Made({{"grpc-encoding", "deflate"}}).encoding(), MessageEncoding::kDeflate);
  EXPECT_EQ(Made({{"grpc-encoding", "identity"}}).encoding(), MessageEncoding::kIdentity);
  EXPECT_EQ(Made({{"grpc-encoding", "snappy"}}).failure().code, StatusCode::kUnimplemented);
}

TEST(RequestHeaders, TimeoutsHaveUpToEightDigitsAndAUnit) {
  EXPECT_DOUBLE_EQ(ParseTimeout("1H"), 3600);
  EXPECT_DOUBLE_EQ(ParseTimeout("2M"), 120);
  EXPECT_DOUBLE_EQ(ParseTimeout("99999999S"), 99999999);
  EXPECT_DOUBLE_EQ(ParseTimeout("100m"), 0.1);
  EXPECT_DOUBLE_EQ(ParseTimeout("7u"), 7e-6);
  EXPECT_DOUBLE_EQ(ParseTimeout("0n"), 0);
  for (const char* wrong : {"", "1", "S", "-1S", "1.5S", "123456789S", "1s", "1 S", "+1S", "1SS"}) {
    EXPECT_LT(ParseTimeout(wrong), 0) << wrong;
    EXPECT_EQ(Made({{"grpc-timeout", wrong}}).failure().code, StatusCode::kInternal) << wrong;
  }
}

TEST(RequestHeaders, WhatIsTooLargeIsNotKept) {
  RequestHeaders headers = Made();
  EXPECT_FALSE(headers.Add("x-large", std::string(kMost, 'a'), kMost));
  EXPECT_FALSE(headers.Add("x", "y", kMost));
  EXPECT_EQ(headers.failure().code, StatusCode::kResourceExhausted);
  EXPECT_EQ(headers.Count("x-large"), 0);
  EXPECT_GT(headers.num_bytes(), kMost);
}

TEST(RequestHeaders, MessagesArePercentEncoded) {
  EXPECT_EQ(PercentEncoded("plain ~text"), "plain ~text");
  EXPECT_EQ(PercentEncoded("50% \xc3\xbc\n"), "50%25 %C3%BC%0A");
}

}  // namespace
}  // namespace recsys::http2
