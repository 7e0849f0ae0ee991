#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "recsys/error.h"
#include "server/core/hosted.h"
#include "server/http/rest_server.h"
#include "tests/http/client.h"

namespace recsys {
namespace {

using Json = nlohmann::json;
using namespace std::string_literals;

/// "score" is the sum of a row's two numbers of "price", and of its IDs; "both" has it twice.
class SumModel : public ServedModel {
 public:
  SumModel() {
    signature_.dense = {{"price", 2}};
    signature_.sparse = {{"user", {{"users", 50, IdPolicy::kReject}}, "sum", false}};
    signature_.outputs = {{"score", {}}, {"both", {2}}};
  }
  const Signature& signature() const override { return signature_; }
  std::string target_name() const override { return "cpu"; }
  Delta PrepareDelta(const std::string& /*path*/) override { return {}; }

  Outputs Predict(const Batch& batch) override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      ++num_started_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return is_open_; });
    }
    if (fails) throw std::runtime_error("secret");
    auto values = std::make_shared<std::vector<float>>();
    const auto num_rows = static_cast<std::size_t>(batch.num_rows);
    std::size_t id = 0;
    for (std::size_t row = 0; row < num_rows; ++row) {
      float sum = batch.dense[0].data()[2 * row] + batch.dense[0].data()[2 * row + 1];
      for (std::int64_t i = 0; i < batch.sparse.lengths.data()[row]; ++i) {
        sum += static_cast<float>(batch.sparse.values.data()[id++]);
      }
      values->push_back(sum);
    }
    for (std::size_t row = 0; row < num_rows; ++row) {
      values->push_back((*values)[row]);
      values->push_back((*values)[row]);
    }
    Outputs outputs;
    outputs.values = {Span<const float>(values->data(), num_rows),
                      Span<const float>(values->data() + num_rows, 2 * num_rows)};
    outputs.owner = values;
    return outputs;
  }

  void SetOpen(bool is_open) {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = is_open;
    num_started_ = 0;
    changed_.notify_all();
  }
  void WaitUntilStarted() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return num_started_ > 0; });
  }
  std::atomic<bool> fails{false};

 private:
  Signature signature_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
  int num_started_ = 0;
};

class OneModel : public Router {
 public:
  Route Find(std::string_view model, std::string_view version, double /*draw*/) const override {
    if ((!model.empty() && model != "small") || (!version.empty() && version != "1")) {
      throw Error(ErrorKind::kModelNotFound, "model: got another");
    }
    if (!is_ready) throw Error(ErrorKind::kNotReady, "not ready yet");
    return {hosted, nullptr};
  }
  std::shared_ptr<Hosted> hosted;
  bool is_ready = true;
};

/// A server of one model, with a client.
class Rest : public testing::Test {
 protected:
  void Start(RestOptions options = {}) {
    auto model = std::make_unique<SumModel>();
    model_ = model.get();
    OpenedModel opened;
    opened.model = std::move(model);
    opened.info.name = "small";
    opened.info.version = "1";
    ModelSettings settings;
    settings.limits.max_request_rows = 8;
    settings.limits.max_batch_rows = 8;
    settings.limits.max_queue_rows = 8;
    settings.limits.max_queue_bytes = max_queue_bytes_;
    router_.hosted =
        std::make_shared<Hosted>(std::move(opened), settings, metrics_,
                                 [this](Request& request, const Status& status, Message answer) {
                                   gateway_.End(request, status, std::move(answer));
                                 });
    router_.hosted->Open();
    ModelsView models;
    models.is_ready = [this] { return router_.is_ready; };
    models.statuses = [] {
      ModelStatus status;
      status.model = "small";
      status.serving = "1";
      status.versions.push_back({"1", ModelState::kReady, "", false, "", {}, 0});
      return std::vector<ModelStatus>{status};
    };
    server_ = std::make_unique<RestServer>(gateway_, models, options);
  }
  ~Rest() override {
    if (model_ != nullptr) model_->SetOpen(true);
    if (server_) server_->Close();
    if (router_.hosted) router_.hosted->Close();
  }

