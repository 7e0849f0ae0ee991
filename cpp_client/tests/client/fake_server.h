#ifndef RECSYS_TESTS_CLIENT_FAKE_SERVER_H_
#define RECSYS_TESTS_CLIENT_FAKE_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "recsys/client.h"
#include "recsys/v1/predict.grpc.pb.h"

namespace recsys {

/// Answers as a test says, and remembers what it was asked.
class FakeService final : public v1::PredictionService::Service {
 public:
  using OnPredict = std::function<grpc::Status(grpc::ServerContext*, const v1::PredictRequest&,
                                               v1::PredictResponse*)>;
  using Stream = grpc::ServerReaderWriter<v1::StreamResponse, v1::PredictRequest>;

  OnPredict on_predict = [](grpc::ServerContext*, const v1::PredictRequest& request,
                            v1::PredictResponse* response) { return Score(request, response); };
  std::function<grpc::Status(grpc::ServerContext*, Stream*)> on_stream;
  v1::ModelMetadata metadata;

  /// One output, "score" [B]: row b scores b + 0.5.
  static grpc::Status Score(const v1::PredictRequest& request, v1::PredictResponse* response) {
    std::vector<float> scores;
    for (int row = 0; row < request.num_rows(); ++row) {
      scores.push_back(static_cast<float>(row) + 0.5F);
    }
    response->set_model("fake");
    response->set_version("1");
    auto* output = response->add_outputs();
    output->set_name("score");
    output->add_dims(request.num_rows());
    output->set_values(reinterpret_cast<const char*>(scores.data()), scores.size() * sizeof(float));
    return grpc::Status::OK;
  }

  std::vector<v1::PredictRequest> requests() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }

  grpc::Status Predict(grpc::ServerContext* context, const v1::PredictRequest* request,
                       v1::PredictResponse* response) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      requests_.push_back(*request);
      peers_.push_back(context->peer());
    }
    return on_predict(context, *request, response);
  }

  grpc::Status PredictStream(grpc::ServerContext* context, Stream* stream) override {
    return on_stream(context, stream);
  }

  grpc::Status GetModelMetadata(grpc::ServerContext*, const v1::GetModelMetadataRequest* request,
                                v1::ModelMetadata* response) override {
    if (!request->model().empty() && request->model() != "fake") {
      return {grpc::StatusCode::NOT_FOUND, "model: got 'other', expected 'fake'"};
    }
    *response = metadata;
    return grpc::Status::OK;
  }

  /// The client's end of each request's connection.
  std::vector<std::string> peers() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return peers_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<v1::PredictRequest> requests_;
  std::vector<std::string> peers_;
};

/// It listens on a port of the system's choice, as long as it lives.
class FakeServer {
 public:
  FakeServer() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~FakeServer() { Stop(); }

  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  const std::string& address() const { return address_; }

  FakeService service;

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

/// So many rows of one dense input.
inline ClientRequest RowsOf(std::int64_t num_rows) {
  ClientRequest request(num_rows);
  const std::vector<float> values(static_cast<std::size_t>(2 * num_rows), 1.0F);
  request.AddDense("dense", values);
  return request;
}

}  // namespace recsys

#endif  // RECSYS_TESTS_CLIENT_FAKE_SERVER_H_
