// The readers that work in place beside protobuf's generated parsers, on messages that were spoiled
// at random: both find the same in what is a message. Seeds are fixed.

#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "inference/open_inference.pb.h"
#include "predictor/predictor.pb.h"
#include "recsys/v1/predict.pb.h"
#include "tests/wire/messages.h"
#include "wire/infer/infer_request.h"
#include "wire/predict_messages.h"
#include "wire/torchrec_request.h"

namespace recsys {
namespace {

constexpr int kNumMessages = 20'000;

/// Changes a message in one to three places; sometimes not at all.
std::string Spoiled(std::string message, std::mt19937* random) {
  const auto below = [random](std::size_t bound) { return (*random)() % bound; };
  for (std::size_t i = below(4); i > 0 && !message.empty(); --i) {
    const std::size_t at = below(message.size());
    switch (below(5)) {
      case 0:
        message[at] = static_cast<char>(message[at] ^ 1 << below(7));
        break;
      case 1:
        message.resize(at);
        break;
      case 2:
        message.erase(at, below(5));
        break;
      case 3:
        message.insert(at, message.substr(below(message.size()), below(20)));
        break;
      default:
        // A group, which both pass over.
        message.insert(at, "\xa3\x06\x38\x01\xa4\x06");
    }
  }
  return message;
}

class ParsersTest : public testing::Test {
 protected:
  ~ParsersTest() override {
    EXPECT_GT(num_messages_, kNumMessages / 10);
    EXPECT_LE(num_stricter_, kNumMessages / 1000);
  }
  /// Whether both found a message. Within groups, the generated parsers refuse a field number 0,
  /// which Python's protobuf and the readers pass over: such messages are few.
  bool IsMessage(bool found, bool expected) {
    EXPECT_TRUE(found || !expected);
    num_messages_ += expected ? 1 : 0;
    num_stricter_ += found && !expected ? 1 : 0;
    return found && expected;
  }

 private:
  int num_messages_ = 0;
  int num_stricter_ = 0;
  // Protobuf says so whenever a text is no UTF-8.
  google::protobuf::LogSilencer quiet_;
};

v1::PredictRequest PredictMessage() {
  v1::PredictRequest request;
  request.set_model("m");
  request.set_request_id("r\xc3\xa9");
  request.set_num_rows(2);
  request.set_version("1");
  request.set_priority(v1::PRIORITY_LOW);
  for (const char* name : {"context", "price"}) {
    request.add_dense()->set_name(name);
    request.mutable_dense(request.dense_size() - 1)->set_values(Floats({1, 2}));
    request.add_context_dense()->set_name(name);
  }
  for (const char* name : {"user", "tags"}) {
    for (v1::SparseInput* input : {request.add_sparse(), request.add_context_sparse()}) {
      input->set_name(name);
      input->set_lengths(Int32({1, 2}));
      input->set_values(Int64({1, 2, 3}));
      input->set_weights(Floats({1}));
      for (const char* text : {"85f751fd", "", "\xff"}) input->add_strings(text);
    }
  }
  return request;
}

template <typename Messages>
void ExpectSameDense(const std::vector<RawDense>& found, const Messages& expected) {
  ASSERT_EQ(found.size(), static_cast<std::size_t>(expected.size()));
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].name, expected[static_cast<int>(i)].name());
    EXPECT_EQ(found[i].values, expected[static_cast<int>(i)].values());
  }
}

template <typename Messages>
void ExpectSameSparse(const std::vector<RawSparse>& found, const Messages& expected) {
  ASSERT_EQ(found.size(), static_cast<std::size_t>(expected.size()));
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].name, expected[static_cast<int>(i)].name());
    EXPECT_EQ(found[i].lengths, expected[static_cast<int>(i)].lengths());
    EXPECT_EQ(found[i].values, expected[static_cast<int>(i)].values());
    EXPECT_EQ(found[i].weights, expected[static_cast<int>(i)].weights());
    const auto& texts = expected[static_cast<int>(i)].strings();
    EXPECT_EQ(TextsOf(found[i]), std::vector<std::string>(texts.begin(), texts.end()));
  }
}

TEST_F(ParsersTest, APredictRequestReadsAsProtobufReadsIt) {
  std::mt19937 random(1);
  const std::string good = PredictMessage().SerializeAsString();
  PredictFields fields;
  RawRequest raw;
  for (int i = 0; i < kNumMessages && !testing::Test::HasFailure(); ++i) {
    const std::string bytes = Spoiled(good, &random);
    v1::PredictRequest expected;
    const bool found = ReadPredictRequest(bytes, kMaxInputsKept, &fields, &raw);
    if (!IsMessage(found, expected.ParseFromString(bytes))) continue;
    EXPECT_EQ(fields.model, expected.model());
    EXPECT_EQ(fields.version, expected.version());
    EXPECT_EQ(fields.request_id, expected.request_id());
    EXPECT_EQ(fields.priority, static_cast<int>(expected.priority()));
    EXPECT_EQ(raw.num_rows, expected.num_rows());
    ExpectSameDense(raw.dense, expected.dense());
    ExpectSameDense(raw.context_dense, expected.context_dense());
    ExpectSameSparse(raw.sparse, expected.sparse());
    ExpectSameSparse(raw.context_sparse, expected.context_sparse());
  }
}