  Reply Ask(const std::string& data) { return Client(server_->port()).Ask(data); }
  /// The error's text; the status must be this.
  std::string ErrorOf(int status, const std::string& data) {
    const Reply reply = Ask(data);
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_TRUE(reply.Has("Content-Type: application/json"));
    return Json::parse(reply.body).at("error");
  }
  std::int64_t max_queue_bytes_ = 1 << 20;
  std::int64_t Count(const char* outcome) { return metrics_.Outcomes().at(outcome); }

  Metrics metrics_;
  OneModel router_;
  Gateway gateway_{router_, metrics_, {}};
  SumModel* model_ = nullptr;
  std::unique_ptr<RestServer> server_;
};

constexpr char kInfer[] = "/v2/models/small/infer";
constexpr char kPredict[] = "/v1/models/small:predict";

Json TensorBody() {
  return {{"inputs",
           {{{"name", "price"}, {"datatype", "FP32"}, {"shape", {2, 2}}, {"data", {1, 2, 0.5, 4}}},
            {{"name", "user.values"}, {"datatype", "INT64"}, {"shape", {3}}, {"data", {7, 8, 9}}},
            {{"name", "user.lengths"}, {"datatype", "INT32"}, {"shape", {2}}, {"data", {1, 2}}}}}};
}

Json PlainBody() {
  return {{"dense", {{"price", {{1, 2}, {0.5, 4}}}}}, {"sparse", {{"user", {7, {8, 9}}}}}};
}

TEST_F(Rest, AnswersTensors) {
  Start();
  Json body = TensorBody();
  body["id"] = "mine";
  const Reply reply = Ask(Post(kInfer, body.dump()));
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.Has("Content-Type: application/json"));
  EXPECT_EQ(reply.body,
            "{\"model_name\":\"small\",\"model_version\":\"1\",\"id\":\"mine\",\"outputs\":["
            "{\"name\":\"score\",\"datatype\":\"FP32\",\"shape\":[2],\"data\":[10.0,21.5]},"
            "{\"name\":\"both\",\"datatype\":\"FP32\",\"shape\":[2,2],"
            "\"data\":[10.0,10.0,21.5,21.5]}]}");
}

TEST_F(Rest, AnswersPlainJson) {
  Start();
  for (const char* const path :
       {kPredict, "/v1/models/small/versions/1:predict?timeout_ms=60000"}) {
    const Reply reply = Ask(Post(path, PlainBody().dump()));
    EXPECT_EQ(reply.body,
              "{\"model\":\"small\",\"version\":\"1\",\"outputs\":{\"score\":[10.0,21.5],"
              "\"both\":[[10.0,10.0],[21.5,21.5]]}}");
  }
  EXPECT_EQ(Count("ok"), 2);
  EXPECT_EQ(Ask(Post(kPredict, R"({"dense":{"price":[]},"sparse":{"user":[]}})")).body,
            "{\"model\":\"small\",\"version\":\"1\",\"outputs\":{\"score\":[],\"both\":[]}}");
}

