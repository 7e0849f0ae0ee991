// The baseline for recsys-server, without batching: gRPC's synchronous server, whose threads each
// parse a request, compute it alone and answer, like TorchRec's example of an inference server.

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/peers/until_stopped.h"
#include "recsys/error.h"
#include "recsys/model.h"
#include "recsys/v1/predict.grpc.pb.h"

namespace {

recsys::RawRequest RawOf(const recsys::v1::PredictRequest& request) {
  const auto dense = [](const auto& inputs) {
    std::vector<recsys::RawDense> found;
    for (const auto& input : inputs) found.push_back({input.name(), input.values()});
    return found;
  };
  const auto sparse = [](const auto& inputs) {
    std::vector<recsys::RawSparse> found;
    for (const auto& input : inputs) {
      found.push_back({input.name(), input.lengths(), input.values(), input.weights()});
    }
    return found;
  };
  return {request.num_rows(), dense(request.dense()), sparse(request.sparse()),
          dense(request.context_dense()), sparse(request.context_sparse())};
}

class PlainService final : public recsys::v1::PredictionService::Service {
 public:
  explicit PlainService(recsys::Model model) : model_(std::move(model)) {}

  grpc::Status Predict(grpc::ServerContext* /*context*/, const recsys::v1::PredictRequest* request,
                       recsys::v1::PredictResponse* response) override {
    try {
      Answer(*request, model_.Predict(RawOf(*request)), response);
    } catch (const recsys::Error& error) {
      const bool is_theirs = error.kind() == recsys::ErrorKind::kRequest ||
                             error.kind() == recsys::ErrorKind::kRequestTooLarge;
      const auto code = is_theirs ? grpc::StatusCode::INVALID_ARGUMENT : grpc::StatusCode::INTERNAL;
      return {code, error.what()};
    } catch (const std::exception&) {
      return {grpc::StatusCode::INTERNAL, "the model failed"};
    }
    return grpc::Status::OK;
  }

  grpc::Status GetModelMetadata(grpc::ServerContext* /*context*/,
                                const recsys::v1::GetModelMetadataRequest* /*request*/,
                                recsys::v1::ModelMetadata* response) override {
    const recsys::ModelDescription& description = model_.description();
    response->set_model(description.name);
    response->set_version(description.digest);
    response->set_target(description.target);
    response->mutable_artifact()->set_format(description.format_version);
    response->mutable_artifact()->set_torch(description.torch_version);
    response->mutable_artifact()->set_fbgemm(description.fbgemm_version);
    response->mutable_artifact()->set_digest(description.digest);
    const recsys::Signature& signature = model_.signature();
    for (const recsys::DenseInput& input : signature.dense) {
      auto* dense = response->add_dense();
      dense->set_name(input.name);
      dense->set_width(input.width);
    }
    for (const recsys::SparseInput& input : signature.sparse) Describe(input, response);
    for (const recsys::Output& output : signature.outputs) {
      auto* described = response->add_outputs();
      described->set_name(output.name);
      described->set_dtype(output.type == recsys::OutputType::kInt64 ? "int64" : "float32");
      for (const std::int64_t dim : output.shape) described->add_shape(dim);
      for (const std::int64_t dim : output.Dims(-1)) described->add_dims(dim);
    }
    for (const std::string& name : signature.context) response->add_context(name);
    return grpc::Status::OK;
  }

 private:
  void Answer(const recsys::v1::PredictRequest& request, const recsys::Outputs& outputs,
              recsys::v1::PredictResponse* response) const {
    response->set_model(model_.description().name);
    response->set_version(model_.description().digest);
    for (std::size_t i = 0; i < outputs.values.size(); ++i) {
      const recsys::Output& described = model_.signature().outputs[i];
      auto* output = response->add_outputs();
      output->set_name(described.name);
      for (const std::int64_t dim : described.Dims(request.num_rows())) output->add_dims(dim);
      if (described.type == recsys::OutputType::kInt64) {
        const auto& integers = outputs.integers[i];
        output->set_int64_values(integers.data(), integers.size() * sizeof(std::int64_t));
      } else {
        const auto& values = outputs.values[i];
        output->set_values(values.data(), values.size() * sizeof(float));
      }
    }
  }

  static void Describe(const recsys::SparseInput& input, recsys::v1::ModelMetadata* response) {
    auto* sparse = response->add_sparse();
    sparse->set_name(input.name);
    sparse->set_weighted(input.weighted);
    sparse->set_pooling(input.pooling == "sum"    ? recsys::v1::POOLING_SUM
                        : input.pooling == "mean" ? recsys::v1::POOLING_MEAN
                                                  : recsys::v1::POOLING_NONE);
    for (const recsys::TableUse& table : input.tables) {
      auto* use = sparse->add_tables();
      use->set_name(table.name);
      use->set_num_embeddings(table.num_embeddings);
    }
    if (const auto limit = input.id_limit()) sparse->set_id_limit(*limit);
  }

  const recsys::Model model_;
};

int Usage() {
  std::fputs(
      "usage: recsys-plain-server ARTIFACT [--port N] [--max-threads N] [--intra-op-threads N]\n",
      stderr);
  return 2;
}

int Serve(const std::string& artifact, int port, int max_threads) {
  PlainService service(recsys::Model::Open(artifact));
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service);
  if (max_threads > 0) {
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, max_threads);
  }
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    std::fputs("recsys-plain-server: the port cannot be had\n", stderr);
    return 1;
  }
  recsys::peers::UntilStopped(port);
  server->Shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string artifact;
  int port = 0, max_threads = 0, intra_op_threads = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0 && artifact.empty()) {
      artifact = word;
      continue;
    }
    int* const value = word == "--port"               ? &port
                       : word == "--max-threads"      ? &max_threads
                       : word == "--intra-op-threads" ? &intra_op_threads
                                                      : nullptr;
    if (value == nullptr || ++i == argc) return Usage();
    *value = std::atoi(argv[i]);
  }
  if (artifact.empty() || port < 0 || port > 65535 || max_threads < 0 || intra_op_threads < 1) {
    return Usage();
  }
  recsys::peers::HoldSignals();
  try {
    recsys::SetIntraOpThreads(intra_op_threads);
    return Serve(artifact, port, max_threads);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "recsys-plain-server: %s\n", error.what());
    return 1;
  }
}