inference::ModelInferRequest InferMessageOf() {
  inference::ModelInferRequest request;
  request.set_model_name("m");
  request.set_id("id");
  (*request.mutable_parameters())["priority"].set_int64_param(1);
  (*request.mutable_parameters())["context"].set_string_param("user");
  for (const char* datatype : {"FP32", "INT64", "INT32", "BYTES"}) {
    auto* input = request.add_inputs();
    input->set_name(datatype);
    input->set_datatype(datatype);
    input->add_shape(2);
    input->add_shape(-1);
    request.add_raw_input_contents("raw");
  }
  for (const float value : {1.0F, 2.0F}) {
    request.mutable_inputs(0)->mutable_contents()->add_fp32_contents(value);
    request.mutable_inputs(1)->mutable_contents()->add_int64_contents(-1);
    request.mutable_inputs(2)->mutable_contents()->add_int_contents(300);
    request.mutable_inputs(3)->mutable_contents()->add_bytes_contents("ab");
  }
  request.add_outputs()->set_name("score");
  return request;
}

/// The values of a tensor, where they all are of its type.
std::string ValuesOf(const inference::ModelInferRequest::InferInputTensor& input) {
  const inference::InferTensorContents& contents = input.contents();
  if (input.datatype() == "FP32") {
    return Floats({contents.fp32_contents().begin(), contents.fp32_contents().end()});
  }
  if (input.datatype() == "INT64") {
    return Int64({contents.int64_contents().begin(), contents.int64_contents().end()});
  }
  if (input.datatype() == "INT32") {
    return Int32({contents.int_contents().begin(), contents.int_contents().end()});
  }
  return "";
}

void ExpectSame(const InferInput& found,
                const inference::ModelInferRequest::InferInputTensor& expected) {
  EXPECT_EQ(found.tensor.name, expected.name());
  EXPECT_EQ(found.tensor.datatype, expected.datatype());
  ASSERT_EQ(found.tensor.shape.num_dims, static_cast<std::size_t>(expected.shape_size()));
  for (int i = 0; i < std::min(expected.shape_size(), 8); ++i) {
    EXPECT_EQ(found.tensor.shape.sizes[static_cast<std::size_t>(i)], expected.shape(i));
  }
  EXPECT_EQ(found.has_contents, expected.has_contents());
  OwnedBytes owned;
  try {
    if (expected.datatype() == kTextType) {
      RawSparse texts;
      texts.texts = TypedTexts(found, &owned);
      const auto& values = expected.contents().bytes_contents();
      EXPECT_EQ(TextsOf(texts), std::vector<std::string>(values.begin(), values.end()));
    } else {
      EXPECT_EQ(TypedContents(found, &owned), ValuesOf(expected));
    }
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(".contents: got "), std::string::npos);
  }
}

TEST_F(ParsersTest, AModelInferRequestReadsAsProtobufReadsIt) {
  std::mt19937 random(2);
  const std::string good = InferMessageOf().SerializeAsString();
  InferMessage message;
  for (int i = 0; i < kNumMessages && !testing::Test::HasFailure(); ++i) {
    const std::string bytes = Spoiled(good, &random);
    inference::ModelInferRequest expected;
    const bool found = ReadInferMessage(bytes, kMaxTensorsKept, &message);
    if (!IsMessage(found, expected.ParseFromString(bytes))) continue;
    EXPECT_EQ(message.model, expected.model_name());
    EXPECT_EQ(message.id, expected.id());
    ASSERT_EQ(message.num_inputs, static_cast<std::size_t>(expected.inputs_size()));
    for (int at = 0; at < expected.inputs_size(); ++at) {
      ExpectSame(message.inputs[static_cast<std::size_t>(at)], expected.inputs(at));
    }
    ASSERT_EQ(message.num_outputs, static_cast<std::size_t>(expected.outputs_size()));
    ASSERT_EQ(message.num_raw_contents,
              static_cast<std::size_t>(expected.raw_input_contents_size()));
    for (int at = 0; at < expected.raw_input_contents_size(); ++at) {
      EXPECT_EQ(message.raw_contents[static_cast<std::size_t>(at)],
                expected.raw_input_contents(at));
    }
  }
}

template <typename Features>
void ExpectSameFeatures(const TorchrecFeatures& found, const Features& expected) {
  EXPECT_EQ(found.num_features, expected.num_features());
  EXPECT_EQ(found.values, expected.values());
  if constexpr (std::is_same_v<Features, predictor::SparseFeatures>) {
    EXPECT_EQ(found.lengths, expected.lengths());
    EXPECT_EQ(found.weights, expected.weights());
  }
}

TEST_F(ParsersTest, ATorchrecRequestReadsAsProtobufReadsIt) {
  std::mt19937 random(3);
  predictor::PredictionRequest whole;
  whole.set_batch_size(2);
  whole.mutable_float_features()->set_num_features(1);
  whole.mutable_float_features()->set_values(Floats({1, 2}));
  for (auto* features : {whole.mutable_id_list_features(), whole.mutable_id_score_list_features(),
                         whole.mutable_unary_features()}) {
    features->set_num_features(3);
    features->set_lengths(Int32({1, 2}));
    features->set_values(Int32({1, 2, 3}));
    features->set_weights(Floats({1}));
  }
  const std::string good = whole.SerializeAsString();
  TorchrecRequest request;
  for (int i = 0; i < kNumMessages && !testing::Test::HasFailure(); ++i) {
    const std::string bytes = Spoiled(good, &random);
    predictor::PredictionRequest expected;
    const bool found = ReadTorchrecRequest(bytes, &request);
    if (!IsMessage(found, expected.ParseFromString(bytes))) continue;
    EXPECT_EQ(request.batch_size, expected.batch_size());
    ExpectSameFeatures(request.floats, expected.float_features());
    ExpectSameFeatures(request.id_list, expected.id_list_features());
    ExpectSameFeatures(request.id_score_list, expected.id_score_list_features());
    ExpectSameFeatures(request.embedding, expected.embedding_features());
    ExpectSameFeatures(request.unary, expected.unary_features());
  }
}

}  // namespace
}  // namespace recsys