TEST_F(Rest, TakesAndGivesBinaryTensors) {
  Start();
  Json body = TensorBody();
  body["inputs"][0].erase("data");
  body["inputs"][0]["parameters"] = {{"binary_data_size", 16}};
  body["parameters"] = {{"binary_data_output", true}};
  body["outputs"] = {{{"name", "both"}},
                     {{"name", "score"}, {"parameters", {{"binary_data", false}}}}};
  const float price[] = {1.0F, 2.0F, 0.5F, 4.0F};
  const std::string text = body.dump();
  std::string data(reinterpret_cast<const char*>(price), sizeof(price));
  const std::string header =
      "Inference-Header-Content-Length: " + std::to_string(text.size()) + "\r\n";
  const Reply reply = Ask(Post(kInfer, text + data, header));
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_TRUE(reply.Has("Content-Type: application/octet-stream"));
  const std::size_t size = reply.body.size() - 16;
  EXPECT_TRUE(reply.Has("Inference-Header-Content-Length: " + std::to_string(size)));
  const Json answer = Json::parse(reply.body.substr(0, size));
  EXPECT_EQ(answer["outputs"][0]["parameters"]["binary_data_size"], 16);
  EXPECT_EQ(answer["outputs"][1]["data"], Json({10.0, 21.5}));
  float both[4];
  std::memcpy(both, reply.body.data() + size, sizeof(both));
  EXPECT_EQ(both[3], 21.5F);
  EXPECT_EQ(ErrorOf(400, Post(kInfer, text + data + "x", header)),
            "body: got 17 bytes after the JSON, expected 16, as the inputs say");
  EXPECT_EQ(ErrorOf(400, Post(kInfer, text, "Inference-Header-Content-Length: 99999\r\n"))
                .rfind("Inference-Header-Content-Length: got 99999, expected 0 to ", 0),
            0U);
}

TEST_F(Rest, TellsOfItselfAndItsModels) {
  Start();
  EXPECT_EQ(Ask(Get("/v2/health/live")).body, "{\"live\":true}");
  EXPECT_EQ(Ask(Get("/v2/health/ready")).body, "{\"ready\":true}");
  EXPECT_EQ(Json::parse(Ask(Get("/v2")).body)["name"], "recsys-serving");
  EXPECT_EQ(Ask(Get("/v2/models/small/ready")).body, "{\"name\":\"small\",\"ready\":true}");
  const Json metadata = Json::parse(Ask(Get("/v2/models/small")).body);
  EXPECT_EQ(metadata["versions"], Json({"1"}));
  EXPECT_EQ(metadata["inputs"][0],
            Json({{"name", "price"}, {"datatype", "FP32"}, {"shape", {-1, 2}}}));
  EXPECT_EQ(Json::parse(Ask(Get("/v2/models/small/config")).body)["max_batch_size"], 0);
  const Json index = Json::parse(Ask(Post("/v2/repository/index", "{\"ready\":true}")).body);
  EXPECT_EQ(index[0]["state"], "READY");
  EXPECT_EQ(Ask(Post("/v2/repository/index", "")).status, 200);
  Ask(Post(kPredict, PlainBody().dump()));
  const Json stats = Json::parse(Ask(Get("/v2/models/stats")).body);
  EXPECT_EQ(stats["model_stats"][0]["inference_stats"]["success"]["count"], 1);
  router_.is_ready = false;
  EXPECT_EQ(Ask(Get("/v2/health/ready")).status, 503);
  const Reply reply = Ask(Get("/v2/models/small/ready"));
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.body, "{\"name\":\"small\",\"ready\":false}");
}

TEST_F(Rest, GivesOtherAddressesAndMethodsErrorsInJson) {
  Start();
  EXPECT_EQ(ErrorOf(404, Get("/x%20y")), "GET /x y: Not Found");
  EXPECT_EQ(ErrorOf(405, Get(kInfer)), "GET /v2/models/small/infer: Method Not Allowed");
  EXPECT_TRUE(Ask(Get(kInfer)).Has("Allow: POST"));
  EXPECT_EQ(ErrorOf(405, Post("/v2", "")), "POST /v2: Method Not Allowed");
  EXPECT_EQ(ErrorOf(404, Get("/v2/models/%00")), "model: got another");
  EXPECT_EQ(ErrorOf(404, Post("/v1/models/other:predict", "{}")), "model: got another");
  EXPECT_EQ(Count("not_found"), 1);
}

