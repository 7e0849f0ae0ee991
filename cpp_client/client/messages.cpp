#include "client/messages.h"

#include <grpcpp/support/slice.h>

#include <string>
#include <string_view>

#include "wire/writer.h"

namespace recsys::client {
namespace {

// Fields of PredictRequest.
constexpr int kModel = 1, kRequestId = 2, kNumRows = 3, kVersion = 8, kPriority = 9;

/// Returns the bytes of an answer as one contiguous slice.
grpc::Slice Joined(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  if (bytes.TrySingleSlice(&slice).ok() || bytes.DumpToSingleSlice(&slice).ok()) return slice;
  throw ClientError(StatusCode::kInternal, "the server's answer cannot be read");
}

std::string_view ViewOf(const grpc::Slice& slice) {
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

}  // namespace

grpc::ByteBuffer BytesOf(const ClientRequest& request, const ClientOptions& options) {
  std::string rest;
  AppendBytes(kModel, options.model, &rest);
  AppendBytes(kRequestId, request.request_id(), &rest);
  AppendNumber(kNumRows, static_cast<std::uint64_t>(request.num_rows()), &rest);
  AppendBytes(kVersion, options.version, &rest);
  const Priority priority = request.priority().value_or(options.priority);
  AppendNumber(kPriority, static_cast<std::uint64_t>(priority), &rest);
  const grpc::Slice slices[] = {grpc::Slice(request.packed()), grpc::Slice(rest)};
  return grpc::ByteBuffer(slices, std::size(slices));
}

grpc::ByteBuffer MetadataRequest(const ClientOptions& options) {
  std::string bytes;
  AppendBytes(1, options.model, &bytes);
  AppendBytes(2, options.version, &bytes);
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

ClientResult ResultOf(CallEnd end) {
  if (end.error) return *std::move(end.error);
  const grpc::Slice bytes = Joined(end.bytes);
  ClientResult result = ReadResponse(ViewOf(bytes));
  if (!result.ok()) return result;
  ClientResponse response = result.Take();
  response.num_attempts = end.num_attempts;
  return response;
}

ModelMetadata MetadataOf(CallEnd end) {
  if (end.error) throw *end.error;
  const grpc::Slice bytes = Joined(end.bytes);
  return ReadMetadata(ViewOf(bytes));
}

StreamAnswer StreamAnswerOf(grpc::ByteBuffer* bytes) {
  const grpc::Slice joined = Joined(*bytes);
  return ReadStreamAnswer(ViewOf(joined));
}

}  // namespace recsys::client
