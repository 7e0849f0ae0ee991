#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/protocols/recsys_v1.h"
#include "recsys/v1/predict.pb.h"
#include "tests/protocols/served_model.h"

namespace recsys {
namespace {

/// Rows of which the first scores `first`.
v1::PredictRequest Request(int num_rows, float first = 1) {
  v1::PredictRequest request;
  request.set_num_rows(num_rows);
  const auto rows = static_cast<std::size_t>(num_rows);
  const auto dense = [&](const char* name, std::vector<float> values) {
    v1::DenseInput* input = request.add_dense();
    input->set_name(name);
    input->set_values(Floats(values));
  };
  std::vector<float> prices(rows, 0);
  if (rows > 0) prices[0] = first;
  dense("context", std::vector<float>(3 * rows, 0));
  dense("price", prices);
  for (const char* name : {"user", "genres", "item", "tags"}) {
    v1::SparseInput* input = request.add_sparse();
    input->set_name(name);
    input->set_lengths(Int32(std::vector<std::int32_t>(rows, 0)));
  }
  return request;
}

/// What a request is answered with.
v1::PredictResponse Expected(const std::vector<float>& scores) {
  v1::PredictResponse response;
  response.set_model("small");
  response.set_version("1");
  std::vector<float> vectors;
  for (const float score : scores) {
    for (int factor = 1; factor <= 6; ++factor) {
      vectors.push_back(score * static_cast<float>(factor));
    }
  }
  const auto output = [&](const char* name, const std::vector<std::int64_t>& dims,
                          const std::vector<float>& values) {
    v1::Output* added = response.add_outputs();
    added->set_name(name);
    for (const std::int64_t size : dims) added->add_dims(size);
    added->set_values(Floats(values));
  };
  const auto rows = static_cast<std::int64_t>(scores.size());
  output("score", {rows}, scores);
  output("vectors", {rows, 2, 3}, vectors);
  return response;
}

class RecsysV1Test : public ServedTest {
 protected:
  std::pair<Status, std::string> Predict(const v1::PredictRequest& request) {
    return Call(service_, "Predict", request.SerializeAsString());
  }
  std::shared_ptr<StreamHandler> OpenStream(const std::shared_ptr<FakeStreamCall>& call,
                                            std::int64_t max_requests = 64) {
    ConnectionLimits limits;
    limits.max_stream_requests = max_requests;
    return RecsysV1Service(gateway_, limits).methods.at("PredictStream").stream(call);
  }
  static Bytes Tagged(const std::string& request_id, float first = 1) {
    v1::PredictRequest request = Request(1, first);
    request.set_request_id(request_id);
    return Bytes::Of(request.SerializeAsString());
  }
  static v1::StreamResponse Parsed(const std::string& answer) {
    v1::StreamResponse response;
    EXPECT_TRUE(response.ParseFromString(answer));
    return response;
  }