TEST_F(Rest, RefusesWrongBodiesByFieldGotAndExpected) {
  Start();
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"densee":{}})", "body: got an unknown entry 'densee', expected dense, sparse"},
      {R"({"context":{"user":[]}})", "context: got an unknown entry 'user', expected dense"},
      {R"({"dense":[1]})", "body['dense']: got a list, expected an object"},
      {R"({"dense":{"price":1.5}})", "dense['price']: got a number, expected a list"},
      {R"({"dense":{"x":[1]}})", "dense: got an unknown input 'x', expected 'price'"},
      {R"({"dense":{"price":[[1,2]]},"sparse":{"user":[1,2]}})",
       "sparse['user']: got 2 rows, expected 1, as many as dense['price'] has"},
      {R"({"dense":{"price":[[1,2],[3]]}})", "dense['price']: got lists of unequal lengths"},
      {R"({"sparse":{"user":["a"]}})", "sparse['user']: got a text, expected whole numbers alone"},
      {R"({"sparse":{"user":[[[1]]]}})", "sparse['user']: got a list, expected whole numbers"},
      {R"({"sparse":{"user":[1,1,1,1,1,1,1,1,1]}})", "num_rows: got 9, expected at most 8"},
      {R"({"sparse":{"user":[1]},"weights":{"user":[[1,2]]}})",
       "weights['user']: got [2] weights per row, expected one per ID: [1]"},
      {R"({"weights":{"x":[]}})", "weights: got 'x', expected only names of sparse inputs"},
      {R"({"context":{"dense":{"price":[[1,2]]},"sparse":{"user":[1]}}})",
       "context: got every input, expected at least one with a row for each candidate"},
      {R"({"context":{"num_rows":-1}})", "context['num_rows']: got -1, expected 0 or more"},
      {R"({"context":{"num_rows":"3"}})",
       "context['num_rows']: got a text, expected a whole number"},
      {R"({"priority":9})", "parameters['priority']: got 9, expected 0 (default)"},
      {R"({"priority":null})", "parameters['priority']: got NoneType"},
      {R"({"id":"\ud800"})", "id: got half a surrogate pair"},
      {"[1]", "body: got a list, expected an object"},
      {"{}", "dense: missing 'price'"},
  };
  for (const auto& [body, text] : cases) {
    const std::string error = ErrorOf(400, Post(kPredict, body));
    EXPECT_EQ(error.rfind(text, 0), 0U) << body << error;
  }
  EXPECT_EQ(Count("invalid"), static_cast<std::int64_t>(cases.size()));
}

