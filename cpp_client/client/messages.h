#ifndef RECSYS_CLIENT_MESSAGES_H_
#define RECSYS_CLIENT_MESSAGES_H_

// Converts between the client's types and the wire's.

#include <grpcpp/support/byte_buffer.h>

#include "client/answers.h"
#include "client/calls/unary_call.h"
#include "recsys/client.h"

namespace recsys::client {

inline constexpr char kPredict[] = "/recsys.v1.PredictionService/Predict";
inline constexpr char kPredictStream[] = "/recsys.v1.PredictionService/PredictStream";
inline constexpr char kGetModelMetadata[] = "/recsys.v1.PredictionService/GetModelMetadata";

/// Serializes a request together with the client's common fields; copies it once.
grpc::ByteBuffer BytesOf(const ClientRequest& request, const ClientOptions& options);

/// Serializes a request for the metadata of the client's model.
grpc::ByteBuffer MetadataRequest(const ClientOptions& options);

/// Returns the answer, or the error that the call ended with.
ClientResult ResultOf(CallEnd end);

/// Like ResultOf, for GetModelMetadata; throws ClientError.
ModelMetadata MetadataOf(CallEnd end);

/// Throws ClientError (kInternal) if the bytes are malformed.
StreamAnswer StreamAnswerOf(grpc::ByteBuffer* bytes);

}  // namespace recsys::client

#endif  // RECSYS_CLIENT_MESSAGES_H_
