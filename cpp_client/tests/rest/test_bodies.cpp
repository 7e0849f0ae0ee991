#include <gtest/gtest.h>

#include <string>

#include "rest/json/infer_body.h"
#include "rest/json/predict_body.h"
#include "tests/wire/messages.h"
#include "wire/infer/infer_request.h"
#include "wire/predict/predict_request.h"

namespace recsys {
namespace {

constexpr RequestLimits kLimits{4, 6, 1 << 20};

std::string Infer(const std::string& json, const std::string& binary = "",
                  InferForm* form = nullptr) {
  std::string message;
  InferForm own;
  const bool is_read =
      ReadInferBody({"m", "v"}, json, binary, &message, form == nullptr ? &own : form);
  return is_read ? message : "refused";
}

std::string OneInput(const std::string& fields) { return R"({"inputs":[{)" + fields + "}]}"; }

/// The bytes of the only tensor.
std::string DataOf(const std::string& fields) {
  const std::string bytes = Infer(OneInput(R"("name":"x",)" + fields));
  InferMessage message;
  if (bytes == "refused" || !ReadInferMessage(bytes, kMaxTensorsKept, &message)) return "refused";
  return std::string(message.raw_contents.at(0));
}

std::string Predict(const std::string& json) {
  std::string message;
  const bool is_read = ReadPredictBody({"m", "v"}, json, SmallSignature(), kLimits, &message);
  return is_read ? message : "refused";
}

TEST(InferBodyTest, BodiesAreRead) {
  InferForm form;
  const std::string bytes =
      Infer(R"({"id":"r","inputs":[{"name":"a","datatype":"INT32","shape":[2],"data":[1,-2]},)"
            R"({"name":"b","shape":[1],"datatype":"FP32","parameters":{"binary_data_size":4}}],)"
            R"("outputs":[{"name":"s","parameters":{"binary_data":false}},{"name":"t"}],)"
            R"("parameters":{"binary_data_output":true}})",
            Floats({3}), &form);
  InferMessage message;
  ASSERT_TRUE(ReadInferMessage(bytes, kMaxTensorsKept, &message)) << bytes;
  EXPECT_EQ(message.model, "m");
  EXPECT_EQ(message.version, "v");
  EXPECT_EQ(message.id, "r");
  ASSERT_EQ(message.inputs.size(), 2U);
  EXPECT_EQ(message.inputs[1].tensor.name, "b");
  EXPECT_EQ(message.inputs[0].tensor.shape.sizes[0], 2);
  EXPECT_EQ(message.raw_contents[0], Int32({1, -2}));
  EXPECT_EQ(message.raw_contents[1], Floats({3}));
  ASSERT_EQ(message.outputs.size(), 2U);
  EXPECT_FALSE(form.IsBinary("s"));
  EXPECT_TRUE(form.IsBinary("t"));
}

TEST(InferBodyTest, ListsAreFlatOrOfTheShape) {
  const std::string expected = Int64({1, 2, 3, 4});
  const std::string type = R"("datatype":"INT64",)";
  EXPECT_EQ(DataOf(type + R"("shape":[2,2],"data":[1,2,3,4])"), expected);
  EXPECT_EQ(DataOf(type + R"("shape":[2,2],"data":[[1,2],[3,4]])"), expected);
  EXPECT_EQ(DataOf(type + R"("shape":[2,1,2],"data":[[[1,2]],[[3,4]]])"), expected);
  EXPECT_EQ(DataOf(R"("data":[[1,2],[3,4]],"shape":[2,2],"datatype":"INT64")"), expected);
  for (const char* data : {"[[1,2],[3]]", "[[1,2,3,4]]", "[1,[2]]", "[[1],2]", "[[],[]]", "1",
                           "[[1,2],[3,4]", "[1.0]", "[null]", "[\"1\"]"}) {
    EXPECT_EQ(DataOf(type + R"("shape":[2,2],"data":)" + data), "refused") << data;
  }
}

TEST(InferBodyTest, ValuesAreOfTheType) {
  EXPECT_EQ(DataOf(R"("datatype":"FP32","shape":[2],"data":[1,0.5])"), Floats({1, 0.5}));
  EXPECT_EQ(DataOf(R"("datatype":"BYTES","shape":[2],"data":["a",""])"), Prefixed({"a", ""}));
  for (const char* fields :
       {R"("datatype":"INT32","shape":[1],"data":[2147483648])",
        R"("datatype":"FP64","shape":[1],"data":[1])", R"("datatype":"FP32","shape":[1])",
        R"("datatype":"FP32","data":[1])", R"("shape":[1],"data":[1])",
        R"("datatype":"FP32","shape":[1],"data":[1],"data":[1])",
        R"("datatype":"FP32","shape":[1],"data":[1],"more":1)",
        R"("datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4})",
        R"("datatype":"FP32","shape":[1],"parameters":{"binary_data_size":-1})"}) {
    EXPECT_EQ(DataOf(fields), "refused") << fields;
  }
}