TEST_F(Rest, RefusesWrongTensorsByFieldGotAndExpected) {
  Start();
  const auto error = [this](auto spoil) {
    Json body = TensorBody();
    spoil(body);
    return ErrorOf(400, Post(kInfer, body.dump()));
  };
  const auto expect = [&](auto spoil, const std::string& text) {
    const std::string got = error(spoil);
    EXPECT_EQ(got.rfind(text, 0), 0U) << got;
  };
  expect([](Json& b) { b["inputs"] = Json::object(); },
         "body['inputs']: got an object, expected a list");
  expect([](Json& b) { b["inputs"].push_back(3); },
         "inputs[3]: got a whole number, expected an object");
  expect([](Json& b) { b.erase("inputs"); }, "inputs: missing 'price'");
  expect([](Json& b) { b["inputs"][0]["name"] = 4; },
         "inputs[0]['name']: got a whole number, expected a text");
  expect(
      [](Json& b) {
        b["inputs"][0]["shape"] = {"2", "3"};
      },
      "inputs[0]['shape']: expected whole numbers of at most 64 bits");
  expect([](Json& b) { b["inputs"][0]["shape"] = {true, 3}; }, "inputs[0]['shape']: expected");
  expect(
      [](Json& b) {
        b["inputs"][0]["shape"] = {-2, -2};
      },
      "inputs['price'].shape: got [-2, -2]");
  expect([](Json& b) { b["inputs"][0].erase("data"); },
         "inputs['price']: got 0 bytes, expected 16 (FP32 [2, 2])");
  expect(
      [](Json& b) {
        b["inputs"][0]["data"] = {{1, 2, 3, 4}};
      },
      "inputs['price'].data: got lists of shape [1, 4], expected [2, 2], or one flat list");
  expect(
      [](Json& b) {
        b["inputs"][0]["data"] = {true, 1, 1, 1};
      },
      "inputs['price'].data: got true or false, expected numbers alone");
  expect(
      [](Json& b) {
        b["inputs"][1]["data"] = {1.0, 2, 3};
      },
      "inputs['user.values'].data: got a number, expected whole numbers alone");
  expect(
      [](Json& b) {
        b["inputs"][2]["data"] = {1LL << 31, 0};
      },
      "inputs['user.lengths'].data: got a number beyond the range of int32");
  expect([](Json& b) { b["inputs"][0]["datatype"] = "BOOL"; },
         "inputs['price'].datatype: got 'BOOL', expected FP32");
  expect(
      [](Json& b) {
        b["inputs"][0]["parameters"] = {{"binary_data_size", 24}};
      },
      "inputs[0].parameters['binary_data_size']: got 24, expected 0 to 0 (bytes left)");
  expect(
      [](Json& b) {
        b["outputs"] = {{{"name", "x"}}};
      },
      "outputs: got an unknown output 'x', expected 'score', 'both'");
  expect(
      [](Json& b) {
        b["outputs"] = {{{"name", "score"}}, {{"name", "score"}}};
      },
      "outputs: got an output more than once");
  expect([](Json& b) { b["outputs"] = {"score"}; }, "outputs[0]: got a text, expected an object");
  expect([](Json& b) { b["parameters"] = {{"priority", "1"}}; }, "parameters['priority']: got '1'");
  expect(
      [](Json& b) {
        b["parameters"] = {{"timeout", Json::array()}};
      },
      "parameters['timeout']: got list");
  expect([](Json& b) { b["id"] = std::string(129, 'x'); },
         "id: got 129 bytes, expected at most 128");
  expect([](Json& b) { b["inputs"][1]["data"] = {50, 8, 9}; }, "sparse['user'].values: got ID 50");
}

