#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rest/json/answers.h"
#include "rest/json/infer_body.h"
#include "rest/json/predict_body.h"
#include "rest/json/rows_body.h"
#include "tests/wire/messages.h"
#include "wire/infer/infer_request.h"
#include "wire/predict_messages.h"

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

/// Texts of user are hashed, price may be missing and has a second number, context has no names.
Signature RowSignature() {
  Signature signature = SmallSignature();
  signature.dense[1] = {"price", 2, true, {"price", "age"}};
  signature.sparse[0].strings = "xxh64";
  return signature;
}

std::string InRows(const std::string& json, const Signature& signature = RowSignature()) {
  std::string message;
  return ReadRowsBody({"m", "v"}, json, signature, kLimits, &message) ? message : "refused";
}

/// A row of RowSignature, with other fields before and after those that are given.
std::string RowOf(const std::string& fields, const std::string& user = R"("u")") {
  return R"({"context":[1,2,3],"user":)" + user + R"(,"genres":[],"item":4,)" + fields + "}";
}

const char kRest[] = R"("tags":[],"tags.weights":[],"price":1,"age":2)";

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

TEST(RowsBodyTest, EachFieldIsReadInEachRow) {
  const std::string bytes = InRows(
      R"({"id":"r","signature_name":"serving_default","instances":[)"
      R"({"user":["a",null,"",7,true],"genres":3,"item":["5"],"tags":[1],"tags.weights":[0.5],)"
      R"("price":1.5,"age":null,"context":[1,2,3],"label":"x","day":null},)"
      R"({"price":[2],"age":true,"context":[4,5,null],"user":null,"genres":[],"item":null,)"
      R"("tags":[],"tags.weights":null}]})",
      [] {
        Signature signature = RowSignature();
        signature.dense[0].missing = true;
        return signature;
      }());
  PredictFields fields;
  RawRequest raw;
  ASSERT_TRUE(ReadPredictRequest(bytes, kMaxInputsKept, &fields, &raw)) << bytes;
  EXPECT_EQ(fields.model, "m");
  EXPECT_EQ(fields.version, "v");
  EXPECT_EQ(fields.request_id, "r");
  EXPECT_EQ(raw.num_rows, 2);
  ASSERT_EQ(raw.dense.size(), 2U);
  EXPECT_EQ(raw.dense[0].values.substr(0, 20), Floats({1, 2, 3, 4, 5}));
  EXPECT_EQ(raw.dense[1].values.substr(0, 4), Floats({1.5}));
  EXPECT_EQ(raw.dense[1].values.substr(8), Floats({2, 1}));
  ASSERT_EQ(raw.sparse.size(), 4U);
  EXPECT_EQ(raw.sparse[0].lengths, Int32({3, 0}));
  EXPECT_EQ(TextsOf(raw.sparse[0]), (std::vector<std::string>{"a", "7", "true"}));
  EXPECT_EQ(raw.sparse[1].values, Int64({3}));
  EXPECT_EQ(raw.sparse[2].values, Int64({5}));
  EXPECT_EQ(raw.sparse[2].lengths, Int32({1, 0}));
  EXPECT_EQ(raw.sparse[3].values, Int64({1}));
  EXPECT_EQ(raw.sparse[3].weights, Floats({0.5}));
}

TEST(RowsBodyTest, OtherBodiesAreRefused) {
  const std::string good = RowOf(kRest);
  ASSERT_NE(InRows(R"({"instances":[)" + good + "]}"), "refused");
  ASSERT_NE(InRows(R"({"dataframe_records":[)" + good + "]}"), "refused");
  for (const std::string& row :
       {std::string("{}"), std::string("3"), std::string("[]"), RowOf(R"("price":1,"age":2)"),
        RowOf(std::string(kRest) + R"(,"price":1)"), RowOf(std::string(kRest) + R"(,"more":[1])"),
        RowOf(std::string(kRest) + R"(,"more":1,"more":2)"), RowOf(kRest, "1.5"),
        RowOf(kRest, "[[1]]"), RowOf(kRest, "{}"), RowOf(kRest, R"(["u"}])"),
        RowOf(R"("tags":[],"tags.weights":[],"price":"1","age":2)"),
        RowOf(R"("tags":[],"tags.weights":[],"price":[1,2],"age":2)"),
        RowOf(R"("tags":[1],"tags.weights":[],"price":1,"age":2)"),
        RowOf(R"("tags":["x"],"tags.weights":[1],"price":1,"age":2)"),
        RowOf(R"("tags":[1.0],"tags.weights":[1],"price":1,"age":2)"),
        RowOf(R"("tags":[1,2,3,4,5,6,7],"tags.weights":[1,1,1,1,1,1,1],"price":1,"age":2)")}) {
    EXPECT_EQ(InRows(R"({"instances":[)" + row + "]}"), "refused") << row;
    EXPECT_EQ(InRows(R"({"instances":[)" + good + "," + row + "]}"), "refused") << row;
  }
  const std::string rows = R"("instances":[)" + good + "]";
  for (const std::string& json :
       {std::string("{}"), std::string(R"({"instances":[]})"), std::string(R"({"instances":{}})"),
        "{" + rows + R"(,"context":{}})", "{" + rows + R"(,"priority":1})", "{" + rows + "}x",
        "{" + rows + "," + rows + "}", "{" + rows + R"(,"signature_name":"x"})",
        R"({"instances":[)" + good + "," + good + "," + good + "," + good + "," + good + "]}"}) {
    EXPECT_EQ(InRows(json), "refused") << json;
  }
  Signature signature = RowSignature();
  signature.outputs[0].batch_dims = {};
  EXPECT_EQ(InRows("{" + rows + "}", signature), "refused");
  signature = RowSignature();
  signature.dense[1].columns = {"price[0]", "price[1]"};
  EXPECT_EQ(InRows("{" + rows + "}", signature), "refused");
}

TEST(RowsBodyTest, AnswersHaveAnEntryForEachRow) {
  const std::string scores = Floats({0.5, 1}), vectors = Floats({1, 2, 3, 4});
  const std::vector<Output> one = {{"score", {}}}, two = {{"score", {}}, {"vectors", {2}}};
  const std::vector<std::string_view> of_one = {scores}, of_two = {scores, vectors};
  const std::shared_ptr<const void> owner;
  EXPECT_EQ(WriteRowsBody(one, {2, of_one, owner}).data, R"({"predictions":[0.5,1.0]})");
  EXPECT_EQ(WriteRowsBody(two, {2, of_two, owner}).data,
            R"({"predictions":[{"score":0.5,"vectors":[1.0,2.0]},)"
            R"({"score":1.0,"vectors":[3.0,4.0]}]})");
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
