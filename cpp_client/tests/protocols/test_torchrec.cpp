#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/protocols/torchrec.h"
#include "predictor/predictor.pb.h"
#include "tests/protocols/served_model.h"

namespace recsys {
namespace {

/// Two rows that score 1 and 2 + 3 + 4.
predictor::PredictionRequest Request() {
  predictor::PredictionRequest request;
  request.set_batch_size(2);
  request.mutable_float_features()->set_num_features(4);
  request.mutable_float_features()->set_values(Floats({0, 0, 0, 1, 0, 0, 0, 2}));
  request.mutable_id_list_features()->set_num_features(3);
  request.mutable_id_list_features()->set_lengths(Int32({0, 1, 0, 0, 0, 1}));
  request.mutable_id_list_features()->set_values(Int32({3, 4}));
  request.mutable_id_score_list_features()->set_num_features(1);
  request.mutable_id_score_list_features()->set_lengths(Int32({0, 0}));
  return request;
}

class TorchrecTest : public ServedTest {
 protected:
  Service service_ = TorchrecService(gateway_);
};

TEST_F(TorchrecTest, EachOutputIsThereAndTheFirstIsTheDefault) {
  const auto [status, answer] = Call(service_, "Predict", Request().SerializeAsString());
  ASSERT_TRUE(status.ok()) << status.text;
  predictor::PredictionResponse response;
  ASSERT_TRUE(response.ParseFromString(answer));
  ASSERT_EQ(response.predictions_size(), 3);
  const auto values = [&](const char* name) {
    const auto& data = response.predictions().at(name).data();
    return std::vector<float>(data.begin(), data.end());
  };
  EXPECT_EQ(values("score"), (std::vector<float>{1, 9}));
  EXPECT_EQ(values("default"), values("score"));
  EXPECT_EQ(values("vectors").size(), 12U);
}

TEST_F(TorchrecTest, MetadataOfTheCallChooseModelAndVersion) {
  const auto code = [this](std::map<std::string, std::string> metadata) {
    return Call(service_, "Predict", Request().SerializeAsString(), {std::move(metadata)})
        .first.code;
  };
  EXPECT_EQ(code({{"recsys-model", "small"}, {"recsys-version", "1"}}), StatusCode::kOk);
  EXPECT_EQ(code({{"recsys-model", "other"}}), StatusCode::kNotFound);
  EXPECT_EQ(code({{"recsys-version", "8"}}), StatusCode::kNotFound);
  EXPECT_EQ(Call(TorchrecService(gateway_, "other"), "Predict", "").first.code,
            StatusCode::kNotFound);
}

TEST_F(TorchrecTest, WrongRequestsAreRefusedByTheirFields) {
  EXPECT_EQ(Call(service_, "Predict", "\xff").first.text,
            "message: got 1 bytes that are not a PredictionRequest");
  predictor::PredictionRequest request = Request();
  request.set_batch_size(1 << 20);
  EXPECT_EQ(Call(service_, "Predict", request.SerializeAsString()).first.text,
            "num_rows: got 1048576, expected at most 4096 in one request; split it");
  EXPECT_EQ(Count(Outcome::kInvalid), 2);
}

}  // namespace
}  // namespace recsys
