#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/client/fake_server.h"

namespace recsys {
namespace {

TEST(ClientResponse, AnOutputOfATemporaryIsACopy) {
  using Temporary = decltype(std::declval<ClientResponse&&>().output(""));
  using Held = decltype(std::declval<const ClientResponse&>().output(""));
  static_assert(std::is_same_v<Temporary, ClientOutput>, "it would dangle");
  static_assert(std::is_same_v<Held, const ClientOutput&>, "it would be copied");
  const auto answer = [] {
    ClientResponse response;
    response.outputs.push_back({"score", {2}, {0.25F, 0.5F}});
    return response;
  };
  std::vector<float> read;
  for (const float score : answer().output("score").values) read.push_back(score);
  EXPECT_EQ(read, (std::vector<float>{0.25F, 0.5F}));
}

ClientError ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const ClientError& error) {
    return error;
  }
  ADD_FAILURE() << "the call did not fail";
  return ClientError(StatusCode::kOk, "");
}

/// Fails the first `num_failures` calls.
FakeService::OnPredict FailFirst(int num_failures, grpc::StatusCode code,
                                 const std::string& pushback = "") {
  auto left = std::make_shared<std::atomic<int>>(num_failures);
  return [=](grpc::ServerContext* context, const v1::PredictRequest& request,
             v1::PredictResponse* response) {
    if (left->fetch_sub(1) <= 0) return FakeService::Score(request, response);
    if (!pushback.empty()) context->AddTrailingMetadata("grpc-retry-pushback-ms", pushback);
    return grpc::Status(code, "not now");
  };
}

/// Waits until the client has gone.
grpc::Status Hang(grpc::ServerContext* context, const v1::PredictRequest&, v1::PredictResponse*) {
  while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return grpc::Status::CANCELLED;
}

ClientOptions Impatient() {
  ClientOptions options;
  options.retries.first_backoff_s = 0.001;
  return options;
}

TEST(Client, Predicts) {
  FakeServer server;
  Client client(server.address());
  const ClientResponse response = client.Predict(RowsOf(3).SetRequestId("mine"));
  EXPECT_EQ(response.model, "fake");
  EXPECT_EQ(response.version, "1");
  EXPECT_EQ(response.num_attempts, 1);
  EXPECT_EQ(response.output("score").dims, (std::vector<std::int64_t>{3}));
  EXPECT_EQ(response.output("score").values, (std::vector<float>{0.5F, 1.5F, 2.5F}));
  EXPECT_THROW(response.output("other"), Error);
  ASSERT_EQ(server.service.requests().size(), 1U);
  EXPECT_EQ(server.service.requests()[0].request_id(), "mine");
}

TEST(Client, PredictsWithoutWaiting) {
  FakeServer server;
  Client client(server.address());
  std::future<ClientResponse> future = client.PredictFuture(RowsOf(1));
  std::promise<ClientResult> called;
  client.PredictAsync(RowsOf(2), [&](ClientResult result) { called.set_value(std::move(result)); });
  EXPECT_EQ(future.get().output("score").values.size(), 1U);
  ClientResult result = called.get_future().get();
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.Take().output("score").values.size(), 2U);
}

TEST(Client, FailsWithTheServersCodeAndText) {
  FakeServer server;
  server.service.on_predict = [](auto*, const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "dense: missing 'price'");
  };
  Client client(server.address());
  const ClientError error = ErrorOf([&] { client.Predict(RowsOf(1)); });
  EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(error.kind(), ErrorKind::kRequest);
  EXPECT_STREQ(error.what(), "INVALID_ARGUMENT: dense: missing 'price'");
  EXPECT_EQ(error.num_attempts(), 1);
  std::promise<ClientResult> called;
  client.PredictAsync(RowsOf(1), [&](ClientResult result) { called.set_value(std::move(result)); });
  EXPECT_EQ(called.get_future().get().error().message(), "dense: missing 'price'");
}

TEST(Client, TriesAServerThatIsUnavailableAgain) {
  FakeServer server;
  server.service.on_predict = FailFirst(2, grpc::StatusCode::UNAVAILABLE);
  Client client(server.address(), Impatient());
  const ClientResponse response = client.Predict(RowsOf(2));
  EXPECT_EQ(response.num_attempts, 3);
  const auto requests = server.service.requests();
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_EQ(requests[0].SerializeAsString(), requests[2].SerializeAsString());
}

