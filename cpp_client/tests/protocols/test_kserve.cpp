#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/protocols/kserve.h"
#include "inference/open_inference.pb.h"
#include "tests/protocols/served_model.h"

namespace recsys {
namespace {

void AddInput(inference::ModelInferRequest* request, const char* name, const char* datatype,
              const std::vector<std::int64_t>& sizes, const std::string& data) {
  auto* input = request->add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  for (const std::int64_t size : sizes) input->add_shape(size);
  request->add_raw_input_contents(data);
}

/// One row that scores `price` and the IDs 3 and 4.
inference::ModelInferRequest Request(float price = 1) {
  inference::ModelInferRequest request;
  request.set_id("mine");
  AddInput(&request, "context", "FP32", {1, 3}, Floats({0, 0, 0}));
  AddInput(&request, "price", "FP32", {1}, Floats({price}));
  AddInput(&request, "user", "INT32", {1, 2}, Int32({3, 4}));
  for (const char* name : {"genres", "item", "tags"}) {
    AddInput(&request, (std::string(name) + ".values").c_str(), "INT64", {0}, "");
    AddInput(&request, (std::string(name) + ".lengths").c_str(), "INT64", {1}, Int64({0}));
  }
  AddInput(&request, "tags.weights", "FP32", {0}, "");
  return request;
}

class KserveTest : public ServedTest {
 protected:
  std::pair<Status, std::string> Infer(const inference::ModelInferRequest& request,
                                       const CallFacts& facts = {}) {
    return Call(service_, "ModelInfer", request.SerializeAsString(), facts);
  }

  double now_s_ = MonotonicSeconds();
  Service service_ = KserveService(gateway_, {}, [this] { return now_s_; });
};

TEST_F(KserveTest, AnInferenceIsAnsweredInProtobufsOwnBytes) {
  const auto [status, answer] = Infer(Request(0.5F));
  ASSERT_TRUE(status.ok()) << status.text;
  inference::ModelInferResponse expected;
  expected.set_model_name("small");
  expected.set_model_version("1");
  expected.set_id("mine");
  const auto add = [&](const char* name, const std::vector<std::int64_t>& sizes,
                       const std::vector<float>& values) {
    auto* output = expected.add_outputs();
    output->set_name(name);
    output->set_datatype("FP32");
    for (const std::int64_t size : sizes) output->add_shape(size);
    expected.add_raw_output_contents(Floats(values));
  };
  add("score", {1}, {7.5F});
  add("vectors", {1, 2, 3}, {7.5F, 15, 22.5F, 30, 37.5F, 45});
  EXPECT_EQ(answer, expected.SerializeAsString());
}

TEST_F(KserveTest, OnlyTheOutputsThatWereAskedForAreSent) {
  inference::ModelInferRequest request = Request();
  request.add_outputs()->set_name("vectors");
  inference::ModelInferResponse response;
  ASSERT_TRUE(response.ParseFromString(Infer(request).second));
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_EQ(response.outputs(0).name(), "vectors");
  EXPECT_EQ(response.raw_output_contents(0).size(), 24U);
}

TEST_F(KserveTest, WhatCannotBeReadIsRefusedAndCountedOnce) {
  EXPECT_EQ(Call(service_, "ModelInfer", "\xff").first.text,
            "message: got 1 bytes that are not a ModelInferRequest");
  inference::ModelInferRequest request = Request();
  request.set_id(std::string(129, 'x'));
  EXPECT_EQ(Infer(request).first.text, "id: got 129 bytes, expected at most 128");
  request = Request();
  (*request.mutable_parameters())["priority"].set_int64_param(4);
  EXPECT_EQ(Infer(request).first.text,
            "parameters['priority']: got 4, expected 0 (default) to 3 (served last)");
  request = Request();
  request.mutable_inputs(0)->set_name("stranger");
  EXPECT_EQ(Infer(request).first.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(Count(Outcome::kInvalid), 4);
}

TEST_F(KserveTest, AFloodOfTensorsIsRefusedByItsCount) {
  std::string flood = Request().SerializeAsString();
  for (int i = 0; i < 100'000; ++i) flood.append("\x2a\x00", 2);
  EXPECT_EQ(Call(service_, "ModelInfer", flood).first.text,
            "inputs: got 100010 tensors, expected at most 14 for this model");
}

TEST_F(KserveTest, TheEarlierOfTheCallsDeadlineAndTheTimeoutHolds) {
  model_->Shut();
  const auto busy = std::make_shared<FakeUnaryCall>();
  const auto running =
      service_.methods.at("ModelInfer").unary(busy, Bytes::Of(Request().SerializeAsString()));
  inference::ModelInferRequest late = Request();
  (*late.mutable_parameters())["timeout"].set_int64_param(1'000'000);
  now_s_ -= 10;  // the timeout is over
  const auto call = std::make_shared<FakeUnaryCall>();
  const auto waiting =
      service_.methods.at("ModelInfer").unary(call, Bytes::Of(late.SerializeAsString()));
  model_->Open();
  EXPECT_TRUE(busy->Wait().first.ok());
  EXPECT_EQ(call->Wait().first.code, StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Count(Outcome::kExpired), 1);
}

TEST_F(KserveTest, AStreamAnswersInOrderAndErrorsEndOnlyTheirRequest) {
  const auto call = std::make_shared<FakeStreamCall>();
  const auto stream = service_.methods.at("ModelStreamInfer").stream(call);
  model_->Shut();
  for (int i = 0; i < 9; ++i) {
    inference::ModelInferRequest request = Request(static_cast<float>(i));
    request.set_id(std::to_string(i));
    if (i % 3 == 1) request.mutable_inputs(0)->set_name("stranger");
    if (i % 3 == 2) (*request.mutable_parameters())["priority"].set_int64_param(9);
    stream->OnMessage(Bytes::Of(request.SerializeAsString()));
  }
  stream->OnHalfClose();
  model_->Open();
  EXPECT_TRUE(call->WaitForEnd().ok());
  const std::vector<std::string> answers = call->WaitForAnswers(9);
  ASSERT_EQ(answers.size(), 9U);
  for (int i = 0; i < 9; ++i) {
    inference::ModelStreamInferResponse response;
    ASSERT_TRUE(response.ParseFromString(answers[static_cast<std::size_t>(i)]));
    // What could not be read has no ID.
    EXPECT_EQ(response.infer_response().id(), i % 3 == 2 ? "" : std::to_string(i));
    EXPECT_EQ(response.error_message().empty(), i % 3 == 0);
    EXPECT_EQ(response.infer_response().parameters().count("triton_final_response"),
              i % 3 == 0 ? 1U : 0U);
    if (i % 3 == 0) {
      EXPECT_EQ(response.infer_response().raw_output_contents(0),
                Floats({static_cast<float>(i) + 7}));
    }
  }
}

}  // namespace
}  // namespace recsys