  Service service_ = RecsysV1Service(gateway_, {});
};

TEST_F(RecsysV1Test, AnAnswerIsThatOfTheModelInProtobufsOwnBytes) {
  for (const int num_rows : {0, 1, 3, 2000}) {
    std::vector<float> scores(static_cast<std::size_t>(num_rows), 0);
    if (num_rows > 0) scores[0] = 7;
    const auto [status, answer] = Predict(Request(num_rows, 7));
    ASSERT_TRUE(status.ok()) << status.text;
    EXPECT_TRUE(answer == Expected(scores).SerializeAsString()) << num_rows;
  }
  EXPECT_EQ(Count(Outcome::kOk), 4);
}

TEST_F(RecsysV1Test, WhatIsNoMessageIsRefusedAndCounted) {
  for (const std::string bytes : {"\xff", "\x0a\x02\xff\xfe", "\x22\xff\xff\xff\xff\x7f"}) {
    const auto [status, answer] = Call(service_, "Predict", bytes);
    EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
    EXPECT_EQ(status.text, "message: got " + std::to_string(bytes.size()) +
                               " bytes that are not a PredictRequest");
  }
  EXPECT_EQ(Count(Outcome::kInvalid), 3);
}

TEST_F(RecsysV1Test, AnIdThatIsTooLongAndAPriorityThatIsNoneAreRefused) {
  v1::PredictRequest request = Request(1);
  request.set_request_id(std::string(129, 'x'));
  EXPECT_EQ(Predict(request).first.text, "request_id: got 129 bytes, expected at most 128");
  request.set_request_id(std::string(128, 'x'));
  EXPECT_TRUE(Predict(request).first.ok());
  request.set_priority(static_cast<v1::Priority>(9));
  EXPECT_EQ(Predict(request).first.text,
            "priority: got 9, expected HIGH (1), NORMAL (2) or LOW (3)");
  for (const int priority : {0, 1, 2, 3}) {
    request.set_priority(static_cast<v1::Priority>(priority));
    EXPECT_TRUE(Predict(request).first.ok());
  }
}

TEST_F(RecsysV1Test, ARequestThatDoesNotFitTheModelIsRefusedByItsField) {
  v1::PredictRequest request = Request(2);
  request.mutable_dense(1)->set_values("abc");
  const auto [status, answer] = Predict(request);
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(status.text, "dense['price'].values: got 3 bytes, expected 8 (float32 [2, 1])");
  request = Request(1);
  request.set_model("other");
  EXPECT_EQ(Predict(request).first.code, StatusCode::kNotFound);
  EXPECT_EQ(Count(Outcome::kNotFound), 1);
}

TEST_F(RecsysV1Test, AFloodOfInputsIsRefusedByTheFirstThatIsTooMuch) {
  std::string flood = Request(1).SerializeAsString();
  for (int i = 0; i < 1'000'000; ++i) flood.append("\x22\x00", 2);
  const auto [status, answer] = Call(service_, "Predict", flood);
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(status.text.substr(0, 36), "dense: got an unknown input '', expe");
}

TEST_F(RecsysV1Test, ACallWhoseClientHasGoneEndsOnceAndLeavesTheQueue) {
  model_->Shut();
  const auto busy = std::make_shared<FakeUnaryCall>();
  const auto running = service_.methods.at("Predict").unary(busy, Tagged("busy"));
  const auto call = std::make_shared<FakeUnaryCall>();
  const auto handler = service_.methods.at("Predict").unary(call, Tagged("gone"));
  handler->Cancelled();
  EXPECT_EQ(call->Wait().first.code, StatusCode::kCancelled);
  model_->Open();
  EXPECT_TRUE(busy->Wait().first.ok());
  EXPECT_EQ(call->num_ends(), 1);
  EXPECT_EQ(Count(Outcome::kCancelled), 1);
}

TEST_F(RecsysV1Test, AStreamAnswersEachRequestByItsIdAndEndsWhenAllAreAnswered) {
  const auto call = std::make_shared<FakeStreamCall>();
  const auto stream = OpenStream(call);
  EXPECT_EQ(call->num_reads(), 1);
  stream->OnMessage(Tagged("a", 1));
  stream->OnMessage(Bytes::Of("\xff"));
  v1::PredictRequest wrong = Request(1);
  wrong.set_request_id("wrong");
  wrong.set_num_rows(-1);
  stream->OnMessage(Bytes::Of(wrong.SerializeAsString()));
  stream->OnMessage(Tagged("b", 2));
  stream->OnHalfClose();
  EXPECT_TRUE(call->WaitForEnd().ok());
  std::map<std::string, v1::StreamResponse> found;
  for (const std::string& answer : call->WaitForAnswers(4)) {
    found[Parsed(answer).request_id()] = Parsed(answer);
  }
  EXPECT_EQ(found["a"].response().SerializeAsString(), Expected({1}).SerializeAsString());
  EXPECT_EQ(found["b"].response().SerializeAsString(), Expected({2}).SerializeAsString());
  EXPECT_EQ(found["wrong"].error().message(), "num_rows: got -1, expected 0 or more");
  EXPECT_EQ(found["wrong"].error().code(), 3);
  EXPECT_EQ(found[""].error().message(), "message: got 1 bytes that are not a PredictRequest");
  EXPECT_EQ(call->num_ends(), 1);
  EXPECT_EQ(Count(Outcome::kInvalid), 2);
}

TEST_F(RecsysV1Test, AnEmptyStreamEndsAtOnce) {
  const auto call = std::make_shared<FakeStreamCall>();
  OpenStream(call)->OnHalfClose();
  EXPECT_TRUE(call->WaitForEnd().ok());
  EXPECT_EQ(call->num_reads(), 1);
}

TEST_F(RecsysV1Test, AStreamIsReadOnOnlyAsAnswersLeave) {
  const auto call = std::make_shared<FakeStreamCall>(true);
  const auto stream = OpenStream(call, 2);
  stream->OnMessage(Tagged("a"));
  EXPECT_EQ(call->num_reads(), 2);
  stream->OnMessage(Tagged("b"));
  call->WaitForAnswers(2);
  EXPECT_EQ(call->num_reads(), 2);
  call->Release();
  EXPECT_EQ(call->num_reads(), 3);
  stream->OnMessage(Tagged("c"));
  EXPECT_EQ(call->num_reads(), 3);
  call->WaitForAnswers(3);
  stream->OnHalfClose();
  call->Release();
  EXPECT_EQ(call->num_ends(), 0);
  call->Release();
  EXPECT_EQ(call->num_ends(), 1);
}

TEST_F(RecsysV1Test, AStreamWhoseClientHasGoneGivesUpWhatWaits) {
  model_->Shut();
  const auto call = std::make_shared<FakeStreamCall>();
  std::weak_ptr<StreamHandler> left;
  {
    const auto stream = OpenStream(call);
    left = stream;
    for (int i = 0; i < 5; ++i) stream->OnMessage(Tagged(std::to_string(i)));
    stream->OnCancelled();
  }
  model_->Open();
  EXPECT_TRUE(gateway_.WaitUntilIdle(MonotonicSeconds() + 60));
  EXPECT_EQ(Count(Outcome::kCancelled), 5);
  EXPECT_EQ(call->num_ends(), 0);
  router_.servable->Close();
  EXPECT_TRUE(left.expired());
}

TEST_F(RecsysV1Test, AStreamWhoseAnswersGetLostIsNotReadOn) {
  const auto call = std::make_shared<FakeStreamCall>(true);
  const auto stream = OpenStream(call, 1);
  stream->OnMessage(Tagged("a"));
  call->WaitForAnswers(1);
  call->Release(false);
  EXPECT_EQ(call->num_reads(), 1);
}

TEST_F(RecsysV1Test, ADrainingServerRefusesOnStreamsToo) {
  const auto call = std::make_shared<FakeStreamCall>();
  const auto stream = OpenStream(call);
  gateway_.Drain();
  stream->OnMessage(Tagged("late"));
  const v1::StreamResponse answer = Parsed(call->WaitForAnswers(1)[0]);
  EXPECT_EQ(answer.request_id(), "late");
  EXPECT_EQ(answer.error().code(), static_cast<int>(StatusCode::kUnavailable));
}

}  // namespace
}  // namespace recsys