TEST_F(Rest, RefusesWhatIsTooLargeAndCountsIt) {
  RestOptions options;
  options.connections.max_message_bytes = 1 << 16;
  options.connections.max_json_bytes = 1 << 14;
  Start(options);
  EXPECT_EQ(ErrorOf(413, Post(kPredict, std::string(70'000, ' ')))
                .rfind("body: got more bytes than one request may have (", 0),
            0U);
  EXPECT_EQ(ErrorOf(413, Post(kInfer, std::string((1 << 14) + 1, ' ')))
                .rfind("body: got 16385 bytes of JSON, expected at most 16384", 0),
            0U);
  EXPECT_EQ(Count("invalid"), 2);
  EXPECT_EQ(Ask(Post("/v2/x", std::string(70'000, ' '))).status, 404);
  EXPECT_EQ(Count("invalid"), 2);
}

TEST_F(Rest, KnowsOtherEncodingsByName) {
  Start();
  const std::string error =
      ErrorOf(415, Post(kPredict, "{}", "Content-Encoding: " + std::string(100, 'x') + "\r\n"));
  EXPECT_EQ(error, "POST /v1/models/small:predict: Content-Encoding: got '" + std::string(64, 'x') +
                       "', expected none, or one of gzip, deflate");
  EXPECT_EQ(Count("invalid"), 1);
  EXPECT_EQ(ErrorOf(400, Post(kPredict, "{}", "Content-Encoding: GZIP\r\n")),
            "body: got 2 bytes that are neither gzip nor deflate");
}

TEST_F(Rest, GivesUpARequestWhoseClientHangsUp) {
  Start();
  model_->SetOpen(false);
  {
    Client client(server_->port());
    client.Send(Post(kPredict, PlainBody().dump()));
    model_->WaitUntilStarted();
  }
  while (Count("cancelled") == 0) std::this_thread::yield();
  model_->SetOpen(true);
  EXPECT_EQ(Ask(Post(kPredict, PlainBody().dump())).status, 200);
}

TEST_F(Rest, AnswersADeadlineThatPassesAlsoWhereItIsComputed) {
  Start();
  model_->SetOpen(false);
  EXPECT_EQ(ErrorOf(504, Post(kPredict + "?timeout_ms=30"s, PlainBody().dump())),
            "the deadline passed before the answer was there");
  EXPECT_EQ(Count("expired"), 1);
  EXPECT_EQ(ErrorOf(400, Post(kPredict + "?timeout_ms=soon"s, "{}")),
            "timeout_ms: got 'soon', expected a whole number");
}

TEST_F(Rest, BoundsTheQueueByTheMemoryOfJsonAndNotByItsText) {
  max_queue_bytes_ = 64 << 10;
  Start();
  Json body = TensorBody();
  EXPECT_EQ(Ask(Post(kInfer, body.dump())).status, 200);
  // Of no use to anybody, and kept until the request is answered.
  body["other"] = std::vector<int>(4000);
  EXPECT_EQ(ErrorOf(400, Post(kInfer, body.dump())).rfind("message: got ", 0), 0U);
  body["other"] = std::string(8000, ' ');
  EXPECT_EQ(Ask(Post(kInfer, body.dump())).status, 200);
}

TEST_F(Rest, SaysWhenToComeBackToAFullQueue) {
  Start();
  model_->SetOpen(false);
  const std::string full =
      Post(kPredict, R"({"dense":{"price":[[1,1],[1,1],[1,1],[1,1],[1,1],[1,1],[1,1],[1,1]]},)"
                     R"("sparse":{"user":[1,1,1,1,1,1,1,1]}})");
  Client first(server_->port());
  first.Send(full);
  model_->WaitUntilStarted();
  Client second(server_->port());
  second.Send(full);
  while (metrics_.Outcomes().at("accepted") < 2) std::this_thread::yield();
  const Reply reply = Ask(full);
  EXPECT_EQ(reply.status, 429) << reply.body;
  EXPECT_NE(reply.head.find("Retry-After: "), reply.head.npos);
  EXPECT_NE(reply.body.find("queue"), reply.body.npos);
  model_->SetOpen(true);
  EXPECT_EQ(first.Receive().status, 200);
  EXPECT_EQ(second.Receive().status, 200);
}

TEST_F(Rest, SaysNothingOfAModelThatFails) {
  Start();
  model_->fails = true;
  const Reply reply = Ask(Post(kPredict, PlainBody().dump()));
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(reply.body.find("secret"), reply.body.npos);
}

TEST_F(Rest, SendsClientsAwayWhileItDrainsAndAnswersWhatRuns) {
  Start();
  model_->SetOpen(false);
  Client running(server_->port());
  running.Send(Post(kPredict, PlainBody().dump()));
  model_->WaitUntilStarted();
  gateway_.Drain();
  const Reply refused = Ask(Get("/v2/health/ready"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.Has("Connection: close"));
  EXPECT_NE(refused.body.find("the server is stopping"), refused.body.npos);
  EXPECT_EQ(Ask(Get("/v2/health/live")).status, 200);
  model_->SetOpen(true);
  const Reply answered = running.Receive();
  EXPECT_EQ(answered.status, 200);
  EXPECT_TRUE(answered.Has("Connection: close"));
}

TEST_F(Rest, DoesNotWaitForABodyForever) {
  RestOptions options;
  options.body_timeout_s = 0.02;
  Start(options);
  const std::string head =
      "POST "s + kPredict + " HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n{";
  EXPECT_EQ(ErrorOf(408, head),
            "POST /v1/models/small:predict: the body was not there after 0.02 s");
  EXPECT_EQ(Count("expired"), 1);
}

TEST_F(Rest, SaysThatItsPortIsTaken) {
  Start();
  RestOptions options;
  options.port = server_->port();
  try {
    RestServer other(gateway_, {}, options);
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.what(), "cannot serve HTTP on port " + std::to_string(options.port) +
                                ": Address already in use");
  }
}

}  // namespace
}  // namespace recsys