TEST(Client, GivesUpAfterTheLastAttempt) {
  FakeServer server;
  server.service.on_predict = FailFirst(100, grpc::StatusCode::UNAVAILABLE);
  Client client(server.address(), Impatient());
  const ClientError error = ErrorOf([&] { client.Predict(RowsOf(1)); });
  EXPECT_EQ(error.code(), StatusCode::kUnavailable);
  EXPECT_EQ(error.num_attempts(), 3);
  EXPECT_EQ(server.service.requests().size(), 3U);
}

TEST(Client, WaitsAsLongAsAFullServerAsks) {
  FakeServer server;
  server.service.on_predict = FailFirst(1, grpc::StatusCode::RESOURCE_EXHAUSTED, "150");
  Client client(server.address(), Impatient());
  const double start_s = MonotonicSeconds();
  EXPECT_EQ(client.Predict(RowsOf(1)).num_attempts, 2);
  EXPECT_GE(MonotonicSeconds() - start_s, 0.15);
}

TEST(Client, DoesNotWaitBeyondItsDeadline) {
  FakeServer server;
  server.service.on_predict = FailFirst(1, grpc::StatusCode::RESOURCE_EXHAUSTED, "60000");
  Client client(server.address());
  const double start_s = MonotonicSeconds();
  const ClientError error = ErrorOf([&] { client.Predict(RowsOf(1), {5.0, nullptr}); });
  EXPECT_EQ(error.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(error.kind(), ErrorKind::kQueueFull);
  EXPECT_EQ(error.retry_after_ms(), 60'000);
  EXPECT_LT(MonotonicSeconds() - start_s, 5.0);
}

TEST(Client, SpendsNoMoreRetriesThanItsBudget) {
  FakeServer server;
  server.service.on_predict = FailFirst(1000, grpc::StatusCode::UNAVAILABLE);
  ClientOptions options = Impatient();
  options.retries.budget_burst = 2;
  options.retries.budget_share = 0.1;
  Client client(server.address(), options);
  for (int call = 0; call < 20; ++call) ErrorOf([&] { client.Predict(RowsOf(1)); });
  EXPECT_EQ(server.service.requests().size(), 20U + 2U + 2U);
}

TEST(Client, EndsAtItsDeadline) {
  FakeServer server;
  server.service.on_predict = Hang;
  ClientOptions options;
  options.timeout_s = 0.05;
  Client client(server.address(), options);
  const ClientError error = ErrorOf([&] { client.Predict(RowsOf(1)); });
  EXPECT_EQ(error.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(error.kind(), ErrorKind::kDeadlineExpired);
  EXPECT_EQ(error.num_attempts(), 1);
}

TEST(Client, CancelsWhatIsUnderWay) {
  FakeServer server;
  server.service.on_predict = Hang;
  Client client(server.address());
  const auto cancellation = std::make_shared<Cancellation>();
  std::vector<std::future<ClientResponse>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(client.PredictFuture(RowsOf(1), {std::nullopt, cancellation}));
  }
  cancellation->Cancel();
  for (auto& call : calls) {
    const ClientError error = ErrorOf([&] { call.get(); });
    EXPECT_EQ(error.code(), StatusCode::kCancelled);
    EXPECT_EQ(error.message(), "cancelled by the caller");
  }
}

TEST(Client, CancelsWhatWaitsForItsNextAttempt) {
  FakeServer server;
  server.service.on_predict = FailFirst(100, grpc::StatusCode::UNAVAILABLE, "5000");
  Client client(server.address());
  const auto cancellation = std::make_shared<Cancellation>();
  auto call = client.PredictFuture(RowsOf(1), {std::nullopt, cancellation});
  while (server.service.requests().empty()) std::this_thread::yield();
  // Whether it waits already or is about to: it must not take the five seconds.
  const double start_s = MonotonicSeconds();
  cancellation->Cancel();
  EXPECT_EQ(ErrorOf([&] { call.get(); }).code(), StatusCode::kCancelled);
  EXPECT_LT(MonotonicSeconds() - start_s, 4);
}

TEST(Client, BeginsNothingThatWasCancelled) {
  FakeServer server;
  server.service.on_predict = Hang;
  Client client(server.address());
  const auto cancellation = std::make_shared<Cancellation>();
  cancellation->Cancel();
  EXPECT_EQ(ErrorOf([&] {
              client.Predict(RowsOf(1), {std::nullopt, cancellation});
            }).code(),
            StatusCode::kCancelled);
}

TEST(Client, ItsEndCancelsItsCallsAndWaitsForTheirCallbacks) {
  FakeServer server;
  server.service.on_predict = Hang;
  std::atomic<int> num_called{0};
  {
    Client client(server.address());
    for (int i = 0; i < 8; ++i) {
      client.PredictAsync(RowsOf(1), [&](const ClientResult& result) {
        EXPECT_EQ(result.error().code(), StatusCode::kCancelled);
        ++num_called;
      });
    }
  }
  EXPECT_EQ(num_called, 8);
}

TEST(Client, SaysThatNobodyListens) {
  std::string address;
  {
    FakeServer server;
    address = server.address();
  }
  Client client(address, Impatient());
  const ClientError error = ErrorOf([&] { client.Metadata(); });
  EXPECT_EQ(error.code(), StatusCode::kUnavailable);
  EXPECT_EQ(error.kind(), ErrorKind::kNotReady);
  EXPECT_EQ(error.num_attempts(), 3);
}

TEST(Client, IsUsedByManyThreadsOverManyConnections) {
  FakeServer server;
  ClientOptions options;
  options.num_connections = 4;
  options.num_threads = 2;
  Client client(server.address(), options);
  std::vector<std::thread> threads;
  std::atomic<int> num_right{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 50; ++i) {
        const auto rows = static_cast<std::size_t>(1 + (thread + i) % 5);
        const auto response = client.Predict(RowsOf(static_cast<std::int64_t>(rows)));
        if (response.output("score").values.size() == rows) ++num_right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_right, 200);
  const auto peers = server.service.peers();
  EXPECT_EQ(std::set<std::string>(peers.begin(), peers.end()).size(), 4U);
}

TEST(Client, TrustsNoAnswer) {
  struct Case {
    const char* name;
    std::vector<std::int64_t> dims;
    std::string values;
  };
  const std::vector<Case> cases{
      {"too few", {2}, std::string(4, 'x')},
      {"half a number", {1}, std::string(5, 'x')},
      {"negative", {-1}, std::string(4, 'x')},
      {"a product beyond 64 bits", {std::int64_t{1} << 32, std::int64_t{1} << 32}, ""},
      {"too many", {}, std::string(8, 'x')}};
  for (const Case& wrong : cases) {
    FakeServer server;
    server.service.on_predict = [&](auto*, const auto&, v1::PredictResponse* response) {
      auto* output = response->add_outputs();
      output->set_name("score");
      for (const std::int64_t dim : wrong.dims) output->add_dims(dim);
      output->set_values(wrong.values);
      return grpc::Status::OK;
    };
    Client client(server.address());
    const ClientError error = ErrorOf([&] { client.Predict(RowsOf(1)); });
    EXPECT_EQ(error.code(), StatusCode::kInternal) << wrong.name;
    EXPECT_EQ(error.message(), "output 'score': its bytes do not fit its shape") << wrong.name;
  }
}

TEST(Client, ReadsIntegers) {
  FakeServer server;
  std::vector<std::int64_t> sent{(std::int64_t{1} << 62) + 1, -1};
  std::int64_t num_bytes = 16;
  server.service.on_predict = [&](auto*, const auto&, v1::PredictResponse* response) {
    auto* output = response->add_outputs();
    output->set_name("ids");
    output->add_dims(num_bytes == 0 ? 0 : 2);
    output->set_int64_values(sent.data(), static_cast<std::size_t>(num_bytes));
    return grpc::Status::OK;
  };
  Client client(server.address());
  const ClientOutput ids = client.Predict(RowsOf(1)).output("ids");
  EXPECT_EQ(ids.type, OutputType::kInt64);
  EXPECT_EQ(ids.integers, sent);
  EXPECT_TRUE(ids.values.empty());
  num_bytes = 0;
  EXPECT_EQ(client.Predict(RowsOf(1)).output("ids").type, OutputType::kInt64);
  num_bytes = 12;
  EXPECT_EQ(ErrorOf([&] { client.Predict(RowsOf(1)); }).message(),
            "output 'ids': its bytes do not fit its shape");
}

TEST(Client, ReadsTheModelsMetadata) {
  FakeServer server;
  v1::ModelMetadata& metadata = server.service.metadata;
  metadata.set_model("fake");
  auto* dense = metadata.add_dense();
  dense->set_name("price");
  dense->set_width(3);
  dense->set_missing(true);
  for (const char* name : {"low", "mean", "high"}) dense->add_columns(name);
  auto* user = metadata.add_sparse();
  user->set_name("user");
  user->set_pooling(v1::POOLING_MEAN);
  user->set_weighted(true);
  user->set_id_limit(50);
  auto* table = user->add_tables();
  table->set_name("users");
  table->set_num_embeddings(50);
  table->set_id_policy(v1::ID_POLICY_REJECT);
  auto* item = metadata.add_sparse();
  item->set_name("item");
  item->set_num_ids(3);
  item->set_max_ids(3);
  item->add_tables()->set_id_policy(v1::ID_POLICY_HASH);
  item->add_tables()->set_id_policy(v1::ID_POLICY_FMIX64);
  auto* output = metadata.add_outputs();
  output->set_name("vectors");
  output->add_shape(2);
  output = metadata.add_outputs();
  output->set_name("ids");
  output->set_dtype("int64");
  output->add_shape(4);
  output->add_dims(4);
  output->add_dims(-1);
  metadata.add_context("user");
  metadata.mutable_limits()->set_max_rows(10);
  metadata.mutable_artifact()->set_digest("abc");
  Client client(server.address());
  const ModelMetadata read = client.Metadata();
  EXPECT_EQ(read.signature.dense[0].width, 3);
  EXPECT_TRUE(read.signature.dense[0].missing);
  EXPECT_EQ(read.signature.dense[0].columns, (std::vector<std::string>{"low", "mean", "high"}));
  EXPECT_EQ(read.signature.sparse[0].pooling, "mean");
  EXPECT_TRUE(read.signature.sparse[0].weighted);
  EXPECT_EQ(read.signature.sparse[0].tables[0].num_embeddings, 50);
  EXPECT_EQ(read.signature.sparse[1].tables[0].id_policy, IdPolicy::kHash);
  EXPECT_EQ(read.signature.sparse[1].tables[1].id_policy, IdPolicy::kFmix64);
  EXPECT_EQ(read.signature.sparse[0].num_ids, std::nullopt);
  EXPECT_EQ(read.signature.sparse[1].num_ids, 3);
  EXPECT_EQ(read.signature.sparse[0].max_ids, std::nullopt);
  EXPECT_EQ(read.signature.sparse[1].max_ids, 3);
  EXPECT_EQ(read.id_limits[0], 50);
  EXPECT_EQ(read.id_limits[1], std::nullopt);
  EXPECT_EQ(read.signature.outputs[0].shape, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(read.signature.outputs[0].type, OutputType::kFloat32);
  EXPECT_EQ(read.signature.outputs[0].Dims(7), (std::vector<std::int64_t>{7, 2}));
  EXPECT_EQ(read.signature.outputs[1].type, OutputType::kInt64);
  EXPECT_EQ(read.signature.outputs[1].Dims(7), (std::vector<std::int64_t>{4, 7}));
  EXPECT_EQ(read.signature.context, (std::vector<std::string>{"user"}));
  EXPECT_EQ(read.limits.max_rows, 10);
  EXPECT_EQ(read.digest, "abc");
  ClientOptions other;
  other.model = "other";
  Client wrong(server.address(), other);
  EXPECT_EQ(ErrorOf([&] { wrong.Metadata(); }).kind(), ErrorKind::kModelNotFound);
}

TEST(Client, EndsCallsThatItsCallbacksBeginWhileItIsDestroyed) {
  FakeServer server;
  constexpr double kLongS = 5;
  const double start_s = MonotonicSeconds();
  std::atomic<int> num_answers{0};
  auto client = std::make_unique<Client>(server.address());
  // One call after the other, as long as they succeed.
  const std::function<void(ClientResult)> go_on = [&, asks = client.get()](ClientResult result) {
    ++num_answers;
    if (!result.ok() || MonotonicSeconds() - start_s > kLongS) return;
    asks->PredictAsync(RowsOf(1), go_on);
  };
  for (int i = 0; i < 4; ++i) client->PredictAsync(RowsOf(1), go_on);
  while (num_answers < 20) std::this_thread::yield();
  client.reset();
  EXPECT_LT(MonotonicSeconds() - start_s, kLongS);
}

}  // namespace
}  // namespace recsys
