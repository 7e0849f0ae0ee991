#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "client/messages.h"
#include "recsys/client.h"
#include "recsys/v1/predict.pb.h"

namespace recsys {
namespace {

v1::PredictRequest Parsed(const ClientRequest& request, const ClientOptions& options = {}) {
  grpc::Slice slice;
  EXPECT_TRUE(client::BytesOf(request, options).DumpToSingleSlice(&slice).ok());
  v1::PredictRequest message;
  EXPECT_TRUE(message.ParseFromArray(slice.begin(), static_cast<int>(slice.size())));
  return message;
}

template <typename T>
std::vector<T> Values(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::string TextOf(const std::function<void()>& wrong) {
  try {
    wrong();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRequest);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ClientRequest, PacksEveryKindOfInputAsTheWireWantsIt) {
  ClientRequest request(2);
  request.AddDense("context", std::vector<float>{1, 2, 3, 4, 5, 6})
      .AddSparse("genres", std::vector<std::int32_t>{0, 2}, std::vector<std::int64_t>{-7, 8})
      .AddSparse("tags", {{1}, {2, 3}}, {{0.5F}, {1.5F, 2.5F}})
      .AddContextDense("price", std::vector<float>{9})
      .AddContextSparse("user", std::vector<std::int64_t>{5, 6})
      .SetRequestId("r1")
      .SetPriority(Priority::kLow);
  const v1::PredictRequest message = Parsed(request);
  EXPECT_EQ(message.num_rows(), 2);
  EXPECT_EQ(message.request_id(), "r1");
  EXPECT_EQ(message.priority(), v1::PRIORITY_LOW);
  ASSERT_EQ(message.dense_size(), 1);
  EXPECT_EQ(Values<float>(message.dense(0).values()), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  ASSERT_EQ(message.sparse_size(), 2);
  EXPECT_EQ(Values<std::int32_t>(message.sparse(0).lengths()), (std::vector<std::int32_t>{0, 2}));
  EXPECT_EQ(Values<std::int64_t>(message.sparse(0).values()), (std::vector<std::int64_t>{-7, 8}));
  EXPECT_EQ(message.sparse(0).weights(), "");
  EXPECT_EQ(Values<float>(message.sparse(1).weights()), (std::vector<float>{0.5F, 1.5F, 2.5F}));
  ASSERT_EQ(message.context_dense_size(), 1);
  EXPECT_EQ(message.context_dense(0).name(), "price");
  ASSERT_EQ(message.context_sparse_size(), 1);
  EXPECT_EQ(Values<std::int32_t>(message.context_sparse(0).lengths()),
            (std::vector<std::int32_t>{2}));
  EXPECT_TRUE(message.GetReflection()->GetUnknownFields(message).empty());
}

TEST(ClientRequest, PacksTextsInPlaceOfIds) {
  const std::vector<std::string_view> texts{"85f751fd", "", std::string_view("\xff\0", 2)};
  ClientRequest request(2);
  request.AddTexts("site", {{"85f751fd"}, {"1fbe01fe", "x"}})
      .AddTexts("tags", {{}, {"a"}}, {{}, {0.5F}})
      .AddTexts("app", std::vector<std::int32_t>{3, 0}, texts)
      .AddContextTexts("user", texts, std::vector<float>{1, 2, 3});
  const v1::PredictRequest message = Parsed(request);
  ASSERT_EQ(message.sparse_size(), 3);
  EXPECT_EQ(Values<std::int32_t>(message.sparse(0).lengths()), (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(message.sparse(0).values(), "");
  ASSERT_EQ(message.sparse(0).strings_size(), 3);
  EXPECT_EQ(message.sparse(0).strings(1), "1fbe01fe");
  EXPECT_EQ(message.sparse(1).strings(0), "a");
  EXPECT_EQ(Values<float>(message.sparse(1).weights()), (std::vector<float>{0.5F}));
  for (const v1::SparseInput& input : {message.sparse(2), message.context_sparse(0)}) {
    EXPECT_EQ(std::vector<std::string>(input.strings().begin(), input.strings().end()),
              std::vector<std::string>(texts.begin(), texts.end()));
  }
  EXPECT_EQ(Values<std::int32_t>(message.context_sparse(0).lengths()),
            (std::vector<std::int32_t>{3}));
  EXPECT_TRUE(message.GetReflection()->GetUnknownFields(message).empty());
}

TEST(ClientRequest, CarriesWhatHoldsForAllCallsOfTheClient) {
  ClientOptions options;
  options.model = "ranker";
  options.version = "7";
  options.priority = Priority::kHigh;
  const v1::PredictRequest message = Parsed(ClientRequest(1), options);
  EXPECT_EQ(message.model(), "ranker");
  EXPECT_EQ(message.version(), "7");
  EXPECT_EQ(message.priority(), v1::PRIORITY_HIGH);
}

TEST(ClientRequest, TakesInputsLongerThanOneByteOfLengthCanSay) {
  const std::vector<float> values(100'000, 0.25F);
  ClientRequest request(1000);
  request.AddDense("wide", values);
  EXPECT_EQ(Values<float>(Parsed(request).dense(0).values()), values);
}

TEST(ClientRequest, AnEmptyBatchHasEmptyInputs) {
  ClientRequest request(0);
  request.AddDense("dense", Span<const float>()).AddSparse("user", {});
  const v1::PredictRequest message = Parsed(request);
  EXPECT_EQ(message.num_rows(), 0);
  EXPECT_EQ(message.dense(0).name(), "dense");
  EXPECT_EQ(message.sparse(0).name(), "user");
}

TEST(ClientRequest, RefusesRowsBeyondTheWire) {
  EXPECT_EQ(TextOf([] { ClientRequest{-1}; }), "num_rows: got -1, expected 0 to 2147483647");
  EXPECT_EQ(TextOf([] { ClientRequest{std::int64_t{1} << 31}; }),
            "num_rows: got 2147483648, expected 0 to 2147483647");
}

TEST(ClientRequest, RefusesDenseValuesThatAreNoWholeRows) {
  EXPECT_EQ(TextOf([] {
              ClientRequest(2).AddDense("price", std::vector<float>{1, 2, 3});
            }),
            "dense['price']: got 3 numbers, expected [2, width]");
  EXPECT_EQ(TextOf([] { ClientRequest(0).AddDense("price", std::vector<float>{1}); }),
            "dense['price']: got 1 numbers, expected [0, width]");
}

TEST(ClientRequest, RefusesBagsThatDoNotFitTogether) {
  using Lengths = std::vector<std::int32_t>;
  using Ids = std::vector<std::int64_t>;
  EXPECT_EQ(TextOf([] {
              ClientRequest(2).AddSparse("user", {{1}, {2}, {3}});
            }),
            "sparse['user']: got 3 rows, expected 2, as many as the request has");
  EXPECT_EQ(TextOf([] {
              ClientRequest(2).AddSparse("user", Lengths{1, 2}, Ids{1, 2});
            }),
            "sparse['user']: got 2 IDs, expected 3, the sum of the lengths");
  EXPECT_EQ(TextOf([] {
              ClientRequest(2).AddSparse("user", Lengths{3, -1}, Ids{1, 2});
            }),
            "sparse['user']: got the length -1, expected at least 0");
  EXPECT_EQ(TextOf([] {
              ClientRequest(1).AddSparse("tags", Lengths{2}, Ids{1, 2}, std::vector<float>{1});
            }),
            "sparse['tags']: got 1 weights, expected one per ID: 2");
  EXPECT_EQ(TextOf([] {
              ClientRequest(2).AddSparse("tags", {{1}, {2}}, {{1.0F}, {}});
            }),
            "weights['tags']: got 0 in row 1, expected one per ID: 1");
  EXPECT_EQ(TextOf([] {
              ClientRequest(2).AddSparse("tags", {{1}, {2}}, {{1.0F}});
            }),
            "weights['tags']: got 1 rows, expected 2, as many as the request has");
  EXPECT_EQ(TextOf([] {
              ClientRequest(1).AddContextSparse("u", Ids{1}, std::vector<float>{1, 2});
            }),
            "context_sparse['u']: got 2 weights, expected one per ID: 1");
}

TEST(ClientRequest, RefusesTextsThatDoNotFitTogether) {
  const std::vector<std::string_view> two{"a", "b"};
  EXPECT_EQ(TextOf([] {
              ClientRequest(1).AddTexts("site", {{"a"}, {"b"}});
            }),
            "sparse['site']: got 2 rows, expected 1, as many as the request has");
  EXPECT_EQ(TextOf([&] { ClientRequest(1).AddTexts("site", std::vector<std::int32_t>{1}, two); }),
            "sparse['site']: got 2 IDs, expected 1, the sum of the lengths");
  EXPECT_EQ(TextOf([] {
              ClientRequest(1).AddTexts("site", {{"a"}}, {{1.0F, 2.0F}});
            }),
            "weights['site']: got 2 in row 0, expected one per ID: 1");
  EXPECT_EQ(TextOf([&] { ClientRequest(1).AddContextTexts("site", two, std::vector<float>{1}); }),
            "context_sparse['site']: got 1 weights, expected one per ID: 2");
}

TEST(ClientRequest, RefusesRequestIdsThatTheWireDoesNotTake) {
  EXPECT_NO_THROW(ClientRequest(1).SetRequestId(std::string(128, 'x')));
  EXPECT_NE(TextOf([] {
              ClientRequest(1).SetRequestId(std::string(129, 'x'));
            }).find("expected at most 128 bytes of UTF-8"),
            std::string::npos);
  EXPECT_NE(TextOf([] { ClientRequest(1).SetRequestId("\xff"); }).find("request_id: got"),
            std::string::npos);
}

}  // namespace
}  // namespace recsys