TEST(InferBodyTest, OtherBodiesAreRefused) {
  for (const char* json : {"", "[]", "{", "{}x", R"({"inputs":[],"inputs":[]})", R"({"more":1})",
                           R"({"parameters":{"priority":1}})", R"({"id":1})"}) {
    EXPECT_EQ(Infer(json), "refused") << json;
  }
  EXPECT_EQ(Infer("{}", "x"), "refused");
  EXPECT_EQ(Infer(R"({"id":")" + std::string(129, 'x') + R"("})"), "refused");
}

TEST(PredictBodyTest, RowsAreRead) {
  const std::string bytes =
      Predict(R"({"weights":{"tags":[[0.5],[]]},"id":"r","dense":{"price":[[1.5],[null]]},)"
              R"("sparse":{"user":[[7],8],"genres":[["a","b"],[]],"tags":[3,[]]},)"
              R"("context":{"dense":{"context":[[1,2,3]]},"sparse":{"item":[[4,5]]}}})");
  PredictFields fields;
  RawRequest raw;
  ASSERT_TRUE(ReadPredictRequest(bytes, kMaxInputsKept, &fields, &raw)) << bytes;
  EXPECT_EQ(fields.model, "m");
  EXPECT_EQ(fields.version, "v");
  EXPECT_EQ(fields.request_id, "r");
  EXPECT_EQ(raw.num_rows, 2);
  EXPECT_EQ(raw.dense.at(0).values.substr(0, 4), Floats({1.5}));
  ASSERT_EQ(raw.sparse.size(), 3U);
  EXPECT_EQ(raw.sparse[0].lengths, Int32({1, 1}));
  EXPECT_EQ(raw.sparse[0].values, Int64({7, 8}));
  EXPECT_EQ(TextsOf(raw.sparse[1]), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(raw.sparse[2].weights, Floats({0.5}));
  EXPECT_EQ(raw.context_dense.at(0).values, Floats({1, 2, 3}));
  EXPECT_EQ(raw.context_sparse.at(0).values, Int64({4, 5}));
}

TEST(PredictBodyTest, BodiesWithErrorsAreRefused) {
  for (const char* json : {"{}",
                           R"({"dense":{}})",
                           R"({"dense":{"other":[[1]]}})",
                           R"({"sparse":{"other":[[1]]}})",
                           R"({"dense":{"price":[[1],[1,2]]}})",
                           R"({"dense":{"price":[1,[2]]}})",
                           R"({"dense":{"context":[1,2,3]}})",
                           R"({"dense":{"price":[{"price":1}]}})",
                           R"({"dense":{"price":[1,2]},"sparse":{"user":[1]}})",
                           R"({"sparse":{"user":[[1.0]]}})",
                           R"({"sparse":{"user":[[1,"a"]]}})",
                           R"({"sparse":{"user":[["a",1]]}})",
                           R"({"sparse":{"user":[null]}})",
                           R"({"sparse":{"user":[1],"user":[1]}})",
                           R"({"dense":{"price":[1]},"dense":{}})",
                           R"({"sparse":{"user":[[1,2,3,4,5,6,7]]}})",
                           R"({"sparse":{"user":[1,2,3,4,5]}})",
                           R"({"sparse":{"tags":[1]},"weights":{"tags":[[1,2]]}})",
                           R"({"sparse":{"tags":[1]},"weights":{"user":[1]}})",
                           R"({"dense":{"price":[true]}})",
                           R"({"dense":{"price":[1]},"context":{}})",
                           R"({"dense":{"price":[1]},"more":1})",
                           R"({"context":{"dense":{"price":[1]}}})",
                           R"({"dense":{"price":[1]},"priority":1})"}) {
    EXPECT_EQ(Predict(json), "refused") << json;
  }
}

}  // namespace
}  // namespace recsys
