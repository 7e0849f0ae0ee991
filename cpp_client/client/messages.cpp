#include "client/messages.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstring>
#include <utility>

#include "client/wire_writer.h"
#include "recsys/v1/predict.pb.h"

namespace recsys::client {
namespace {

// Fields of PredictRequest.
constexpr int kModel = 1, kRequestId = 2, kNumRows = 3, kVersion = 8, kPriority = 9;

template <typename Message>
bool Parse(grpc::ByteBuffer* bytes, Message* message) {
  return grpc::SerializationTraits<Message>::Deserialize(bytes, message).ok();
}

ClientError NoMessage(const char* name) {
  return ClientError(StatusCode::kInternal, std::string("the server's answer is no ") + name);
}

/// Whether there are as many numbers as the shape says; nothing of it is trusted.
bool Fits(const v1::Output& output) {
  if (output.values().size() % sizeof(float) != 0) return false;
  const std::uint64_t count = output.values().size() / sizeof(float);
  std::uint64_t expected = 1;
  for (const std::int64_t dim : output.dims()) {
    if (dim < 0) return false;
    if (dim == 0) return count == 0;
    if (expected > count / static_cast<std::uint64_t>(dim)) return false;
    expected *= static_cast<std::uint64_t>(dim);
  }
  return expected == count;
}

ClientResult Read(const v1::PredictResponse& message) {
  ClientResponse response;
  response.model = message.model();
  response.version = message.version();
  for (const v1::Output& output : message.outputs()) {
    if (!Fits(output)) {
      return ClientError(StatusCode::kInternal,
                         "output '" + output.name() + "': its bytes do not fit its shape");
    }
    ClientOutput& read = response.outputs.emplace_back();
    read.name = output.name();
    read.dims.assign(output.dims().begin(), output.dims().end());
    read.values.resize(output.values().size() / sizeof(float));
    if (!read.values.empty()) {
      std::memcpy(read.values.data(), output.values().data(), output.values().size());
    }
  }
  return response;
}

SparseInput ReadSparse(const v1::SparseSignature& message) {
  static constexpr const char* kPoolings[] = {"", "sum", "mean", "none"};
  SparseInput input;
  input.name = message.name();
  input.weighted = message.weighted();
  const auto pooling = static_cast<std::size_t>(message.pooling());
  input.pooling = pooling < std::size(kPoolings) ? kPoolings[pooling] : "";
  for (const v1::TableUse& table : message.tables()) {
    IdPolicy policy = IdPolicy::kReject;
    if (table.id_policy() == v1::ID_POLICY_HASH) policy = IdPolicy::kHash;
    if (table.id_policy() == v1::ID_POLICY_ZERO) policy = IdPolicy::kZero;
    if (table.id_policy() == v1::ID_POLICY_MAPPED) policy = IdPolicy::kMapped;
    input.tables.push_back({table.name(), table.num_embeddings(), policy});
  }
  return input;
}

}  // namespace

grpc::ByteBuffer BytesOf(const ClientRequest& request, const ClientOptions& options) {
  std::string rest;
  PutBytes(kModel, options.model, &rest);
  PutBytes(kRequestId, request.request_id(), &rest);
  PutNumber(kNumRows, static_cast<std::uint64_t>(request.num_rows()), &rest);
  PutBytes(kVersion, options.version, &rest);
  const Priority priority = request.priority().value_or(options.priority);
  PutNumber(kPriority, static_cast<std::uint64_t>(priority), &rest);
  const grpc::Slice slices[] = {grpc::Slice(request.packed()), grpc::Slice(rest)};
  return grpc::ByteBuffer(slices, std::size(slices));
}

grpc::ByteBuffer MetadataRequest(const ClientOptions& options) {
  std::string bytes;
  PutBytes(1, options.model, &bytes);
  PutBytes(2, options.version, &bytes);
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

ClientResult ResultOf(CallEnd end) {
  if (end.error) return *std::move(end.error);
  v1::PredictResponse message;
  if (!Parse(&end.bytes, &message)) return NoMessage("recsys.v1.PredictResponse");
  ClientResult result = Read(message);
  if (!result.ok()) return result;
  ClientResponse response = result.Take();
  response.num_attempts = end.num_attempts;
  return response;
}

ModelMetadata MetadataOf(CallEnd end) {
  if (end.error) throw *end.error;
  v1::ModelMetadata message;
  if (!Parse(&end.bytes, &message)) throw NoMessage("recsys.v1.ModelMetadata");
  ModelMetadata metadata;
  metadata.model = message.model();
  metadata.version = message.version();
  metadata.target = message.target();
  for (const auto& dense : message.dense()) {
    metadata.signature.dense.push_back({dense.name(), dense.width()});
  }
  for (const auto& sparse : message.sparse()) {
    metadata.signature.sparse.push_back(ReadSparse(sparse));
    metadata.id_limits.push_back(sparse.has_id_limit() ? std::optional(sparse.id_limit())
                                                       : std::nullopt);
  }
  for (const auto& output : message.outputs()) {
    metadata.signature.outputs.push_back(
        {output.name(), {output.shape().begin(), output.shape().end()}});
  }
  metadata.signature.context.assign(message.context().begin(), message.context().end());
  metadata.limits = {message.limits().max_rows(), message.limits().max_ids(),
                     message.limits().max_message_bytes()};
  metadata.digest = message.artifact().digest();
  metadata.torch_version = message.artifact().torch();
  metadata.fbgemm_version = message.artifact().fbgemm();
  metadata.deltas.assign(message.deltas().begin(), message.deltas().end());
  return metadata;
}

StreamAnswer StreamAnswerOf(grpc::ByteBuffer* bytes) {
  v1::StreamResponse message;
  if (!Parse(bytes, &message)) throw NoMessage("recsys.v1.StreamResponse");
  if (message.has_response()) return {message.request_id(), Read(message.response())};
  const v1::StreamError& error = message.error();
  const bool is_known = error.code() > 0 && error.code() <= 16;
  const auto code = is_known ? static_cast<StatusCode>(error.code()) : StatusCode::kUnknown;
  const auto retry_after_ms =
      error.retry_after_ms() > 0 ? std::optional(error.retry_after_ms()) : std::nullopt;
  return {message.request_id(), ClientError(code, error.message(), retry_after_ms)};
}

}  // namespace recsys::client
